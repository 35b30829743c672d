/* Accounting: totals over the lifetime of a process, from the machine's record. The simulated
 * device always keeps that record, so accounting mode is on and cannot be turned off. */
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define ACCOUNTED_PROCESSES 4000 /* the same number as on real devices */

EXPORT nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
  CHECK_DEVICE(device, mode);
  *mode = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, nvmlEnableState_t mode) {
  CHECK_DEVICE(device, device);
  return mode == NVML_FEATURE_ENABLED ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned *size) {
  CHECK_DEVICE(device, size);
  *size = ACCOUNTED_PROCESSES;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count,
                                                unsigned *pids) {
  CHECK_DEVICE(device, count);
  unsigned seen, capacity = *count;
  uint64_t at_ns;
  sim_process_record *records = sim_nvml_record(device, &seen, &at_ns);
  if (!records) return NVML_ERROR_MEMORY;
  unsigned first = seen > ACCOUNTED_PROCESSES ? seen - ACCOUNTED_PROCESSES : 0;
  for (unsigned i = first; pids && i < seen && i - first < capacity; i++) {
    pids[i - first] = (unsigned)records[i].pid;
  }
  free(records);
  *count = seen - first;
  if (*count > capacity) return NVML_ERROR_INSUFFICIENT_SIZE;
  return *count && !pids ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

/* Finds the record of the latest process with this pid. */
static nvmlReturn_t find_record(nvmlDevice_t device, unsigned pid, sim_process_record *out,
                                uint64_t *at_ns) {
  unsigned seen;
  bool found = false;
  memset(out, 0, sizeof *out);
  sim_process_record *records = sim_nvml_record(device, &seen, at_ns);
  if (!records) return NVML_ERROR_MEMORY;
  for (unsigned i = 0; i < seen; i++) {
    if ((unsigned)records[i].pid != pid || (found && records[i].began_ns < out->began_ns)) continue;
    *out = records[i];
    found = true;
  }
  free(records);
  return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static uint64_t life_ns(const sim_process_record *record, uint64_t at_ns) {
  uint64_t end_ns = record->alive ? at_ns : record->ended_ns;
  return end_ns > record->began_ns ? end_ns - record->began_ns : 1;
}

static unsigned busy_percent(const sim_process_record *record, uint64_t at_ns) {
  return (unsigned)(record->busy_ns * 100 / life_ns(record, at_ns));
}

/* Returns the lifetime of an ended process in milliseconds, 0 while it is alive. */
static uint64_t active_ms(const sim_process_record *record, uint64_t at_ns) {
  return record->alive ? 0 : life_ns(record, at_ns) / 1000000;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid,
                                                 nvmlAccountingStats_t *stats) {
  CHECK_DEVICE(device, stats);
  sim_process_record record;
  uint64_t at_ns;
  nvmlReturn_t result = find_record(device, pid, &record, &at_ns);
  if (result != NVML_SUCCESS) return result;
  memset(stats, 0, sizeof *stats);
  stats->gpuUtilization = busy_percent(&record, at_ns);
  /* the machine's record does not contain it */
  stats->memoryUtilization = (unsigned)NVML_VALUE_NOT_AVAILABLE;
  stats->maxMemoryUsage = record.peak_memory_bytes;
  stats->time = active_ms(&record, at_ns);
  stats->startTime = sim_nvml_timestamp_us(record.began_ns);
  stats->isRunning = record.alive;
  return NVML_SUCCESS;
}

/* Returns sums of samples: `sumGpuUtil` grows by the process's share of each sample period, in
 * units of 0.01 %. */
EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device,
                                                    nvmlAccountingStats_v2_t *stats) {
  CHECK_DEVICE(device, stats);
  sim_process_record record;
  uint64_t at_ns, period_ns = device->info.profile.sample_period_ns;
  unsigned pid = stats->pid;
  nvmlReturn_t result = find_record(device, pid, &record, &at_ns);
  if (result != NVML_SUCCESS) return result;
  memset(stats, 0, sizeof *stats);
  stats->pid = pid;
  stats->isRunning = record.alive;
  stats->gpuUtilization = busy_percent(&record, at_ns);
  stats->memoryUtilization = (unsigned)NVML_VALUE_NOT_AVAILABLE;
  stats->maxMemoryUsage = record.peak_memory_bytes;
  stats->sampleCount = (unsigned)(life_ns(&record, at_ns) / period_ns);
  stats->sumGpuUtil = record.busy_ns * 10000 / period_ns;
  stats->time = active_ms(&record, at_ns);
  stats->startTime = sim_nvml_timestamp_us(record.began_ns);
  return NVML_SUCCESS;
}
