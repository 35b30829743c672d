/* Utilisation over sample periods, in whole percent, as coarse as the real library's.
 */
#include <stdlib.h>
#include <string.h>

#include "state.h"

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
  CHECK_UNDIVIDED(device, rates);
  sim_nvml_last_period(device, &rates->gpu, &rates->memory);
  return NVML_SUCCESS;
}

/* Engines that the simulated device lacks are never busy. */
static nvmlReturn_t idle_engine(nvmlDevice_t device, unsigned *percent, unsigned *period_us) {
  CHECK_DEVICE(device, percent && period_us);
  *percent = 0;
  *period_us = device->info.profile.sample_period_ns / 1000;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent,
                                                    unsigned *period_us) {
  return idle_engine(device, percent, period_us);
}

EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *percent,
                                                    unsigned *period_us) {
  return idle_engine(device, percent, period_us);
}

/* Reads the use by one process in the last sample period. Returns false if that period did not end
 * after `last_seen_us` or the process was idle in it. */
static bool sample_since(nvmlDevice_t device, int32_t pid, uint64_t last_seen_us,
                         nvmlProcessUtilizationSample_t *out) {
  sim_sample samples[SIM_SAMPLES];
  int count = sim_machine_samples(sim_nvml_machine(), device->index, pid, samples, SIM_SAMPLES);
  if (count < 2) return false;
  const sim_sample *last = &samples[count - 1], *before = &samples[count - 2];
  if (sim_nvml_timestamp_us(last->at_ns) <= last_seen_us) return false;
  uint64_t length_ns = last->at_ns - before->at_ns;
  uint64_t busy_ns = last->busy_ns - before->busy_ns;
  uint64_t memory_ns = last->memory_busy_ns - before->memory_busy_ns;
  if (!length_ns || (!busy_ns && !memory_ns)) return false;
  memset(out, 0, sizeof *out);
  out->pid = (unsigned)pid;
  out->timeStamp = sim_nvml_timestamp_us(last->at_ns);
  out->smUtil = (unsigned)(busy_ns * 100 / length_ns);
  out->memUtil = (unsigned)(memory_ns * 100 / length_ns);
  return true;
}

/* Collects one entry for each process that did something in the last sample period. The caller
 * frees the result. */
static nvmlReturn_t collect(nvmlDevice_t device, uint64_t last_seen_us,
                            nvmlProcessUtilizationSample_t **out, unsigned *count) {
  unsigned processes, found = 0;
  uint64_t at_ns;
  sim_process_record *records = sim_nvml_record(device, &processes, &at_ns);
  if (!records) return NVML_ERROR_MEMORY;
  nvmlProcessUtilizationSample_t *entries = calloc(processes + 1, sizeof *entries);
  for (unsigned i = 0; entries && i < processes; i++) {
    if (records[i].alive && sample_since(device, records[i].pid, last_seen_us, &entries[found])) {
      found++;
    }
  }
  free(records);
  if (!entries) return NVML_ERROR_MEMORY;
  *out = entries;
  *count = found;
  return NVML_SUCCESS;
}

/* Without a buffer, returns the required size: one entry of the ring for each living process. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                    nvmlProcessUtilizationSample_t *utilization,
                                                    unsigned *count,
                                                    unsigned long long last_seen_us) {
  CHECK_UNDIVIDED(device, count);
  nvmlProcessUtilizationSample_t *entries;
  unsigned found;
  nvmlReturn_t result = collect(device, last_seen_us, &entries, &found);
  if (result != NVML_SUCCESS) return result;
  if (!utilization) {
    *count = found > SIM_SAMPLES ? found : SIM_SAMPLES;
    result = NVML_ERROR_INSUFFICIENT_SIZE;
  } else if (!found) {
    *count = 0;
    result = NVML_ERROR_NOT_FOUND;
  } else if (found > *count) {
    *count = found;
    result = NVML_ERROR_INSUFFICIENT_SIZE;
  } else {
    memcpy(utilization, entries, found * sizeof *entries);
    *count = found;
  }
  free(entries);
  return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                          nvmlProcessesUtilizationInfo_t *info) {
  CHECK_UNDIVIDED(device, info);
  if (info->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlProcessUtilizationSample_t *entries;
  unsigned found;
  nvmlReturn_t result = collect(device, info->lastSeenTimeStamp, &entries, &found);
  if (result != NVML_SUCCESS) return result;
  if (!info->procUtilArray || info->processSamplesCount < found) {
    info->processSamplesCount = found > SIM_SAMPLES ? found : SIM_SAMPLES;
    result = NVML_ERROR_INSUFFICIENT_SIZE;
  } else {
    for (unsigned i = 0; i < found; i++) {
      info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){.timeStamp = entries[i].timeStamp,
                                                                 .pid = entries[i].pid,
                                                                 .smUtil = entries[i].smUtil,
                                                                 .memUtil = entries[i].memUtil};
    }
    info->processSamplesCount = found;
    if (!found) result = NVML_ERROR_NOT_FOUND;
  }
  free(entries);
  return result;
}

/* Returns the device's own ring of samples, one value per period. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                         unsigned long long last_seen_us,
                                         nvmlValueType_t *value_type, unsigned *count,
                                         nvmlSample_t *out) {
  CHECK_UNDIVIDED(device, value_type && count);
  if (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
  if (!out) {
    *count = SIM_SAMPLES;
    return NVML_SUCCESS;
  }
  sim_sample samples[SIM_SAMPLES];
  int present = sim_machine_samples(sim_nvml_machine(), device->index, 0, samples, SIM_SAMPLES);
  unsigned filled = 0;
  for (int i = 1; i < present && filled < *count; i++) {
    uint64_t timestamp_us = sim_nvml_timestamp_us(samples[i].at_ns);
    uint64_t length_ns = samples[i].at_ns - samples[i - 1].at_ns;
    if (timestamp_us <= last_seen_us || !length_ns) continue;
    uint64_t busy_ns = type == NVML_GPU_UTILIZATION_SAMPLES
                           ? samples[i].busy_ns - samples[i - 1].busy_ns
                           : samples[i].memory_busy_ns - samples[i - 1].memory_busy_ns;
    out[filled].timeStamp = timestamp_us;
    out[filled].sampleValue.ullVal = 0;
    out[filled].sampleValue.uiVal = (unsigned)(busy_ns * 100 / length_ns);
    filled++;
  }
  *count = filled;
  return filled ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
