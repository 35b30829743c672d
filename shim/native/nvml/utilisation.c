/* Utilisation as the tenant sees it: the samples of its own processes, and their sum as the
 * device's utilisation. */
#include <stdlib.h>
#include <time.h>

#include "driver.h"
#include "tenant.h"

#define ROOM_FOR_NEW 16
#define TRIES 8
/* window of device utilisation: the last second, which is the longest that real devices use */
#define LOOK_BACK_US 1000000

/* Allocates and returns the samples of all processes since `since_us`, or returns NOT_FOUND if
 * there are none. */
static nvmlReturn_t whole_samples(nvmlDevice_t device, unsigned long long since_us,
                                  nvmlProcessUtilizationSample_t **samples, unsigned *count) {
  unsigned capacity = 0;
  nvmlReturn_t result = REAL(nvmlDeviceGetProcessUtilization)(device, NULL, &capacity, since_us);
  if (result == NVML_SUCCESS) return NVML_ERROR_NOT_FOUND;
  for (int i = 0; i < TRIES && result == NVML_ERROR_INSUFFICIENT_SIZE; i++) {
    *count = capacity += ROOM_FOR_NEW;
    *samples = calloc(capacity, sizeof **samples);
    if (!*samples) return NVML_ERROR_MEMORY;
    result = REAL(nvmlDeviceGetProcessUtilization)(device, *samples, count, since_us);
    if (result == NVML_SUCCESS) return result;
    free(*samples);
    capacity = *count;
  }
  return result;
}

/* Moves the tenant's samples to the front of the array and returns how many there are. */
static unsigned keep_own(const penstock_region *region, nvmlProcessUtilizationSample_t *samples,
                         unsigned count) {
  penstock_nvml_members members = penstock_nvml_members_of(region);
  unsigned own = 0;
  for (unsigned i = 0; i < count; i++) {
    if (penstock_nvml_is_member(&members, samples[i].pid)) samples[own++] = samples[i];
  }
  return own;
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetProcessUtilization)(nvmlDevice_t device,
                                                        nvmlProcessUtilizationSample_t *out,
                                                        unsigned *count,
                                                        unsigned long long since_us) {
  GRANT_OR_REFUSE(region, grant, device);
  (void)grant;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  if (!out) return REAL(nvmlDeviceGetProcessUtilization)(device, out, count, since_us);
  nvmlProcessUtilizationSample_t *samples = NULL;
  unsigned all = 0, capacity = *count;
  nvmlReturn_t result = whole_samples(device, since_us, &samples, &all);
  if (result != NVML_SUCCESS) {
    if (result == NVML_ERROR_NOT_FOUND) *count = 0;
    return result;
  }
  *count = keep_own(region, samples, all);
  for (unsigned i = 0; i < *count && i < capacity; i++) out[i] = samples[i];
  free(samples);
  if (!*count) return NVML_ERROR_NOT_FOUND;
  return *count > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetProcessesUtilizationInfo)(
    nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
  GRANT_OR_REFUSE(region, grant, device);
  (void)grant;
  nvmlReturn_t result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
  if (result != NVML_SUCCESS || !info->procUtilArray) return result;
  penstock_nvml_members members = penstock_nvml_members_of(region);
  unsigned own = 0;
  for (unsigned i = 0; i < info->processSamplesCount; i++) {
    if (penstock_nvml_is_member(&members, info->procUtilArray[i].pid)) {
      info->procUtilArray[own++] = info->procUtilArray[i];
    }
  }
  info->processSamplesCount = own;
  return own ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static unsigned percent(unsigned sum) { return sum > 100 ? 100 : sum; }

/* Sums the newest sample of each of the tenant's processes. */
static void sum_newest(const nvmlProcessUtilizationSample_t *samples, unsigned count,
                       nvmlUtilization_t *rates) {
  unsigned busy = 0, memory = 0;
  for (unsigned i = 0; i < count; i++) {
    unsigned newer = 0;
    for (unsigned j = 0; j < count && !newer; j++) {
      newer = samples[j].pid == samples[i].pid &&
              (samples[j].timeStamp > samples[i].timeStamp ||
               (samples[j].timeStamp == samples[i].timeStamp && j > i));
    }
    if (newer) continue;
    busy += samples[i].smUtil;
    memory += samples[i].memUtil;
  }
  rates->gpu = percent(busy);
  rates->memory = percent(memory);
}

nvmlReturn_t HOOK_NAME(nvmlDeviceGetUtilizationRates)(nvmlDevice_t device,
                                                      nvmlUtilization_t *rates) {
  GRANT_OR_REFUSE(region, grant, device);
  (void)grant;
  if (!rates) return NVML_ERROR_INVALID_ARGUMENT;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  unsigned long long now_us =
      (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
  nvmlProcessUtilizationSample_t *samples = NULL;
  unsigned all = 0;
  nvmlReturn_t result = whole_samples(device, now_us - LOOK_BACK_US, &samples, &all);
  if (result == NVML_ERROR_NOT_FOUND) {
    rates->gpu = rates->memory = 0;
    return NVML_SUCCESS;
  }
  if (result != NVML_SUCCESS) return result;
  sum_newest(samples, keep_own(region, samples, all), rates);
  free(samples);
  return NVML_SUCCESS;
}
