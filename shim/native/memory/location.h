/* Meaning of a CUmemLocation: host memory or a device. */
#pragma once

#include <cuda.h>
#include <stdbool.h>

bool penstock_location_is_host(const CUmemLocation *location);

/* Returns true for host memory, which is not charged. For managed memory the location is only a
 * preference, because its pages move to the device whose kernels touch them, so it is always
 * charged. */
bool penstock_location_is_free(const CUmemLocation *location, CUmemAllocationType type);

/* Returns the device of a location that is not the host. A location that names no device (of a
 * managed pool) means the current context's device or, without a context, device 0. */
CUdevice penstock_location_device(const CUmemLocation *location);

/* Returns false for a device ordinal that does not exist, for which the driver then returns the
 * error. */
bool penstock_location_exists(const CUmemLocation *location);
