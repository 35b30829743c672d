/* Processes that use the device, most of them until they are killed; they print "ready" first. */
#include "check.h"

CASE(backlogged) {
  begin();
  spin_kernel();
  puts("ready");
  fflush(stdout);
  for (;;) spin(NULL, 200000, 200);
}

CASE(synchronising) {
  begin();
  spin_kernel();
  puts("ready");
  fflush(stdout);
  for (;;) {
    spin(NULL, 200000, 200);
    OK(cuCtxSynchronize());
  }
}

CASE(counted) {
  begin();
  for (int i = 0; i < 700; i++) spin(NULL, 100000, 200);
  OK(cuCtxSynchronize());
}

CASE(holding_memory) {
  begin();
  CUdeviceptr pointer;
  OK(cuMemAlloc(&pointer, 1000 * MIB));
  spin(NULL, 3600000000000, 200);
  puts("ready");
  fflush(stdout);
  pause();
}

/* Every kind of call, as fast as it goes: whatever is killed here, others go on. */
CASE(restless) {
  begin();
  spin_kernel();
  CUstream streams[3];
  CUevent event;
  CUdeviceptr pointer, pooled;
  for (int i = 0; i < 3; i++) OK(cuStreamCreate(&streams[i], i == 2 ? CU_STREAM_NON_BLOCKING : 0));
  OK(cuEventCreate(&event, 0));
  puts("ready");
  fflush(stdout);
  for (unsigned i = 0;; i++) {
    if (cuMemAlloc(&pointer, 1000 + i % 4000000) == CUDA_SUCCESS) {
      OK(cuMemsetD8Async(pointer, 1, 100, streams[i % 3]));
      OK(cuMemFree(pointer));
    }
    spin(streams[i % 3], 20000, 1 + i % 300);
    OK(cuEventRecord(event, streams[i % 3]));
    OK(cuStreamWaitEvent(streams[(i + 1) % 3], event, 0));
    if (cuMemAllocAsync(&pooled, 5 * MIB, streams[0]) == CUDA_SUCCESS)
      OK(cuMemFreeAsync(pooled, streams[0]));
    if (i % 16 == 0) OK(cuStreamSynchronize(streams[i % 3]));
  }
}
