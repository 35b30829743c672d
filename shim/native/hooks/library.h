/* Libraries and how images are loaded; the rest is in library.c. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

/* Does the driver load code as it is used (CUDA_MODULE_LOADING, the default since 12.2), or all of
 * it at once? */
bool penstock_loads_lazily(void);

/* Of a device: 90 for compute capability 9.0. */
unsigned penstock_architecture_of(CUdevice device);

/* Before a launch in a context: the image of the library that the function comes from is charged
 * there. `function` may be a CUkernel; what comes from no library is charged already. */
CUresult penstock_library_use(CUfunction function, CUcontext context, int grant);

/* Is it a CUkernel, taken for a CUfunction? */
bool penstock_is_kernel(CUfunction function);

/* The context of a function, which is remembered as it is got from a module (`owner`), or from a
 * kernel of a library. NULL: it is not known. */
void penstock_function_got(CUfunction function, uint64_t owner, CUcontext context);
CUcontext penstock_function_context(CUfunction function);

/* What eager loading puts into a context that comes to be: asked before, in whole slabs; and after,
 * as the copies of the libraries in it. Returns what of `bytes` is left. */
uint64_t penstock_libraries_eager_bytes(int grant);
uint64_t penstock_libraries_enter(CUcontext context, int grant, uint64_t bytes);
