/* Common code of the workloads: time, errors, the driver's functions by name, and the device's
 * primary context. Each workload is one file that includes this header. PROGRAM is the name of the
 * program in its messages. */
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct wanted_function {
  void *slot;       /* receives the function's address */
  const char *name; /* name for cuGetProcAddress */
} wanted_function;

static inline uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Ends the program with the name of the call if the call failed. */
static inline void check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, PROGRAM ": %s failed: CUDA error %d\n", what, (int)result);
  exit(1);
}

/* The functions that every workload needs, filled in by `load_driver`. */
static struct {
  __typeof__(&cuInit) init;
  __typeof__(&cuDeviceGet) device_get;
  __typeof__(&cuDevicePrimaryCtxRetain) context_retain;
  __typeof__(&cuCtxSetCurrent) context_set;
} driver;

static inline void find_all(__typeof__(&cuGetProcAddress_v2) lookup, const wanted_function *wanted,
                            size_t count, cuuint64_t flags) {
  for (size_t i = 0; i < count; i++) {
    CUdriverProcAddressQueryResult status;
    void *found = NULL;
    check(lookup(wanted[i].name, &found, 12000, flags, &status), wanted[i].name);
    *(void **)wanted[i].slot = found;
  }
}

/* Finds the driver as the CUDA runtime does: opens it with dlopen and looks up every function with
 * cuGetProcAddress. */
static inline void load_driver(const wanted_function *wanted, size_t count, cuuint64_t flags) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    fprintf(stderr, PROGRAM ": %s\n", dlerror());
    exit(1);
  }
  __typeof__(&cuGetProcAddress_v2) lookup = NULL;
  *(void **)&lookup = dlsym(library, "cuGetProcAddress_v2");
  if (!lookup) {
    fprintf(stderr, PROGRAM ": the driver has no cuGetProcAddress_v2: it is older than CUDA 12\n");
    exit(1);
  }
  static const wanted_function always[] = {
      {&driver.init, "cuInit"},
      {&driver.device_get, "cuDeviceGet"},
      {&driver.context_retain, "cuDevicePrimaryCtxRetain"},
      {&driver.context_set, "cuCtxSetCurrent"},
  };
  find_all(lookup, always, sizeof always / sizeof *always, flags);
  find_all(lookup, wanted, count, flags);
}

/* Makes the primary context of a device current and returns it. cuInit must have been called. */
static inline CUcontext enter_context(int ordinal) {
  CUdevice device;
  CUcontext context;
  check(driver.device_get(&device, ordinal), "cuDeviceGet");
  check(driver.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
  check(driver.context_set(context), "cuCtxSetCurrent");
  return context;
}
