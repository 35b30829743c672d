/* The tenant's view of devices. A tenant sees the devices that it was granted, numbered as in its
 * grant, and cannot find any others. Device handles are those of the real library. */
#include <string.h>

#include "driver.h"
#include "tenant.h"

nvmlReturn_t HOOK_NAME(nvmlInit)(void) {
  TENANT_OR_REFUSE(region);
  (void)region;
  return REAL(nvmlInit)();
}

nvmlReturn_t HOOK_NAME(nvmlInit_v2)(void) {
  TENANT_OR_REFUSE(region);
  (void)region;
  return REAL(nvmlInit_v2)();
}

nvmlReturn_t HOOK_NAME(nvmlInitWithFlags)(unsigned flags) {
  TENANT_OR_REFUSE(region);
  (void)region;
  return REAL(nvmlInitWithFlags)(flags);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetCount_v2)(unsigned *count) {
  TENANT_OR_REFUSE(region);
  nvmlReturn_t result = REAL(nvmlDeviceGetCount_v2)(count);
  if (result == NVML_SUCCESS) *count = penstock_region_device_count(region);
  return result;
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetCount)(unsigned *count) {
  return HOOK_NAME(nvmlDeviceGetCount_v2)(count);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetHandleByIndex_v2)(unsigned index, nvmlDevice_t *device) {
  TENANT_OR_REFUSE(region);
  if (!device || index >= penstock_region_device_count(region)) {
    unsigned count; /* unused; the call returns the error of an uninitialised library */
    nvmlReturn_t result = REAL(nvmlDeviceGetCount_v2)(&count);
    return result == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : result;
  }
  return penstock_nvml_granted(region, index, device);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetHandleByIndex)(unsigned index, nvmlDevice_t *device) {
  return HOOK_NAME(nvmlDeviceGetHandleByIndex_v2)(index, device);
}

/* Finishes a lookup by name: returns handles of granted devices only. */
static nvmlReturn_t only_granted(const penstock_region *region, nvmlReturn_t result,
                                 nvmlDevice_t *device) {
  if (result != NVML_SUCCESS || penstock_nvml_grant_of(region, *device) >= 0) return result;
  unsigned is_mig = 0;
  nvmlDevice_t parent;
  if (REAL(nvmlDeviceIsMigDeviceHandle)(*device, &is_mig) == NVML_SUCCESS && is_mig &&
      REAL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(*device, &parent) == NVML_SUCCESS &&
      penstock_nvml_grant_of(region, parent) >= 0) {
    return result; /* the handle belongs to a part of a granted device */
  }
  *device = NULL;
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetHandleByUUID)(const char *uuid, nvmlDevice_t *device) {
  TENANT_OR_REFUSE(region);
  return only_granted(region, REAL(nvmlDeviceGetHandleByUUID)(uuid, device), device);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetHandleByUUIDV)(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
  TENANT_OR_REFUSE(region);
  return only_granted(region, REAL(nvmlDeviceGetHandleByUUIDV)(uuid, device), device);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetHandleBySerial)(const char *serial, nvmlDevice_t *device) {
  TENANT_OR_REFUSE(region);
  return only_granted(region, REAL(nvmlDeviceGetHandleBySerial)(serial, device), device);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetHandleByPciBusId)(const char *bus_id, nvmlDevice_t *device) {
  TENANT_OR_REFUSE(region);
  return only_granted(region, REAL(nvmlDeviceGetHandleByPciBusId)(bus_id, device), device);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetHandleByPciBusId_v2)(const char *bus_id, nvmlDevice_t *device) {
  TENANT_OR_REFUSE(region);
  return only_granted(region, REAL(nvmlDeviceGetHandleByPciBusId_v2)(bus_id, device), device);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetIndex)(nvmlDevice_t device, unsigned *index) {
  TENANT_OR_REFUSE(region);
  nvmlReturn_t result = REAL(nvmlDeviceGetIndex)(device, index);
  int grant = result == NVML_SUCCESS ? penstock_nvml_grant_of(region, device) : -1;
  if (grant >= 0) *index = (unsigned)grant;
  return result; /* the index of a MIG device counts within its parent device */
}

/* Reduces a list of handles to the granted devices. If the caller passes no buffer, or one that is
 * too small, it receives the real library's count, which is never too small. */
static nvmlReturn_t filter_handles(const penstock_region *region, nvmlReturn_t result,
                                   unsigned *count, nvmlDevice_t *devices) {
  if (result != NVML_SUCCESS || !devices) return result;
  unsigned kept = 0;
  for (unsigned i = 0; i < *count; i++) {
    if (penstock_nvml_grant_of(region, devices[i]) >= 0) devices[kept++] = devices[i];
  }
  *count = kept;
  return result;
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetTopologyNearestGpus)(nvmlDevice_t device,
                                                         nvmlGpuTopologyLevel_t level,
                                                         unsigned *count, nvmlDevice_t *devices) {
  TENANT_OR_REFUSE(region);
  nvmlReturn_t result = REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, count, devices);
  return filter_handles(region, result, count, devices);
}

nvmlReturn_t HOOK_NAME(nvmlSystemGetTopologyGpuSet)(unsigned cpu, unsigned *count,
                                                    nvmlDevice_t *devices) {
  TENANT_OR_REFUSE(region);
  nvmlReturn_t result = REAL(nvmlSystemGetTopologyGpuSet)(cpu, count, devices);
  return filter_handles(region, result, count, devices);
}

nvmlReturn_t HOOK_NAME(nvmlUnitGetDevices)(nvmlUnit_t unit, unsigned *count,
                                           nvmlDevice_t *devices) {
  TENANT_OR_REFUSE(region);
  nvmlReturn_t result = REAL(nvmlUnitGetDevices)(unit, count, devices);
  return filter_handles(region, result, count, devices);
}
