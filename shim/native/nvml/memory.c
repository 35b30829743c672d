/* Device memory as the tenant sees it: the total is its quota, and the used amount comes from the
 * ledger. */
#include "mechanism/ledger.h"

#include "driver.h"
#include "tenant.h"

static unsigned long long least(unsigned long long a, unsigned long long b) {
  return a < b ? a : b;
}

/* Free memory is what is left of the quota, but at most what is free on the device. It is 0 if the
 * quota was lowered below the use. */
static nvmlReturn_t tenant_memory(const penstock_region *region, unsigned grant,
                                  nvmlDevice_t device, nvmlMemory_t *memory) {
  nvmlMemory_t whole;
  nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, &whole);
  if (result != NVML_SUCCESS) return result;
  unsigned long long limit = penstock_ledger_limit(region, grant);
  unsigned long long used = penstock_ledger_total(region, grant);
  memory->total = least(limit, whole.total);
  memory->used = used;
  memory->free = least(used < memory->total ? memory->total - used : 0, whole.free);
  return NVML_SUCCESS;
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetMemoryInfo)(nvmlDevice_t device, nvmlMemory_t *memory) {
  GRANT_OR_REFUSE(region, grant, device);
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  return tenant_memory(region, (unsigned)grant, device, memory);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetMemoryInfo_v2)(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  GRANT_OR_REFUSE(region, grant, device);
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlMemory_t plain;
  nvmlReturn_t result = tenant_memory(region, (unsigned)grant, device, &plain);
  if (result != NVML_SUCCESS) return result;
  memory->total = plain.total;
  memory->reserved = 0; /* the driver's own reserve does not count for the tenant */
  memory->free = plain.free;
  memory->used = plain.used;
  return NVML_SUCCESS;
}
