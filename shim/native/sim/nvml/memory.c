/* Device memory: in the real library's two ways of counting what the driver keeps for itself. */
#include "state.h"

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  CHECK_DEVICE(device, memory);
  sim_device_usage usage;
  if (sim_machine_usage(sim_nvml_machine(), device->index, &usage) < 0) return NVML_ERROR_UNKNOWN;
  memory->total = usage.memory_total_bytes;
  memory->used = usage.memory_used_bytes; /* what the driver reserves counts as used */
  memory->free = usage.memory_total_bytes - usage.memory_used_bytes;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  CHECK_DEVICE(device, memory);
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlMemory_t plain;
  nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &plain);
  if (result != NVML_SUCCESS) return result;
  memory->total = plain.total;
  memory->reserved = device->info.profile.reserved_bytes;
  memory->free = plain.free;
  memory->used = plain.used - memory->reserved;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned *bits) {
  CHECK_DEVICE(device, bits);
  *bits = device->info.profile.memory_bus_bits;
  return NVML_SUCCESS;
}
