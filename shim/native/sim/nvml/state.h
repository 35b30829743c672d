/* Common parts of the simulated NVML: the machine, the handles and the argument checks.
 *
 * The simulated NVML reports what the simulated machine did, which it reads from the machine's own
 * record at every call. The only state it keeps is which machine is open.
 */
#pragma once

#include <nvml.h>
#include <stdbool.h>
#include <stdint.h>

#include "machine/binding.h"

#define EXPORT __attribute__((visibility("default")))

/* CUDA 13.5 comes with r615, which is also the default of the machine's `driver_major`. */
#define SIM_NVML_VERSION "13.615.00"

/* The target of a handle. Handles are addresses in one table, so that an invalid handle can be
 * detected. */
struct nvmlDevice_st {
  uint32_t index;
  /* 0 for a whole device, otherwise one of its MIG instances, counted from 1 */
  uint32_t instance;
  sim_device_info info; /* as of initialisation; values that change are read at each call */
};

/* Returns the open machine, or NULL before initialisation and after the last shutdown. */
sim_machine *sim_nvml_machine(void);

unsigned sim_nvml_device_count(void);
nvmlDevice_t sim_nvml_device(unsigned index);

/* Returns the handle of a device's MIG instance, counted from 1. */
nvmlDevice_t sim_nvml_instance(unsigned index, unsigned instance);

/* Returns NVML_SUCCESS if `device` is a handle of this library, the library is initialised, and the
 * device is not lost. `now`, which may be NULL, receives the device's current state. Handles of
 * existing MIG instances are valid too. */
nvmlReturn_t sim_nvml_check_any(nvmlDevice_t device, sim_device_info *now);

/* Like sim_nvml_check_any, but returns NVML_ERROR_NOT_SUPPORTED for MIG instances. */
nvmlReturn_t sim_nvml_check(nvmlDevice_t device);

/* Like sim_nvml_check_any, but returns NVML_ERROR_NOT_SUPPORTED for devices in MIG mode. */
nvmlReturn_t sim_nvml_check_undivided(nvmlDevice_t device);

#define UUID_TEXT_BYTES 41 /* "GPU-" or "MIG-" and 36 characters, NUL-terminated */
void sim_nvml_uuid_text(nvmlDevice_t device, char *text);

/* Copies text into a caller's buffer. Returns NVML_ERROR_INSUFFICIENT_SIZE if it does not fit. */
nvmlReturn_t sim_nvml_text(const char *text, char *buffer, unsigned length);

/* Computes the part of the last whole sample period during which kernels ran, in percent, rounded
 * down, and the same for device memory traffic. Both are 0 before the end of the first period. */
void sim_nvml_last_period(nvmlDevice_t device, unsigned *busy_percent, unsigned *memory_percent);

/* Returns a CLOCK_MONOTONIC time as the CPU timestamp, in microseconds, that NVML reports. */
uint64_t sim_nvml_timestamp_us(uint64_t monotonic_ns);

/* Returns the records of every process that the device has seen, which the caller frees. Returns
 * NULL if there are none (*count is 0) or memory is short.
 */
sim_process_record *sim_nvml_record(nvmlDevice_t device, unsigned *count, uint64_t *at_ns);

/* First line of a function that takes a device and writes through `pointer`. */
#define CHECK_DEVICE(device, pointer)                   \
  do {                                                  \
    nvmlReturn_t checked_ = sim_nvml_check(device);     \
    if (checked_ != NVML_SUCCESS) return checked_;      \
    if (!(pointer)) return NVML_ERROR_INVALID_ARGUMENT; \
  } while (0)

/* Like CHECK_DEVICE, for functions that are not supported for divided devices and MIG instances. */
#define CHECK_UNDIVIDED(device, pointer)                        \
  do {                                                          \
    nvmlReturn_t undivided_ = sim_nvml_check_undivided(device); \
    if (undivided_ != NVML_SUCCESS) return undivided_;          \
    if (!(pointer)) return NVML_ERROR_INVALID_ARGUMENT;         \
  } while (0)

#define CHECK_INITIALISED(pointer)                            \
  do {                                                        \
    if (!sim_nvml_machine()) return NVML_ERROR_UNINITIALIZED; \
    if (!(pointer)) return NVML_ERROR_INVALID_ARGUMENT;       \
  } while (0)
