/* The board: power, temperature, clocks and modes. Limits and clocks come from the profile. Power,
 * energy and temperature are only modelled from how busy the device was: 15 % of the power limit
 * when idle, and the rest in proportion. Functions for features that a passively cooled data-centre
 * board lacks return "not supported".
 */
#include <string.h>

#include "state.h"

#define IDLE_POWER_PERCENT 15
#define IDLE_CELSIUS 30
#define BUSY_CELSIUS 75
#define SLOWDOWN_CELSIUS 87
#define SHUTDOWN_CELSIUS 92

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
  CHECK_DEVICE(device, milliwatts);
  unsigned busy, memory;
  sim_nvml_last_period(device, &busy, &memory);
  uint64_t percent = IDLE_POWER_PERCENT + busy * (100 - IDLE_POWER_PERCENT) / 100;
  *milliwatts = (unsigned)(device->info.profile.power_limit_mw * percent / 100);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                        unsigned long long *millijoules) {
  CHECK_DEVICE(device, millijoules);
  sim_device_usage usage;
  if (sim_machine_usage(sim_nvml_machine(), device->index, &usage) < 0) return NVML_ERROR_UNKNOWN;
  uint64_t percent_us = (usage.at_ns - usage.created_ns) / 1000 * IDLE_POWER_PERCENT +
                        usage.busy_ns / 1000 * (100 - IDLE_POWER_PERCENT);
  *millijoules = (uint64_t)(1e-8 * (double)percent_us * device->info.profile.power_limit_mw);
  return NVML_SUCCESS;
}

static nvmlReturn_t power_limit(nvmlDevice_t device, unsigned *milliwatts) {
  CHECK_DEVICE(device, milliwatts);
  *milliwatts = device->info.profile.power_limit_mw;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *milliwatts) {
  return power_limit(device, milliwatts);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *limit) {
  return power_limit(device, limit);
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts) {
  return power_limit(device, milliwatts);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
  CHECK_DEVICE(device, mode);
  *mode = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

static unsigned celsius_of(nvmlDevice_t device) {
  unsigned busy, memory;
  sim_nvml_last_period(device, &busy, &memory);
  return IDLE_CELSIUS + busy * (BUSY_CELSIUS - IDLE_CELSIUS) / 100;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                             unsigned *celsius) {
  CHECK_DEVICE(device, celsius);
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  *celsius = celsius_of(device);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
  CHECK_DEVICE(device, temperature);
  if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (temperature->sensorType != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  temperature->temperature = (int)celsius_of(device);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device,
                                                      nvmlTemperatureThresholds_t threshold,
                                                      unsigned *celsius) {
  CHECK_DEVICE(device, celsius);
  if (threshold == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN) {
    *celsius = SHUTDOWN_CELSIUS;
  } else if (threshold == NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) {
    *celsius = SLOWDOWN_CELSIUS;
  } else {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                              unsigned *mhz) {
  CHECK_DEVICE(device, mhz);
  if (type >= NVML_CLOCK_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  const sim_profile *profile = &device->info.profile;
  *mhz = (type == NVML_CLOCK_MEM ? profile->memory_clock_khz : profile->sm_clock_khz) / 1000;
  return NVML_SUCCESS;
}

/* The simulated device always runs at its maximum clocks. */
EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                           unsigned *mhz) {
  return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id,
                                       unsigned *mhz) {
  CHECK_DEVICE(device, mhz);
  if (id != NVML_CLOCK_ID_CURRENT) return NVML_ERROR_NOT_SUPPORTED;
  return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *state) {
  CHECK_DEVICE(device, state);
  *state = NVML_PSTATE_0;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t *state) {
  return nvmlDeviceGetPerformanceState(device, state);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                           unsigned long long *reasons) {
  CHECK_DEVICE(device, reasons);
  unsigned busy, memory;
  sim_nvml_last_period(device, &busy, &memory);
  *reasons = busy ? nvmlClocksEventReasonNone : nvmlClocksEventReasonGpuIdle;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                              unsigned long long *reasons) {
  return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
  CHECK_DEVICE(device, mode);
  *mode = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

static nvmlReturn_t no_display(nvmlDevice_t device, nvmlEnableState_t *state) {
  CHECK_DEVICE(device, state);
  *state = NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *display) {
  return no_display(device, display);
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *active) {
  return no_display(device, active);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode) {
  CHECK_DEVICE(device, mode);
  *mode = NVML_COMPUTEMODE_DEFAULT;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
                                         nvmlEnableState_t *pending) {
  CHECK_DEVICE(device, current && pending);
  *current = *pending = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                                nvmlEccCounterType_t counter,
                                                unsigned long long *errors) {
  CHECK_DEVICE(device, errors);
  if (type >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *errors = 0;
  return NVML_SUCCESS;
}

/* Each field has a result of its own. Only the recovery action, which says whether a reset would
 * repair the device, is supported. */
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count,
                                             nvmlFieldValue_t *values) {
  CHECK_DEVICE(device, values);
  if (count <= 0) return NVML_ERROR_INVALID_ARGUMENT;
  sim_device_info now;
  nvmlReturn_t result = sim_nvml_check_any(device, &now);
  if (result != NVML_SUCCESS) return result;
  for (int i = 0; i < count; i++) {
    values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    if (values[i].fieldId != NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) continue;
    values[i].nvmlReturn = NVML_SUCCESS;
    values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    values[i].value.uiVal =
        now.wants_reset ? NVML_GPU_RECOVERY_ACTION_GPU_RESET : NVML_GPU_RECOVERY_ACTION_NONE;
  }
  return NVML_SUCCESS;
}
