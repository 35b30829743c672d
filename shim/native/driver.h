/* The driver below the shim: opened by absolute path on first use, its functions by index.
 *
 * REAL(cuX)(…) calls the driver's cuX with the header's own prototype. Every table entry can be
 * called from the start (it looks its function up and jumps there), so hooks need no set-up. A
 * function that the driver lacks answers CUDA_ERROR_NOT_SUPPORTED; with no driver,
 * CUDA_ERROR_NO_DEVICE.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
/* after cuda.h: they use its types */
#include <cudaGL.h>
#include <cudaEGL.h>
#include <vdpau/vdpau.h>
#include <cudaVDPAU.h>
#include <cudaProfiler.h>

#include "cuda_symbols.h"
#include "cuda_hooks.h" /* declares every hook with the header's prototype */

extern void *penstock_cuda_real[];
extern const char *const penstock_cuda_names[];
extern const unsigned char penstock_cuda_is_hooked[]; /* by index */

#define REAL(function)                                                                 \
  ((__typeof__(&function))__atomic_load_n(&penstock_cuda_real[PENSTOCK_IX_##function], \
                                          __ATOMIC_RELAXED))

/* Hooks are exported under the driver's name by the generated forwarders. */
#define HOOK_NAME(function) hook_##function

/* True when the installed driver exports this symbol. */
bool penstock_driver_has(unsigned index);

/* Address of any name in the driver below; NULL when it lacks the name or there is no driver. */
void *penstock_driver_symbol(const char *name);

/* The shim's own export of each symbol, by index: what cuGetProcAddress hands out. */
extern void *const penstock_cuda_exports[];

/* Index of an exported name; -1: the headers do not know it. */
int penstock_cuda_index(const char *name);

/* For the generated thunks: the address to jump to; also stored in the table, unless the calls of
 * this function are counted. `caller` is whom it returns to. */
void *penstock_cuda_resolve(unsigned index, const void *caller);
