/* Where memory lies that an API names a location for, whatever context is current. */
#pragma once

#include <cuda.h>
#include <stdbool.h>

bool penstock_location_is_host(const CUmemLocation *location);

/* Host memory is free of charge. Of managed memory the location is a preference: its pages go to
 * the device whose kernels touch them. */
bool penstock_location_is_free(const CUmemLocation *location, CUmemAllocationType type);

/* The device of a location that is not the host; where it names none (managed pools), the current
 * context's, else the first. */
CUdevice penstock_location_device(const CUmemLocation *location);

/* False for a device ordinal that does not exist: the driver's own error is due, not ours. */
bool penstock_location_exists(const CUmemLocation *location);
