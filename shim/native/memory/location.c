#include "memory/location.h"

#include "loading/driver.h"

bool penstock_location_is_host(const CUmemLocation *location) {
  return location->type == CU_MEM_LOCATION_TYPE_HOST ||
         location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

bool penstock_location_is_free(const CUmemLocation *location, CUmemAllocationType type) {
  return type != CU_MEM_ALLOCATION_TYPE_MANAGED && penstock_location_is_host(location);
}

CUdevice penstock_location_device(const CUmemLocation *location) {
  CUdevice device = 0;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return location->id;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) {
    return location->localized.deviceId;
  }
  REAL(cuCtxGetDevice)(&device);
  return device;
}

bool penstock_location_exists(const CUmemLocation *location) {
  int count = 0;
  CUdevice device = penstock_location_device(location);
  return REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS && device >= 0 && device < count;
}
