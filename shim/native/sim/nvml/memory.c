/* Device memory, in both versions of the real library's figures, which differ in how they count the
 * driver's own memory. */
#include <stddef.h>

#include "state.h"

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  sim_device_info now;
  nvmlReturn_t result = sim_nvml_check_any(device, &now);
  if (result != NVML_SUCCESS) return result;
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  if (device->instance) { /* no work runs on a MIG instance */
    uint64_t bytes = now.mig[device->instance - 1].memory_bytes;
    *memory = (nvmlMemory_t){.total = bytes, .free = bytes};
    return NVML_SUCCESS;
  }
  sim_device_usage usage;
  if (sim_machine_usage(sim_nvml_machine(), device->index, &usage) < 0) return NVML_ERROR_UNKNOWN;
  memory->total = usage.memory_total_bytes;
  memory->used = usage.memory_used_bytes; /* includes the memory that the driver reserves */
  memory->free = usage.memory_total_bytes - usage.memory_used_bytes;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  nvmlReturn_t result = sim_nvml_check_any(device, NULL);
  if (result != NVML_SUCCESS) return result;
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlMemory_t plain;
  result = nvmlDeviceGetMemoryInfo(device, &plain);
  if (result != NVML_SUCCESS) return result;
  memory->total = plain.total;
  memory->reserved = device->instance ? 0 : device->info.profile.reserved_bytes;
  memory->free = plain.free;
  memory->used = plain.used - memory->reserved;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned *bits) {
  CHECK_DEVICE(device, bits);
  *bits = device->info.profile.memory_bus_bits;
  return NVML_SUCCESS;
}
