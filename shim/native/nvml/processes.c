/* Process lists: the driver's lists, reduced to the tenant's own processes. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "tenant.h"

#define ROOM_FOR_NEW 16 /* room for processes that start between two calls */
#define TRIES 8

/* Every version of these functions has this signature, and every list entry begins with the pid. */
typedef nvmlReturn_t (*list_function)(nvmlDevice_t, unsigned *, void *);

/* Allocates and returns the driver's whole list, or returns its error. */
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

/* Copies the entries of the tenant's processes to the caller. As in NVML, `*count` receives the
 * total number of entries. */
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

/* Fetches the driver's whole list of `all->mode` into an allocated array, which is NULL if the list
 * is empty. */
static nvmlReturn_t whole_details(nvmlDevice_t device, nvmlProcessDetailList_t *all) {
  all->procArray = NULL;
  all->numProcArrayEntries = 0;
  nvmlReturn_t result = REAL(nvmlDeviceGetRunningProcessDetailList)(device, all);
  for (int i = 0; i < TRIES && result == NVML_ERROR_INSUFFICIENT_SIZE; i++) {
    free(all->procArray);
    all->numProcArrayEntries += ROOM_FOR_NEW;
    all->procArray = calloc(all->numProcArrayEntries, sizeof *all->procArray);
    if (!all->procArray) return NVML_ERROR_MEMORY;
    result = REAL(nvmlDeviceGetRunningProcessDetailList)(device, all);
  }
  return result;
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetRunningProcessDetailList)(nvmlDevice_t device,
                                                              nvmlProcessDetailList_t *list) {
  GRANT_OR_REFUSE(region, grant, device);
  (void)grant;
  if (!list) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlProcessDetailList_t all = *list;
  nvmlReturn_t result = whole_details(device, &all);
  penstock_nvml_members members = penstock_nvml_members_of(region);
  unsigned own = 0, capacity = list->procArray ? list->numProcArrayEntries : 0;
  for (unsigned i = 0; result == NVML_SUCCESS && i < all.numProcArrayEntries; i++) {
    if (!all.procArray || !penstock_nvml_is_member(&members, all.procArray[i].pid)) continue;
    if (own < capacity) list->procArray[own] = all.procArray[i];
    own++;
  }
  free(all.procArray);
  if (result != NVML_SUCCESS) return result;
  list->numProcArrayEntries = own;
  return own > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t HOOK_NAME(nvmlSystemGetProcessName)(unsigned pid, char *name, unsigned length) {
  TENANT_OR_REFUSE(region);
  penstock_nvml_members members = penstock_nvml_members_of(region);
  if (!penstock_nvml_is_member(&members, pid)) {
    unsigned count; /* unused; the call returns the error of an uninitialised library */
    nvmlReturn_t result = REAL(nvmlDeviceGetCount_v2)(&count);
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
  }
  return REAL(nvmlSystemGetProcessName)(pid, name, length);
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
