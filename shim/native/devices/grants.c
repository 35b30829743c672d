#include "devices/grants.h"

#include <string.h>

#include "common/log.h"
#include "loading/driver.h"
#include "process/process.h"

#define MOST_ORDINALS (PENSTOCK_MAX_DEVICES * 4)

/* Grant index of each CUDA ordinal, or -1 if the device was not granted to the tenant. */
static int grant_of_ordinal[MOST_ORDINALS];
static int ordinals; /* number of ordinals, 0 until they are matched */

static int grant_of_uuid(const penstock_process *process, const CUuuid *uuid) {
  const penstock_limits *limits = penstock_region_limits(&process->region);
  unsigned count = penstock_region_device_count(&process->region);
  for (unsigned i = 0; i < count; i++) {
    if (memcmp(limits->devices[i].uuid, uuid->bytes, sizeof uuid->bytes) == 0) return (int)i;
  }
  return -1;
}

/* Reads a device's UUID. For a MIG instance cuDeviceGetUuid_v2 returns the instance's own UUID,
 * whereas the first version returns that of the whole device. */
static CUresult device_uuid(CUuuid *uuid, CUdevice device) {
  CUresult result = REAL(cuDeviceGetUuid_v2)(uuid, device);
  return result == CUDA_ERROR_NOT_SUPPORTED ? REAL(cuDeviceGetUuid)(uuid, device) : result;
}

/* Matches ordinals to grants. If two threads do so at the same time, they write the same values. */
static void match_devices(const penstock_process *process) {
  int count = 0;
  /* The driver is not initialised yet, so a later call tries again. */
  if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) return;
  if (count > MOST_ORDINALS) count = MOST_ORDINALS;
  for (int i = 0; i < count; i++) {
    CUdevice device;
    CUuuid uuid;
    int grant = -1;
    if (REAL(cuDeviceGet)(&device, i) == CUDA_SUCCESS &&
        device_uuid(&uuid, device) == CUDA_SUCCESS) {
      grant = grant_of_uuid(process, &uuid);
    }
    if (grant < 0) penstock_log("CUDA device %d was not granted to this tenant", i);
    __atomic_store_n(&grant_of_ordinal[i], grant, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&ordinals, count, __ATOMIC_RELEASE);
}

int penstock_grant_of(CUdevice device) {
  penstock_process *process = penstock_process_get();
  if (!process) return -1;
  if (__atomic_load_n(&ordinals, __ATOMIC_ACQUIRE) == 0) match_devices(process);
  int count = __atomic_load_n(&ordinals, __ATOMIC_ACQUIRE);
  if (device < 0 || device >= count) return -1;
  return __atomic_load_n(&grant_of_ordinal[device], __ATOMIC_RELAXED);
}

int penstock_current_grant(void) {
  CUdevice device;
  if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return -1;
  return penstock_grant_of(device);
}
