/* The NVML below the shim: opened by absolute path on first use, its functions by index.
 *
 * REAL(nvmlX)(…) calls the real nvmlX with the header's own prototype; a function that it lacks
 * answers NVML_ERROR_FUNCTION_NOT_FOUND, with no library NVML_ERROR_LIBRARY_NOT_FOUND. Outside a
 * tenant nothing is opened and everything answers NVML_ERROR_NO_PERMISSION.
 */
#pragma once

#include <nvml.h>
#include <stdbool.h>

/* Programs go on calling what NVML deprecates, so the shim forwards it. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#include "nvml_symbols.h"
#include "nvml_hooks.h" /* declares every hook with the header's prototype */

extern void *penstock_nvml_real[];
extern const char *const penstock_nvml_names[];

#define REAL(function)                                                                 \
  ((__typeof__(&function))__atomic_load_n(&penstock_nvml_real[PENSTOCK_IX_##function], \
                                          __ATOMIC_RELAXED))

/* Hooks are exported under NVML's name by the generated forwarders. */
#define HOOK_NAME(function) hook_##function

/* For the generated thunks: the address to jump to; also stored in the table, once it is known. */
void *penstock_nvml_resolve(unsigned index, const void *caller);
