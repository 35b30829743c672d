/* Primary contexts that stay alive because they are also retained in a way that the shim cannot
 * see. */
#include "gate.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* The simulated driver's private table: what is done through it passes the shim by. */
typedef struct private_table {
  size_t bytes;
  CUresult (*retain)(CUcontext *context, CUdevice device);
  CUresult (*release)(CUdevice device);
} private_table;

static const private_table *unseen(void) {
  static const CUuuid id = {"penstock-sim-one"};
  const void *table;
  OK(cuGetExportTable(&table, &id));
  return table;
}

static void release_and_retain(void) {
  CUcontext context;
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
}

static long kilobytes(const char *what) {
  char line[256];
  long found = 0;
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file)) {
    if (!strncmp(line, what, strlen(what))) found = atol(line + strlen(what));
  }
  fclose(file);
  return found;
}

static CUcontext held(void) {
  CUcontext context = begin();
  OK(unseen()->retain(&context, 0));
  return context;
}

CASE(a_release_that_is_not_the_last_does_not_wait_for_the_device) {
  held();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  kernel_named("spin");
  for (int i = 0; i < 6; i++) {
    busy(stream, 30 * MS);
    uint64_t begun = now_ns();
    OK(cuDevicePrimaryCtxRelease(0));
    uint64_t took = now_ns() - begun;
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY || took < 10 * MS);
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
  }
  OK(cuStreamSynchronize(stream));
}

/* The driver's own memory: streams and events that are made and forgotten show here. */
CASE(releases_that_are_not_the_last_keep_nothing) {
  enum { STEP = 2500 };
  held();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  long before = 0;
  for (int i = 0; i < 4 * STEP; i++) {
    busy(stream, 1000);
    release_and_retain();
    if (i == STEP) before = kilobytes("VmRSS:");
  }
  CHECK(kilobytes("VmRSS:") - before < 256);
}

CASE(a_launch_without_end_between_releases) {
  held();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  for (;;) {
    busy(stream, 2 * MS);
    release_and_retain();
  }
}

static void *race(void *argument) {
  CUcontext context;
  for (int i = 0; i < 150; i++) {
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUfunction spin = kernel_anew("spin");
    uint64_t ns = 20000;
    void *parameters[] = {&ns};
    for (int k = 0; k < 3; k++) {
      OK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
    }
    if (i % 3 == 0) OK(cuStreamSynchronize(stream));
    if (i % 2 == 0) OK(cuStreamDestroy(stream));
    OK(cuDevicePrimaryCtxRelease(0));
  }
  return argument;
}

static void idle(void) {
  puts("idle");
  fflush(stdout);
  getchar();
}

CASE(threads_release_and_retain_at_the_same_time) {
  pthread_t threads[4];
  OK(cuInit(0));
  for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, race, NULL));
  for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], NULL));
  idle();
}

CASE(a_context_that_ends_unseen_is_forgotten_with_the_next_one) {
  for (int i = 0; i < 20; i++) {
    CUcontext context = begin();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    uint64_t ns = 20000;
    void *parameters[] = {&ns};
    CUfunction spin = kernel_anew("spin");
    for (int k = 0; k < 40; k++) {
      OK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
    }
    OK(unseen()->release(0));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
    (void)context;
  }
  begin();
  idle();
}

CASE(a_reset_that_others_hold_against_ends_the_context_all_the_same) {
  held();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  busy(stream, 5 * MS);
  OK(cuDevicePrimaryCtxReset(0));
  begin();
  stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUfunction spin = kernel_anew("spin");
  uint64_t ns = MS;
  void *parameters[] = {&ns};
  OK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
  OK(cuStreamSynchronize(stream));
  idle();
}

CASE(a_context_that_is_destroyed_in_vain_loses_nothing) {
  CUcontext primary = begin();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr words = new_words(1);
  for (int i = 0; i < 20; i++) {
    busy(stream, MS);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(primary));
  }
  OK(cuStreamSynchronize(stream));
  CHECK(word_at(words) == 0);
  idle();
}

static pthread_barrier_t meeting;

/* Their first launches come at once, when there are places of contexts that are gone. */
static void *make_contexts(void *argument) {
  (void)argument;
  CUcontext context;
  for (int i = 0; i < 150; i++) {
    OK(cuCtxCreate(&context, NULL, 0, 0));
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUfunction spin = kernel_anew("spin");
    uint64_t ns = 5000;
    void *parameters[] = {&ns};
    pthread_barrier_wait(&meeting);
    OK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
    OK(cuCtxDestroy(context));
  }
  return NULL;
}

CASE(contexts_of_many_threads_come_and_go) {
  enum { THREADS = 6 };
  pthread_t threads[THREADS];
  OK(cuInit(0));
  CHECK(!pthread_barrier_init(&meeting, NULL, THREADS));
  for (int i = 0; i < THREADS; i++) {
    CHECK(!pthread_create(&threads[i], NULL, make_contexts, NULL));
  }
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL));
  idle();
}

static CUstream shared;
static void *launch_first(void *context) {
  uint64_t ns = 5000;
  void *parameters[] = {&ns};
  OK(cuCtxSetCurrent(context));
  CUfunction spin = kernel_anew("spin");
  pthread_barrier_wait(&meeting);
  OK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, shared, parameters, NULL));
  return NULL;
}

/* Each may set about noting the context; one note is kept, and the others are used again. */
CASE(threads_that_find_a_context_at_the_same_time_leave_nothing) {
  enum { THREADS = 6, ROUNDS = 120 };
  pthread_t threads[THREADS];
  OK(cuInit(0));
  CHECK(!pthread_barrier_init(&meeting, NULL, THREADS));
  for (int round = 0; round < ROUNDS; round++) {
    CUcontext context;
    OK(cuCtxCreate(&context, NULL, 0, 0));
    shared = new_stream(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < THREADS; i++) {
      CHECK(!pthread_create(&threads[i], NULL, launch_first, context));
    }
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL));
    OK(cuCtxDestroy(context));
  }
  idle();
}
