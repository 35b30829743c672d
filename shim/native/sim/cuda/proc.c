/* cuGetProcAddress and the names of errors. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/core.h"
#include "sim/cuda_variants.h"

/* Finds the newest variant that is not newer than `version`, and its per-thread form if that exists
 * and was requested. */
static const penstock_variant *find_variant(const char *name, int version, bool per_thread,
                                            bool *known) {
  unsigned low = 0, high = penstock_cuda_variant_count;
  while (low < high) {
    unsigned middle = (low + high) / 2;
    if (strcmp(penstock_cuda_variants[middle].base, name) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  const penstock_variant *best = NULL;
  *known = false;
  for (; low < penstock_cuda_variant_count && !strcmp(penstock_cuda_variants[low].base, name);
       low++) {
    const penstock_variant *v = &penstock_cuda_variants[low];
    *known = true;
    if (v->version > version || (v->per_thread && !per_thread)) continue;
    bool better = !best || v->per_thread > best->per_thread ||
                  (v->per_thread == best->per_thread && v->version > best->version);
    if (better) best = v;
  }
  return best;
}

static CUresult answer_newer(void) { return CUDA_ERROR_NOT_SUPPORTED; }

/* Returns whether a name is in PENSTOCK_SIM_NEWER=name,…, which simulates a driver that is newer
 * than the headers and also has these names. */
static bool is_newer(const char *name) {
  const char *list = getenv("PENSTOCK_SIM_NEWER");
  size_t length = strlen(name);
  while (list && *list) {
    size_t word = strcspn(list, ",");
    if (length && word == length && !strncmp(list, name, length)) return true;
    list += word + (list[word] != '\0');
  }
  return false;
}

static void *find_function(const char *name, int version, cuuint64_t flags, bool *known) {
  const penstock_variant *v =
      find_variant(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, known);
  if (v) return (void *)v->symbol;
  return is_newer(name) ? (void *)answer_newer : NULL;
}

static CUresult check(const char *name, void **out, cuuint64_t flags) {
  cuuint64_t allowed =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  return name && out && !(flags & ~allowed) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* If a name is not found, the first version of this call returns an error and leaves `out`
 * unchanged. The second version returns success, a null pointer and the reason. */
CUresult CUDAAPI cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags) {
  bool known;
  TRY(check(name, out, flags));
  void *found = find_function(name, version, flags, &known);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  *out = found;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *status) {
  bool known;
  TRY(check(name, out, flags));
  *out = find_function(name, version, flags, &known);
  if (status)
    *status = *out    ? CU_GET_PROC_ADDRESS_SUCCESS
              : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS;
}
