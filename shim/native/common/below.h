/* libc's own dlopen, for the shim itself: what it opens is never redirected to the shim. */
#pragma once

#include <dlfcn.h>

void *penstock_below_dlopen(const char *path, int flags);

/* Each library of the shim exports one of these; whatever has it is the shim, under whatever path
 * (a bind mount, a copy) it was reached. */
#define PENSTOCK_CUDA_MARKER "penstock_cuda_shim"
#define PENSTOCK_NVML_MARKER "penstock_nvml_shim"
