/* What a program sees when the device misbehaves; the test injects the fault first. */
#include "check.h"

CASE(an_allocation_fails_and_the_next_one_does_not) {
  begin();
  CUdeviceptr pointer;
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&pointer, 100));
  OK(cuMemAlloc(&pointer, 100));
}

CASE(a_failed_kernel_breaks_its_context_for_good) {
  begin();
  CUdeviceptr pointer;
  CUstream stream;
  uint64_t ns = 1000000;
  void *parameters[] = {&ns};
  OK(cuStreamCreate(&stream, 0));
  CUfunction f = spin_kernel();
  OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL)); /* fails when it runs */
  GIVES(CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize(stream));
  GIVES(CUDA_ERROR_LAUNCH_FAILED, cuMemAlloc(&pointer, 100));
  GIVES(CUDA_ERROR_LAUNCH_FAILED, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
  OK(cuDevicePrimaryCtxReset(0));
  begin();
  OK(cuMemAlloc(&pointer, 100)); /* a new context is sound */
}

CASE(a_lost_device_answers_so_even_to_who_waits) {
  begin();
  spin(NULL, 60000000000, 1);
  puts("waiting");
  fflush(stdout);
  GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, cuCtxSynchronize());
  CUdeviceptr pointer;
  GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, cuMemAlloc(&pointer, 100));
}

CASE(a_slow_driver_is_slow_in_the_named_call_alone) {
  begin();
  CUdeviceptr pointer;
  uint64_t begun = now_ns();
  OK(cuMemAlloc(&pointer, 100));
  CHECK(ms_since(begun) > 49);
  begun = now_ns();
  OK(cuMemFree(pointer));
  CHECK(ms_since(begun) < 49);
}

CASE(a_call_that_does_not_return_returns_when_the_fault_is_lifted) {
  begin();
  puts("waiting");
  fflush(stdout);
  OK(cuCtxSynchronize());
}
