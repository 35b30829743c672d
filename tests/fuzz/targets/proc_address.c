/* Any name, version and flags of cuGetProcAddress: the driver's own function is never returned for
 * a name that could allocate or launch. Runs over the whole shim and the simulated driver. */
#define _GNU_SOURCE /* dladdr */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef cuGetProcAddress
CUresult cuGetProcAddress(const char *, void **, int, cuuint64_t);

static const char *const risky[] = {"Alloc",  "Launch", "MemCreate",
                                    "MemMap", "Memset", "CtxCreate"};

static void check(const char *name, void *function) {
  Dl_info info;
  if (!function || !dladdr(function, &info)) return;
  if (strstr(info.dli_fname, "libpenstock")) return;
  for (unsigned i = 0; i < sizeof risky / sizeof *risky; i++) {
    if (!strstr(name, risky[i])) continue;
    fprintf(stderr, "%s is the driver's own, in %s\n", name, info.dli_fname);
    abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 5) return 0;
  int version;
  memcpy(&version, data, 4);
  if (version < 0 || version > 20000) version = 13000;
  cuuint64_t flags = data[4] & 3;
  char *name = calloc(1, size - 4);
  memcpy(name, data + 5, size - 5);
  void *function = NULL;
  CUdriverProcAddressQueryResult status;
  if (cuGetProcAddress(name, &function, version, flags) == CUDA_SUCCESS) check(name, function);
  function = NULL;
  if (cuGetProcAddress_v2(name, &function, version, flags, &status) == CUDA_SUCCESS) {
    check(name, function);
  }
  free(name);
  return 0;
}
