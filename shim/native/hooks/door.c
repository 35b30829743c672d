/* The entry points of the driver API: cuInit and cuGetProcAddress. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "hooks/hook.h"
#include "images/image.h"
#include "common/log.h"
#include "devices/mps.h"
#include "loading/unknown.h"
#include "devices/visible.h"
#include "process/release.h"

CUresult CUDAAPI HOOK_NAME(cuInit)(unsigned int flags) {
  const penstock_process *process = penstock_process_get();
  if (!process) return CUDA_ERROR_SYSTEM_NOT_READY;
  penstock_release_wait(process);
  bool changed = penstock_visible_begin(process);
  penstock_image_begin();
  CUresult result = REAL(cuInit)(flags);
  penstock_visible_end(changed, result == CUDA_SUCCESS);
  if (result != CUDA_SUCCESS) return result;
  penstock_grant_of(0);
  return penstock_mps_admit(process);
}

#define LONGEST_NAME 128

/* Returns the index of the export that the driver has at `address`, which is `base` or one of its
 * versions, or -1 if there is none. */
static int index_of_variant(const char *base, const void *address, bool per_thread) {
  static const char *const versions[] = {"", "_v2", "_v3", "_v4", "_v5", "_v6"};
  static const char *const plain_first[] = {"", "_ptsz", "_ptds"};
  static const char *const thread_first[] = {"_ptsz", "_ptds", ""};
  const char *const *streams = per_thread ? thread_first : plain_first;
  for (unsigned s = 0; s < 3; s++) {
    for (unsigned v = 0; v < sizeof versions / sizeof *versions; v++) {
      char name[LONGEST_NAME + 16];
      snprintf(name, sizeof name, "%s%s%s", base, versions[v], streams[s]);
      int index = penstock_cuda_index(name);
      if (index < 0) continue;
      /* A driver that was not linked with -Bsymbolic may return the shim's own export. */
      if (address == penstock_cuda_exports[index]) return index;
      if (address == penstock_driver_symbol(name)) return index;
    }
  }
  return -1;
}

static bool is_long(const char *symbol) { return strnlen(symbol, LONGEST_NAME) == LONGEST_NAME; }

/* Replaces the driver's function by the shim's own export. Returns false if the name must be
 * reported as not found. */
static bool replace(const char *symbol, void **function, cuuint64_t flags) {
  bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  int index = is_long(symbol) ? -1 : index_of_variant(symbol, *function, per_thread);
  if (index >= 0) {
    if (!penstock_cuda_is_hooked[index] && penstock_names_are_recorded()) {
      penstock_name_count(PENSTOCK_ASKED_FORWARDED, penstock_cuda_names[index],
                          PENSTOCK_ASKED_REQUEST);
    }
    *function = penstock_cuda_exports[index];
    return true;
  }
  if (penstock_unknown_is_let_through(symbol)) return true;
  *function = NULL;
  return false;
}

/* Counts a symbol that the driver does not have. The runtime also queries "" to test this
 * function. */
static void note_absent(const char *symbol, CUresult result) {
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND) return;
  if (*symbol) penstock_name_count(PENSTOCK_ASKED_ABSENT, symbol, PENSTOCK_ASKED_REQUEST);
}

/* This version, from before CUDA 12, returns no status, so a name that is not found is an error. */
CUresult CUDAAPI HOOK_NAME(cuGetProcAddress)(const char *symbol, void **function, int version,
                                             cuuint64_t flags) {
  if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
  if (result != CUDA_SUCCESS || !*function) {
    note_absent(symbol, result);
    return result;
  }
  return replace(symbol, function, flags) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI HOOK_NAME(cuGetProcAddress_v2)(const char *symbol, void **function, int version,
                                                cuuint64_t flags,
                                                CUdriverProcAddressQueryResult *status) {
  if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
  if (result != CUDA_SUCCESS || !*function) {
    note_absent(symbol, result);
    return result;
  }
  if (replace(symbol, function, flags)) return CUDA_SUCCESS;
  if (status) *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
