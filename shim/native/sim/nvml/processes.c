/* The processes that have a context on a device, and the memory that each uses. */
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define NO_INSTANCE 0xffffffffu /* the value for "no MIG instance" */

/* Lists processes. The versions of the entry differ in the fields after `usedGpuMemory`. */
static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned *count, void *infos,
                                   size_t entry_bytes) {
  nvmlReturn_t result = sim_nvml_check_any(device, NULL);
  if (result != NVML_SUCCESS) return result;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned seen, found = 0, capacity = *count;
  uint64_t at_ns;
  if (device->instance) { /* no work runs on a MIG instance */
    *count = 0;
    return NVML_SUCCESS;
  }
  sim_process_record *records = sim_nvml_record(device, &seen, &at_ns);
  if (!records) return NVML_ERROR_MEMORY;
  for (unsigned i = 0; i < seen; i++) {
    if (!records[i].alive || !records[i].memory_bytes) continue;
    if (found < capacity && infos) {
      nvmlProcessInfo_v2_t entry = {(unsigned)records[i].pid, records[i].memory_bytes, NO_INSTANCE,
                                    NO_INSTANCE};
      memcpy((char *)infos + found * entry_bytes, &entry, entry_bytes);
    }
    found++;
  }
  free(records);
  *count = found;
  if (found > capacity) return NVML_ERROR_INSUFFICIENT_SIZE;
  return found && !infos ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                         nvmlProcessInfo_v1_t *infos) {
  return list_processes(device, count, infos, sizeof *infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                            nvmlProcessInfo_v2_t *infos) {
  return list_processes(device, count, infos, sizeof *infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                            nvmlProcessInfo_t *infos) {
  return list_processes(device, count, infos, sizeof *infos);
}

/* Returns an empty list, because a simulated device has no graphics contexts and no MPS server. */
static nvmlReturn_t list_none(nvmlDevice_t device, unsigned *count) {
  CHECK_DEVICE(device, count);
  *count = 0;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                          nvmlProcessInfo_v1_t *infos) {
  (void)infos;
  return list_none(device, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                             nvmlProcessInfo_v2_t *infos) {
  (void)infos;
  return list_none(device, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                             nvmlProcessInfo_t *infos) {
  (void)infos;
  return list_none(device, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                            nvmlProcessInfo_v1_t *infos) {
  (void)infos;
  return list_none(device, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                               nvmlProcessInfo_v2_t *infos) {
  (void)infos;
  return list_none(device, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                               nvmlProcessInfo_t *infos) {
  (void)infos;
  return list_none(device, count);
}

/* Fills in the list if it has room for all processes, or else returns their number and
 * INSUFFICIENT_SIZE. */
EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                          nvmlProcessDetailList_t *list) {
  CHECK_DEVICE(device, list);
  if (list->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (list->mode >= NVML_PROCESS_MODE_MAX) return NVML_ERROR_INVALID_ARGUMENT;
  bool compute = list->mode == NVML_PROCESS_MODE_COMPUTE || list->mode == NVML_PROCESS_MODE_ALL;
  unsigned capacity = list->procArray ? list->numProcArrayEntries : 0, count = 0;
  nvmlProcessInfo_t *infos = calloc(capacity + 1, sizeof *infos);
  if (!infos) return NVML_ERROR_MEMORY;
  count = capacity;
  nvmlReturn_t result =
      compute ? list_processes(device, &count, infos, sizeof *infos) : list_none(device, &count);
  for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++) {
    list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = infos[i].pid,
                                                  .usedGpuMemory = infos[i].usedGpuMemory,
                                                  .gpuInstanceId = NO_INSTANCE,
                                                  .computeInstanceId = NO_INSTANCE};
  }
  free(infos);
  list->numProcArrayEntries = count;
  return result;
}
