/* CUDA_VISIBLE_DEVICES, which selects the granted devices that the driver shows to this process.
 *
 * In a tenant, an index in CUDA_VISIBLE_DEVICES is an index in the grant, which is also how NVML
 * numbers the devices there, and no value selects a device that was not granted. The driver reads
 * the variable in cuInit. During that call it contains the UUIDs of granted devices; afterwards it
 * has its former value. */
#pragma once

#include "process/process.h"

/* Call `begin` before the driver's cuInit and `end` after it; several threads may do so at the same
 * time. Pass the result of `begin` to `end`. `initialised` is true if cuInit succeeded, after which
 * the driver never reads the variable again. */
bool penstock_visible_begin(const penstock_process *process);
void penstock_visible_end(bool changed, bool initialised);
