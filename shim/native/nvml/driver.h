/* The real NVML that the shim forwards to. It is opened by its absolute path at the first use.
 *
 * REAL(nvmlX)(…) calls the real nvmlX with the prototype from NVML's header. It returns
 * NVML_ERROR_FUNCTION_NOT_FOUND if the library lacks the function, and NVML_ERROR_LIBRARY_NOT_FOUND
 * if there is no library. Outside a tenant, nothing is opened and every function returns
 * NVML_ERROR_NO_PERMISSION.
 */
#pragma once

#include <nvml.h>
#include <stdbool.h>

/* Programs still call deprecated functions, so the shim forwards these too. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#include "nvml_symbols.h"
#include "nvml_hooks.h" /* declares every hook with the prototype from NVML's header */

extern void *penstock_nvml_real[];
extern const char *const penstock_nvml_names[];

#define REAL(function)                                                                 \
  ((__typeof__(&function))__atomic_load_n(&penstock_nvml_real[PENSTOCK_IX_##function], \
                                          __ATOMIC_RELAXED))

/* The generated forwarders export hooks under NVML's own names. */
#define HOOK_NAME(function) hook_##function

/* Returns the address that a generated thunk jumps to. The address is stored in the table once it
 * is known. */
void *penstock_nvml_resolve(unsigned index, const void *caller);
