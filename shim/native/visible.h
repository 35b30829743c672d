/* Which devices the driver shows this process: of the granted ones, those that the program asks
 * for.
 *
 * In a tenant an index in CUDA_VISIBLE_DEVICES is a place in the grant, as NVML numbers them there;
 * a device that was not granted is named by nothing. The driver reads the variable in cuInit, so
 * while it is there it finds UUIDs of granted devices; then the variable is as it was.
 */
#pragma once

#include "process.h"

/* Around the driver's cuInit, also by several threads at once: what `begin` answered goes to `end`,
 * with whether the driver is initialised now (it reads the variable no more). */
bool penstock_visible_begin(const penstock_process *process);
void penstock_visible_end(bool changed, bool initialised);
