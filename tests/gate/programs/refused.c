/* Launches that the driver refuses, and launches whose device the gate cannot tell. */
#include "gate.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static CUresult launch_on(CUstream to, unsigned grid) {
  uint64_t ns = MS / 10;
  void *parameters[] = {&ns};
  return cuLaunchKernel(kernel_named("spin"), grid, 1, 1, 32, 1, 1, 0, to, parameters, NULL);
}

static void say(const char *word) {
  puts(word);
  fflush(stdout);
  getchar();
}

CASE(a_stream_that_the_driver_does_not_tell_of) {
  begin();
  kernel_named("spin");
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  say("ready");
  for (int i = 0; i < 100; i++) GIVES(CUDA_ERROR_OUT_OF_MEMORY, launch_on(stream, 1));
  say("refused");
  for (int i = 0; i < 100; i++) OK(launch_on(stream, 1));
  OK(cuStreamSynchronize(stream));
}

CASE(streams_and_contexts_that_are_none_are_the_drivers_to_refuse) {
  CUcontext context = begin();
  CUfunction spin = kernel_named("spin");
  uint64_t ns = 1000;
  void *parameters[] = {&ns};
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  OK(cuStreamDestroy(stream));
  GIVES(CUDA_ERROR_INVALID_HANDLE, launch_on(stream, 1));
  OK(cuCtxSetCurrent(NULL));
  GIVES(CUDA_ERROR_INVALID_CONTEXT,
        cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
  OK(cuCtxSetCurrent(context));
  OK(launch_on(NULL, 1));
  OK(cuCtxSynchronize());
}

static CUstream shared;
static volatile bool over;

static void *launch_well(void *context) {
  OK(cuCtxSetCurrent(context));
  while (!over) {
    OK(launch_on(shared, 1));
    if (rand() % 16 == 0) OK(cuStreamSynchronize(shared));
  }
  return NULL;
}

static void *launch_badly(void *context) {
  OK(cuCtxSetCurrent(context));
  for (int i = 0; i < 400; i++) {
    GIVES(CUDA_ERROR_INVALID_VALUE, launch_on(shared, 0));
    if (i % 8 == 0) GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch((CUgraphExec)&shared, shared));
  }
  return NULL;
}

/* While another thread is at work on the stream, opens its timing windows and ends them. */
CASE(refused_launches_beside_others_on_a_stream) {
  pthread_t well[2], badly[2];
  CUcontext context = begin();
  kernel_named("spin");
  shared = new_stream(CU_STREAM_NON_BLOCKING);
  for (int i = 0; i < 2; i++) CHECK(!pthread_create(&well[i], NULL, launch_well, context));
  for (int i = 0; i < 2; i++) CHECK(!pthread_create(&badly[i], NULL, launch_badly, context));
  for (int i = 0; i < 2; i++) CHECK(!pthread_join(badly[i], NULL));
  over = true;
  for (int i = 0; i < 2; i++) CHECK(!pthread_join(well[i], NULL));
  OK(cuStreamSynchronize(shared));
  say("idle");
}

CASE(refused_launches_alone) {
  begin();
  shared = new_stream(CU_STREAM_NON_BLOCKING);
  for (int i = 0; i < 700; i++) GIVES(CUDA_ERROR_INVALID_VALUE, launch_on(shared, 0));
  say("idle");
}
