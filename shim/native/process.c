#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "handshake.h"
#include "common/log.h"
#include "common/tenant_directory.h"

#define PAGE_WAIT_NS 200000000 /* for a page that is being created as we start */
#define PAGE_POLL_NS 2000000

static penstock_process *attached;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* True for what a page looks like while its writer is at work. */
static bool may_be_under_way(penstock_error error) {
  return error == PENSTOCK_E_MISSING || error == PENSTOCK_E_TRUNCATED ||
         error == PENSTOCK_E_WRONG_MAGIC;
}

static penstock_error open_region(penstock_region *region, const char *directory) {
  static bool waited; /* once a process: a broken page must not slow down every call */
  penstock_error error = penstock_region_open(region, directory);
  if (error == PENSTOCK_OK || !may_be_under_way(error) ||
      __atomic_load_n(&waited, __ATOMIC_RELAXED)) {
    return error;
  }
  uint64_t give_up_ns = now_ns() + PAGE_WAIT_NS;
  while (may_be_under_way(error) && now_ns() < give_up_ns) {
    nanosleep(&(struct timespec){0, PAGE_POLL_NS}, NULL);
    error = penstock_region_open(region, directory);
  }
  __atomic_store_n(&waited, true, __ATOMIC_RELAXED);
  return error;
}

/* The child of a fork comes here for itself, with its own slot. */
static void claimed(const penstock_region *region) {
  penstock_process *process = __atomic_load_n(&attached, __ATOMIC_ACQUIRE);
  if (process) penstock_handshake_say(region, process->directory);
}

static penstock_process *attach(void) {
  const char *directory = penstock_tenant_directory();
  if (!directory || !*directory) {
    penstock_log("no tenant: PENSTOCK_TENANT_DIR is not set and " PENSTOCK_MOUNTED_DIRECTORY
                 " is not there; start the program with `penstock run`");
    return NULL;
  }
  size_t length = strlen(directory) + 1;
  penstock_process *process = calloc(1, sizeof *process + length);
  if (!process) return NULL;
  memcpy(process->directory, directory, length);
  penstock_error error = open_region(&process->region, directory);
  if (error != PENSTOCK_OK) {
    char why[384];
    penstock_region_explain(error, directory, why, sizeof why);
    penstock_log("no quota, no CUDA call is let through: %s", why);
    free(process);
    return NULL;
  }
  process->region.claimed = claimed;
  penstock_process *other = NULL;
  if (!__atomic_compare_exchange_n(&attached, &other, process, 0, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    penstock_region_close(&process->region);
    free(process);
    return other;
  }
  return process;
}

penstock_process *penstock_process_get(void) {
  penstock_process *process = __atomic_load_n(&attached, __ATOMIC_ACQUIRE);
  if (__builtin_expect(process != NULL, 1)) return process;
  int saved_errno = errno;
  process = attach();
  errno = saved_errno;
  return process;
}

static int grant_of_uuid(const penstock_process *process, const CUuuid *uuid) {
  const penstock_limits *limits = penstock_region_limits(&process->region);
  unsigned count = penstock_region_device_count(&process->region);
  for (unsigned i = 0; i < count; i++) {
    if (memcmp(limits->devices[i].uuid, uuid->bytes, sizeof uuid->bytes) == 0) return (int)i;
  }
  return -1;
}

/* The UUID of a MIG instance where there is one: the first version gives the whole device's. */
static CUresult device_uuid(CUuuid *uuid, CUdevice device) {
  CUresult result = REAL(cuDeviceGetUuid_v2)(uuid, device);
  return result == CUDA_ERROR_NOT_SUPPORTED ? REAL(cuDeviceGetUuid)(uuid, device) : result;
}

/* Matches ordinals to grants. Two threads may both do it: they write the same. */
static void match_devices(penstock_process *process) {
  const int most = (int)(sizeof process->grant_of_ordinal / sizeof *process->grant_of_ordinal);
  int count = 0;
  if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) return; /* not initialised: again later */
  if (count > most) count = most;
  for (int i = 0; i < count; i++) {
    CUdevice device;
    CUuuid uuid;
    int grant = -1;
    if (REAL(cuDeviceGet)(&device, i) == CUDA_SUCCESS &&
        device_uuid(&uuid, device) == CUDA_SUCCESS) {
      grant = grant_of_uuid(process, &uuid);
    }
    if (grant < 0) penstock_log("CUDA device %d was not granted to this tenant", i);
    __atomic_store_n(&process->grant_of_ordinal[i], grant, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&process->ordinals, count, __ATOMIC_RELEASE);
}

int penstock_grant_of(CUdevice device) {
  penstock_process *process = penstock_process_get();
  if (!process) return -1;
  if (__atomic_load_n(&process->ordinals, __ATOMIC_ACQUIRE) == 0) match_devices(process);
  int count = __atomic_load_n(&process->ordinals, __ATOMIC_ACQUIRE);
  if (device < 0 || device >= count) return -1;
  return __atomic_load_n(&process->grant_of_ordinal[device], __ATOMIC_RELAXED);
}

int penstock_current_grant(void) {
  CUdevice device;
  if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return -1;
  return penstock_grant_of(device);
}
