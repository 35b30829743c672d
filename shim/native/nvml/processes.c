/* Process lists: the driver's own, of which the tenant sees its own processes. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "tenant.h"

#define ROOM_FOR_NEW 16 /* processes that may start between two calls */
#define TRIES 8

/* Every version of these functions has this form; entries begin with the pid. */
typedef nvmlReturn_t (*list_function)(nvmlDevice_t, unsigned *, void *);

/* The driver's whole list, allocated; its own error otherwise. */
static nvmlReturn_t whole_list(list_function list, nvmlDevice_t device, size_t entry_bytes,
                               unsigned *count, char **entries) {
  unsigned capacity = 0;
  nvmlReturn_t result = list(device, &capacity, NULL);
  for (int i = 0; i < TRIES; i++) {
    *entries = NULL;
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) return result;
    *count = capacity += ROOM_FOR_NEW;
    *entries = calloc(capacity, entry_bytes);
    if (!*entries) return NVML_ERROR_MEMORY;
    result = list(device, count, *entries);
    if (result == NVML_SUCCESS) return result;
    free(*entries);
    capacity = *count;
  }
  return result;
}

/* Copies the tenant's entries to the caller, in NVML's manner: `*count` is how many there are. */
static nvmlReturn_t list_own(list_function list, nvmlDevice_t device, unsigned *count, void *infos,
                             size_t entry_bytes) {
  GRANT_OR_REFUSE(region, grant, device);
  (void)grant;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned all = 0, own = 0, capacity = infos ? *count : 0;
  char *entries;
  nvmlReturn_t result = whole_list(list, device, entry_bytes, &all, &entries);
  if (result != NVML_SUCCESS) return result;
  penstock_nvml_members members = penstock_nvml_members_of(region);
  for (unsigned i = 0; i < all; i++) {
    unsigned pid;
    memcpy(&pid, entries + i * entry_bytes, sizeof pid);
    if (!penstock_nvml_is_member(&members, pid)) continue;
    if (own < capacity) {
      memcpy((char *)infos + own * entry_bytes, entries + i * entry_bytes, entry_bytes);
    }
    own++;
  }
  free(entries);
  *count = own;
  return own > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESS_LIST(function, entry)                                                    \
  nvmlReturn_t HOOK_NAME(function)(nvmlDevice_t device, unsigned *count, entry *infos) { \
    return list_own((list_function)REAL(function), device, count, infos, sizeof(entry)); \
  }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

nvmlReturn_t HOOK_NAME(nvmlDeviceGetRunningProcessDetailList)(nvmlDevice_t device,
                                                              nvmlProcessDetailList_t *list) {
  GRANT_OR_REFUSE(region, grant, device);
  (void)grant;
  nvmlReturn_t result = REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);
  if (result != NVML_SUCCESS || !list->procArray) return result;
  penstock_nvml_members members = penstock_nvml_members_of(region);
  unsigned own = 0;
  for (unsigned i = 0; i < list->numProcArrayEntries; i++) {
    if (penstock_nvml_is_member(&members, list->procArray[i].pid)) {
      list->procArray[own++] = list->procArray[i];
    }
  }
  list->numProcArrayEntries = own;
  return result;
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetAccountingPids)(nvmlDevice_t device, unsigned *count,
                                                    unsigned *pids) {
  return list_own((list_function)REAL(nvmlDeviceGetAccountingPids), device, count, pids,
                  sizeof *pids);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetAccountingStats)(nvmlDevice_t device, unsigned pid,
                                                     nvmlAccountingStats_t *stats) {
  GRANT_OR_REFUSE(region, grant, device);
  (void)grant;
  penstock_nvml_members members = penstock_nvml_members_of(region);
  if (!penstock_nvml_is_member(&members, pid)) return NVML_ERROR_NOT_FOUND;
  return REAL(nvmlDeviceGetAccountingStats)(device, pid, stats);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetAccountingStats_v2)(nvmlDevice_t device,
                                                        nvmlAccountingStats_v2_t *stats) {
  GRANT_OR_REFUSE(region, grant, device);
  (void)grant;
  if (!stats) return NVML_ERROR_INVALID_ARGUMENT;
  penstock_nvml_members members = penstock_nvml_members_of(region);
  if (!penstock_nvml_is_member(&members, stats->pid)) return NVML_ERROR_NOT_FOUND;
  return REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
}
