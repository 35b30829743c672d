/* Libraries, and how images are loaded. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

/* Returns true if the driver loads code when it is first used, and false if it loads all code at
 * once (CUDA_MODULE_LOADING; lazy loading is the default since 12.2). */
bool penstock_loads_lazily(void);

/* Returns the device's architecture, such as 90 for compute capability 9.0. */
unsigned penstock_architecture_of(CUdevice device);

/* Charges the image of the function's library in a context; call before a launch there. `function`
 * may be a CUkernel. Functions of modules are already charged. */
CUresult penstock_library_use(CUfunction function, CUcontext context, int grant);

/* Returns true if `function` is a CUkernel that was passed as a CUfunction. */
bool penstock_is_kernel(CUfunction function);

/* Record and look up the context of a function that was found in a module (`owner`) or from a
 * kernel of a library. The context is NULL if it is unknown. */
void penstock_function_got(CUfunction function, uint64_t owner, CUcontext context);
CUcontext penstock_function_context(CUfunction function);

/* Charge what eager loading puts into a new context. penstock_libraries_eager_bytes returns its
 * size in whole slabs before the context is created. penstock_libraries_enter adds entries for the
 * copies afterwards and returns the part of `bytes` that is left. */
uint64_t penstock_libraries_eager_bytes(int grant);
uint64_t penstock_libraries_enter(CUcontext context, int grant, uint64_t bytes);
