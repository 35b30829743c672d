/* More threads than the gate's tables have room for: entries are reused while they are held. */
#include "gate.h"

static bool ended;

static void *launch_all_kinds(void *argument) {
  CUcontext context = argument;
  OK(cuCtxSetCurrent(context));
  CUfunction kernel = kernel_anew("spin");
  for (unsigned round = 0; round < 3; round++) {
    CUstream own = new_stream(CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < 600; i++) {
      uint64_t ns = 500;
      void *parameters[] = {&ns};
      CUstream where = i % 3 ? own : i % 2 ? CU_STREAM_PER_THREAD : NULL;
      OK(cuLaunchKernel(kernel, 1 + i, 1, 1, 32, 1, 1, round * 600 + i, where, parameters, NULL));
      if (i % 50 == 0) OK(cuStreamSynchronize(where));
    }
    OK(cuStreamDestroy(own));
  }
  OK(cuCtxSynchronize());
  return NULL;
}

static void *come_and_go(void *argument) {
  CUcontext context = argument;
  OK(cuCtxSetCurrent(context));
  while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) {
    CUmodule module;
    CUfunction kernel = kernel_anew("spin");
    OK(cuFuncGetModule(&module, kernel));
    CUstream own = new_stream(CU_STREAM_NON_BLOCKING);
    uint64_t ns = 500;
    void *parameters[] = {&ns};
    OK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, own, parameters, NULL));
    OK(cuStreamSynchronize(own));
    OK(cuStreamDestroy(own));
    OK(cuModuleUnload(module));
  }
  return NULL;
}

CASE(threads_launch_more_kinds_than_there_is_room_for_while_modules_go) {
  enum { THREADS = 3 };
  pthread_t threads[THREADS], other;
  CUcontext context = begin();
  CHECK(pthread_create(&other, NULL, come_and_go, context) == 0);
  for (int round = 0; round < 2; round++) { /* the second ones take over what the first ones had */
    for (int i = 0; i < THREADS; i++) {
      CHECK(pthread_create(&threads[i], NULL, launch_all_kinds, context) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  }
  __atomic_store_n(&ended, true, __ATOMIC_RELAXED);
  CHECK(pthread_join(other, NULL) == 0);
  OK(cuCtxSynchronize());
}
