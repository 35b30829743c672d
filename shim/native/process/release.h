/* Releases of a tenant's device memory: the driver moves it to host memory while the tenant is
 * suspended (ADR 53). */
#pragma once

#include <stdint.h>

#include "process/process.h"

/* Waits while the tenant's memory is released, so that no process takes device memory or begins to
 * use a device that may be another one afterwards. Call it before the driver, without locks. */
void penstock_release_wait(const penstock_process *process);

/* Returns the time of the tenant's last release if it is after `since_ns`, otherwise 0. What began
 * at `since_ns` had ended by then. */
static inline uint64_t penstock_released_after(const penstock_process *process, uint64_t since_ns) {
  uint64_t ns =
      __atomic_load_n(&penstock_region_limits(&process->region)->released_ns, __ATOMIC_RELAXED);
  return __builtin_expect(ns > since_ns, 0) ? ns : 0;
}
