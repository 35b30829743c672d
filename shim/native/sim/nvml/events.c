/* Events: XID errors, reported to event sets that were registered before the error occurred. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state.h"

#define LOOK_NS 5000000 /* period at which a waiting call checks for events */

struct nvmlEventSet_st {
  bool registered[SIM_MAX_DEVICES];
  /* number of XID errors that were delivered or occurred before registration */
  uint64_t seen[SIM_MAX_DEVICES];
};

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
  CHECK_INITIALISED(set);
  *set = calloc(1, sizeof **set);
  return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  CHECK_INITIALISED(set);
  free(set);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device,
                                                     unsigned long long *types) {
  CHECK_DEVICE(device, types);
  *types = nvmlEventTypeXidCriticalError;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                             nvmlEventSet_t set) {
  CHECK_DEVICE(device, set);
  if (types & ~(unsigned long long)nvmlEventTypeXidCriticalError) return NVML_ERROR_NOT_SUPPORTED;
  sim_device_info now;
  nvmlReturn_t result = sim_nvml_check_any(device, &now);
  if (result != NVML_SUCCESS) return result;
  if (!set->registered[device->index]) set->seen[device->index] = now.xid_count;
  set->registered[device->index] = true;
  return NVML_SUCCESS;
}

/* Takes the next event of a device. Returns false if there is none or the device is lost (see
 * `result`). */
static bool next_of(nvmlEventSet_t set, unsigned index, nvmlEventData_t *data,
                    nvmlReturn_t *result) {
  sim_device_info now;
  nvmlReturn_t state = sim_nvml_check_any(sim_nvml_device(index), &now);
  if (set->seen[index] < now.xid_count) {
    if (now.xid_count - set->seen[index] > SIM_XIDS) set->seen[index] = now.xid_count - SIM_XIDS;
    memset(data, 0, sizeof *data);
    data->device = sim_nvml_device(index);
    data->eventType = nvmlEventTypeXidCriticalError;
    data->eventData = now.xids[set->seen[index]++ % SIM_XIDS];
    data->gpuInstanceId = data->computeInstanceId = 0xffffffffu;
    return true;
  }
  if (state != NVML_SUCCESS) *result = state;
  return false;
}

static nvmlReturn_t look(nvmlEventSet_t set, nvmlEventData_t *data) {
  nvmlReturn_t result = NVML_ERROR_TIMEOUT;
  for (unsigned i = 0; i < sim_nvml_device_count(); i++) {
    if (set->registered[i] && next_of(set, i, data, &result)) return NVML_SUCCESS;
  }
  return result;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data,
                                        unsigned timeout_ms) {
  CHECK_INITIALISED(set && data);
  uint64_t end_ns = sim_now_ns() + (uint64_t)timeout_ms * 1000000;
  for (;;) {
    nvmlReturn_t result = look(set, data);
    if (result != NVML_ERROR_TIMEOUT || sim_now_ns() >= end_ns) return result;
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
  }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data,
                                     unsigned timeout_ms) {
  return nvmlEventSetWait_v2(set, data, timeout_ms);
}
