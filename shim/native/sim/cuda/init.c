/* cuInit, versions, and the choice of devices that this process sees. */
#define _GNU_SOURCE
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "sim/cuda/core.h"
#include "sim/machine/place.h"

bool sim_set_initialized(void);
bool sim_is_forked_child(void);

static void show(uint32_t device) {
  sim_gpu *gpu = &sim_here.gpus[sim_here.gpu_count];
  gpu->ordinal = sim_here.gpu_count++;
  gpu->device = device;
  gpu->profile = &sim_here.machine->devices[device].profile;
  gpu->uuid = sim_here.machine->devices[device].uuid;
  gpu->client = SIM_NONE;
  gpu->served = (uint64_t)device << 32 | SIM_NONE;
}

static bool shown(uint32_t device) {
  for (int i = 0; i < sim_here.gpu_count; i++)
    if (sim_here.gpus[i].device == device) return true;
  return false;
}

/* Returns the device with an index, or with an unambiguous prefix of a "GPU-…" UUID, or
 * SIM_NONE. */
static uint32_t match(const char *text, size_t length) {
  uint32_t count = sim_machine_device_count(sim_here.machine), found = SIM_NONE;
  if (length && isdigit((unsigned char)*text)) {
    char *end;
    unsigned long index = strtoul(text, &end, 10);
    return end == text + length && index < count ? (uint32_t)index : SIM_NONE;
  }
  for (uint32_t device = 0; length > 4 && device < count; device++) {
    char uuid[48];
    const uint8_t *u = sim_here.machine->devices[device].uuid;
    snprintf(uuid, sizeof uuid,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
    if (length > strlen(uuid) || strncasecmp(uuid, text, length)) continue;
    if (found != SIM_NONE) return SIM_NONE;
    found = device;
  }
  return found;
}

/* Applies CUDA_VISIBLE_DEVICES. The first word that selects no device ends the list, and a device
 * that is selected twice hides all devices. */
static void choose_visible(void) {
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  if (!list) {
    for (uint32_t i = 0; i < sim_machine_device_count(sim_here.machine); i++) show(i);
    return;
  }
  while (*list) {
    size_t length = strcspn(list, ",");
    const char *from = list;
    while (length && isspace((unsigned char)*from)) from++, length--;
    while (length && isspace((unsigned char)from[length - 1])) length--;
    uint32_t device = match(from, length);
    if (device == SIM_NONE) return;
    if (shown(device)) {
      sim_here.gpu_count = 0;
      return;
    }
    show(device);
    list += strcspn(list, ",");
    if (*list) list++;
  }
}

static bool is_set(const char *variable) {
  const char *text = getenv(variable);
  return text && atoi(text);
}

static uint32_t asked_connections(void) {
  const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  long count = text ? strtol(text, NULL, 10) : 0;
  return count < 1 ? 8 : count > 32 ? 32 : (uint32_t)count;
}

static void read_settings(void) {
  const char *loading = getenv("CUDA_MODULE_LOADING");
  sim_here.launches_block = is_set("CUDA_LAUNCH_BLOCKING");
  sim_here.loads_lazily = !loading || strcmp(loading, "EAGER") != 0;
  sim_here.forces_ptx = is_set("CUDA_FORCE_PTX_JIT");
  sim_here.forbids_ptx = is_set("CUDA_DISABLE_PTX_JIT");
  sim_here.connections = asked_connections();
}

void sim_driver_start(uint64_t begun_ns) {
  sim_sleep_until(begun_ns + sim_here.machine->devices[0].profile.driver_start_us * 1000ull);
}

CUresult CUDAAPI cuInit(unsigned int flags) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (sim_initialized()) return CUDA_SUCCESS;
  if (sim_is_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
  uint64_t begun = sim_now_ns();
  sim_big_lock();
  CUresult result = CUDA_SUCCESS;
  if (!sim_initialized()) {
    char place[PATH_MAX], error[SIM_ERROR_BYTES] = "no simulated machine is named";
    const char *path = sim_place_machine(place, sizeof place);
    bool opened = sim_here.machine; /* by a checkpoint call, which has taken this time */
    if (!sim_here.machine) sim_here.machine = path ? sim_machine_open(path, error) : NULL;
    if (!sim_here.machine) {
      penstock_log("simulated driver: cuInit finds no device: %s", error);
      result = CUDA_ERROR_NO_DEVICE;
    } else {
      if (!sim_here.gpu_count) choose_visible();
      read_settings();
      if (!sim_here.gpu_count)
        result = CUDA_ERROR_NO_DEVICE;
      else if (!sim_heap_start() || !sim_keeper_start() || !sim_set_initialized())
        result = CUDA_ERROR_OUT_OF_MEMORY;
      if (result == CUDA_SUCCESS && !opened) sim_driver_start(begun);
    }
  }
  sim_big_unlock();
  return result;
}

CUresult CUDAAPI cuDriverGetVersion(int *version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult sim_gpu_of(CUdevice device, sim_gpu **gpu) {
  if (device < 0 || device >= sim_here.gpu_count) return CUDA_ERROR_INVALID_DEVICE;
  *gpu = &sim_here.gpus[device];
  return CUDA_SUCCESS;
}

/* A private table, like those that the CUDA runtime uses. Calls through such a table cannot be
 * intercepted. The runtime's own tables are not simulated. */
typedef struct sim_private_table {
  size_t bytes;
  CUresult (*retain)(CUcontext *context, CUdevice device);
  CUresult (*release)(CUdevice device);
  CUresult (*load)(CUmodule *module, const void *image);
} sim_private_table;

CUresult CUDAAPI cuGetExportTable(const void **table, const CUuuid *id) {
  static const CUuuid ours = {"penstock-sim-one"};
  static const sim_private_table private_table = {sizeof private_table, cuDevicePrimaryCtxRetain,
                                                  cuDevicePrimaryCtxRelease_v2, cuModuleLoadData};
  if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
  bool known = memcmp(id, &ours, sizeof ours) == 0;
  *table = known ? &private_table : NULL;
  return known ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
