/* What all of the simulated NVML shares: the machine, the handles, argument checks.
 *
 * NVML here reports what the simulated machine did, read from the machine's own record at every
 * call. Nothing is kept but which machine is open.
 */
#pragma once

#include <nvml.h>
#include <stdbool.h>
#include <stdint.h>

#include "machine/binding.h"

#define EXPORT __attribute__((visibility("default")))

/* CUDA 13.5 comes with r615; the simulated driver says the same as the simulated libcuda. */
#define SIM_DRIVER_VERSION "615.00"
#define SIM_NVML_VERSION "13." SIM_DRIVER_VERSION

/* Where a handle points: handles are addresses in one table, so a bad one can be told. */
struct nvmlDevice_st {
  uint32_t index;
  uint32_t instance;    /* 0: a whole device; else one of its MIG instances, counted from 1 */
  sim_device_info info; /* as it was at initialisation; what changes is asked for at each call */
};

/* The open machine; NULL before initialisation and after the last shutdown. */
sim_machine *sim_nvml_machine(void);

unsigned sim_nvml_device_count(void);
nvmlDevice_t sim_nvml_device(unsigned index);

/* A whole device's MIG instance, counted from 1. */
nvmlDevice_t sim_nvml_instance(unsigned index, unsigned instance);

/* NVML_SUCCESS if `device` is a handle of this library, initialised, and not lost. `now` (may be
 * NULL) gets its present state. Handles of MIG instances pass, too, while there is such a one. */
nvmlReturn_t sim_nvml_check_any(nvmlDevice_t device, sim_device_info *now);

/* The same, and a whole device: what is not told of MIG instances is not supported. */
nvmlReturn_t sim_nvml_check(nvmlDevice_t device);

/* The same, and not divided: what NVML does not tell of a device in MIG mode is not supported. */
nvmlReturn_t sim_nvml_check_undivided(nvmlDevice_t device);

#define UUID_TEXT_BYTES 41 /* "GPU-" or "MIG-" and 36 characters */
void sim_nvml_uuid_text(nvmlDevice_t device, char *text);

/* Copies text into a caller's buffer: NVML_ERROR_INSUFFICIENT_SIZE when it does not fit. */
nvmlReturn_t sim_nvml_text(const char *text, char *buffer, unsigned length);

/* Device time during which kernels ran, in percent (rounded down) of the last whole sample period,
 * and the same for device memory traffic. 0 and 0 before the first period is over. */
void sim_nvml_last_period(nvmlDevice_t device, unsigned *busy_percent, unsigned *memory_percent);

/* CPU timestamp in microseconds of a CLOCK_MONOTONIC time, as NVML prints them. */
uint64_t sim_nvml_timestamp_us(uint64_t monotonic_ns);

/* Every process that the device has seen; free() the result. NULL: no memory, or none (*count 0).
 */
sim_process_record *sim_nvml_record(nvmlDevice_t device, unsigned *count, uint64_t *at_ns);

/* Begins a function that takes a device and writes through `pointer`. */
#define CHECK_DEVICE(device, pointer)                   \
  do {                                                  \
    nvmlReturn_t checked_ = sim_nvml_check(device);     \
    if (checked_ != NVML_SUCCESS) return checked_;      \
    if (!(pointer)) return NVML_ERROR_INVALID_ARGUMENT; \
  } while (0)

/* ... and that tells nothing of a device that is divided into MIG instances, nor of those. */
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
