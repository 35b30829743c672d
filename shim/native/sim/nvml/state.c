#include "state.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "sim/machine/place.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned references;
/* Stays open until another machine is named, because other threads may be using it. */
static sim_machine *machine;
static char *machine_path;
static bool initialised;
/* Whole devices first, followed by the entries for their MIG instances. */
static struct nvmlDevice_st devices[SIM_MAX_DEVICES * (1 + SIM_MIG_INSTANCES)];
static unsigned device_count;

sim_machine *sim_nvml_machine(void) {
  return __atomic_load_n(&initialised, __ATOMIC_ACQUIRE) ? machine : NULL;
}

unsigned sim_nvml_device_count(void) { return device_count; }

nvmlDevice_t sim_nvml_device(unsigned index) { return &devices[index]; }

nvmlDevice_t sim_nvml_instance(unsigned index, unsigned instance) {
  return &devices[SIM_MAX_DEVICES + index * SIM_MIG_INSTANCES + instance - 1];
}

static nvmlReturn_t open_machine(void) {
  char place[PATH_MAX], error[SIM_ERROR_BYTES];
  const char *path = sim_place_machine(place, sizeof place);
  if (!path) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (machine && strcmp(path, machine_path) == 0) return NVML_SUCCESS;
  sim_machine *opened = sim_machine_open(path, error);
  if (!opened) {
    penstock_log("simulated driver: nvmlInit finds no device: %s", error);
    return NVML_ERROR_DRIVER_NOT_LOADED;
  }
  char *copy = strdup(path);
  if (!copy) {
    sim_machine_close(opened);
    return NVML_ERROR_MEMORY;
  }
  if (machine) sim_machine_close(machine);
  free(machine_path);
  machine = opened;
  machine_path = copy;
  device_count = sim_machine_device_count(opened);
  for (unsigned i = 0; i < device_count; i++) {
    devices[i].index = i;
    sim_machine_device(opened, i, &devices[i].info);
    for (unsigned k = 1; k <= SIM_MIG_INSTANCES; k++) {
      *sim_nvml_instance(i, k) = (struct nvmlDevice_st){i, k, devices[i].info};
    }
  }
  return NVML_SUCCESS;
}

static nvmlReturn_t initialise(void) {
  pthread_mutex_lock(&lock);
  nvmlReturn_t result = references ? NVML_SUCCESS : open_machine();
  if (result == NVML_SUCCESS) {
    references++;
    __atomic_store_n(&initialised, true, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return result;
}

EXPORT nvmlReturn_t nvmlInit(void) { return initialise(); }
EXPORT nvmlReturn_t nvmlInit_v2(void) { return initialise(); }

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
  if (flags & ~(unsigned)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH)) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  return initialise();
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
  pthread_mutex_lock(&lock);
  nvmlReturn_t result = references ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
  if (references && --references == 0) __atomic_store_n(&initialised, false, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
  return result;
}

nvmlReturn_t sim_nvml_check_any(nvmlDevice_t device, sim_device_info *now) {
  if (!sim_nvml_machine()) return NVML_ERROR_UNINITIALIZED;
  uintptr_t offset = (uintptr_t)device - (uintptr_t)devices;
  if (offset % sizeof devices[0] || offset >= sizeof devices || device->index >= device_count) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  if (!device->instance && device != &devices[device->index]) return NVML_ERROR_INVALID_ARGUMENT;
  sim_device_info found;
  if (!now) now = &found;
  if (sim_machine_device(machine, device->index, now) < 0) return NVML_ERROR_UNKNOWN;
  /* the device has since been divided differently */
  if (device->instance > now->mig_count) return NVML_ERROR_NOT_FOUND;
  return now->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t sim_nvml_check(nvmlDevice_t device) {
  nvmlReturn_t result = sim_nvml_check_any(device, NULL);
  return result == NVML_SUCCESS && device->instance ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t sim_nvml_check_undivided(nvmlDevice_t device) {
  sim_device_info now;
  nvmlReturn_t result = sim_nvml_check_any(device, &now);
  return result == NVML_SUCCESS && now.mig_count ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t sim_nvml_text(const char *text, char *buffer, unsigned length) {
  if (!buffer) return NVML_ERROR_INVALID_ARGUMENT;
  size_t size = strlen(text) + 1;
  if (size > length) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(buffer, text, size);
  return NVML_SUCCESS;
}

void sim_nvml_last_period(nvmlDevice_t device, unsigned *busy_percent, unsigned *memory_percent) {
  sim_sample samples[SIM_SAMPLES];
  int count = sim_machine_samples(machine, device->index, 0, samples, SIM_SAMPLES);
  *busy_percent = *memory_percent = 0;
  if (count < 2) return;
  const sim_sample *last = &samples[count - 1], *before = &samples[count - 2];
  uint64_t length_ns = last->at_ns - before->at_ns;
  if (!length_ns) return;
  *busy_percent = (unsigned)((last->busy_ns - before->busy_ns) * 100 / length_ns);
  *memory_percent = (unsigned)((last->memory_busy_ns - before->memory_busy_ns) * 100 / length_ns);
  if (*busy_percent > 100) *busy_percent = 100;
  if (*memory_percent > 100) *memory_percent = 100;
}

static uint64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The offset between the clocks is read only once, because a clock step must not make one sample
 * look like two. */
uint64_t sim_nvml_timestamp_us(uint64_t monotonic_ns) {
  static uint64_t offset_ns;
  uint64_t offset = __atomic_load_n(&offset_ns, __ATOMIC_RELAXED);
  if (!offset) {
    uint64_t none = 0;
    offset = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
    if (!__atomic_compare_exchange_n(&offset_ns, &none, offset, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED)) {
      offset = none;
    }
  }
  return (monotonic_ns + offset) / 1000;
}

sim_process_record *sim_nvml_record(nvmlDevice_t device, unsigned *count, uint64_t *at_ns) {
  int capacity = 128;
  for (;;) {
    sim_process_record *records = malloc((size_t)capacity * sizeof *records);
    if (!records) break;
    int found = sim_machine_record(machine, device->index, records, (uint32_t)capacity, at_ns);
    if (found >= 0 && found <= capacity) {
      *count = (unsigned)found;
      return records;
    }
    free(records);
    if (found < 0) break;
    capacity = 2 * found;
  }
  *count = 0;
  return NULL;
}
