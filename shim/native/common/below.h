/* dlopen without redirection to the shim, used to open the vendor's libraries that the shim
 * forwards to ("below" it). */
#pragma once

#include <dlfcn.h>

void *penstock_below_dlopen(const char *path, int flags);

/* Each library of the shim exports one of these symbols. The symbol identifies the shim even when
 * its file has another path, such as a bind mount or a copy. */
#define PENSTOCK_CUDA_MARKER "penstock_cuda_shim"
#define PENSTOCK_NVML_MARKER "penstock_nvml_shim"
