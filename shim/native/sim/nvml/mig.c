/* MIG: a divided device and its instances. They are only listed; no work runs on them. */
#include <string.h>

#include "state.h"

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig) {
  nvmlReturn_t result = sim_nvml_check_any(device, NULL);
  if (result != NVML_SUCCESS) return result;
  if (!is_mig) return NVML_ERROR_INVALID_ARGUMENT;
  *is_mig = device->instance != 0;
  return NVML_SUCCESS;
}

/* A device that is not divided reports the same as one that cannot be divided. */
EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current,
                                         unsigned *pending) {
  CHECK_DEVICE(device, current && pending);
  sim_device_info now;
  nvmlReturn_t result = sim_nvml_check_any(device, &now);
  if (result != NVML_SUCCESS) return result;
  if (!now.mig_count) return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = NVML_DEVICE_MIG_ENABLE;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
  CHECK_DEVICE(device, count);
  sim_device_info now;
  nvmlReturn_t result = sim_nvml_check_any(device, &now);
  *count = now.mig_count ? SIM_MIG_INSTANCES : 0;
  return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
                                                        nvmlDevice_t *instance) {
  CHECK_DEVICE(device, instance);
  sim_device_info now;
  nvmlReturn_t result = sim_nvml_check_any(device, &now);
  if (result != NVML_SUCCESS) return result;
  if (index >= SIM_MIG_INSTANCES) return NVML_ERROR_INVALID_ARGUMENT;
  if (index >= now.mig_count) return NVML_ERROR_NOT_FOUND;
  *instance = sim_nvml_instance(device->index, index + 1);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance,
                                                                 nvmlDevice_t *device) {
  nvmlReturn_t result = sim_nvml_check_any(instance, NULL);
  if (result != NVML_SUCCESS) return result;
  if (!instance->instance || !device) return NVML_ERROR_INVALID_ARGUMENT;
  *device = sim_nvml_device(instance->index);
  return NVML_SUCCESS;
}

/* A GPU instance contains a single compute instance, which has all of it. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id) {
  nvmlReturn_t result = sim_nvml_check_any(device, NULL);
  if (result != NVML_SUCCESS) return result;
  if (!device->instance) return NVML_ERROR_NOT_SUPPORTED;
  if (!id) return NVML_ERROR_INVALID_ARGUMENT;
  *id = device->instance;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id) {
  nvmlReturn_t result = nvmlDeviceGetGpuInstanceId(device, id);
  if (result == NVML_SUCCESS) *id = 0;
  return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device,
                                               nvmlDeviceAttributes_t *attributes) {
  sim_device_info now;
  nvmlReturn_t result = sim_nvml_check_any(device, &now);
  if (result != NVML_SUCCESS) return result;
  if (!device->instance) return NVML_ERROR_NOT_SUPPORTED;
  if (!attributes) return NVML_ERROR_INVALID_ARGUMENT;
  const sim_mig *mig = &now.mig[device->instance - 1];
  memset(attributes, 0, sizeof *attributes);
  attributes->multiprocessorCount = mig->sm_count;
  attributes->gpuInstanceSliceCount = attributes->computeInstanceSliceCount = mig->slices;
  attributes->memorySizeMB = mig->memory_bytes >> 20;
  return NVML_SUCCESS;
}
