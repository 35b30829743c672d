/* The driver that the shim forwards to ("below" it). It is opened by absolute path at the first
 * use.
 *
 * REAL(cuX)(…) calls the driver's cuX with the header's prototype. Every table entry can be called
 * from the start, because it first points to code that looks the function up and jumps to it, so
 * hooks need no set-up. A function that the driver lacks returns CUDA_ERROR_NOT_SUPPORTED. Without
 * a driver, every function returns CUDA_ERROR_NO_DEVICE. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
/* These headers come after cuda.h because they use its types. */
#include <cudaGL.h>
#include <cudaEGL.h>
#include <vdpau/vdpau.h>
#include <cudaVDPAU.h>
#include <cudaProfiler.h>

#include "cuda_symbols.h"
#include "cuda_hooks.h" /* declares every hook with the header's prototype */

extern void *penstock_cuda_real[];
extern const char *const penstock_cuda_names[];
extern const unsigned char penstock_cuda_is_hooked[]; /* indexed by symbol */

#define REAL(function)                                                                 \
  ((__typeof__(&function))__atomic_load_n(&penstock_cuda_real[PENSTOCK_IX_##function], \
                                          __ATOMIC_RELAXED))

/* The generated forwarders export hooks under the driver's names. */
#define HOOK_NAME(function) hook_##function

/* Returns true if the installed driver exports this symbol. */
bool penstock_driver_has(unsigned index);

/* Returns the address of any name in the driver, or NULL if the driver lacks the name or there is
 * no driver. */
void *penstock_driver_symbol(const char *name);

/* The shim's own export of each symbol, by index, which cuGetProcAddress returns. */
extern void *const penstock_cuda_exports[];

/* Returns the index of an exported name, or -1 if the headers do not have it. */
int penstock_cuda_index(const char *name);

/* Returns the address that a generated thunk jumps to. The address is also stored in the table,
 * unless calls of this function are counted. `caller` is the return address of the call. */
void *penstock_cuda_resolve(unsigned index, const void *caller);
