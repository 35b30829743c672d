/* Kinds of launches without number, modules that come and go, and what is known of the others. */
#include <pthread.h>

#include "gate.h"

#define LONG_NS (300 * MS)

static uint64_t *words;
static CUdeviceptr device;
static CUstream stream;

static void prepare(void) {
  begin();
  OK(cuMemHostAlloc((void **)&words, 16, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&device, words, 0));
  words[0] = words[1] = 0;
  stream = new_stream(CU_STREAM_NON_BLOCKING);
}

static CUfunction of_module(CUmodule *module, const char *name) {
  CUfunction function = kernel_anew(name);
  OK(cuFuncGetModule(module, function));
  return function;
}

/* Runs until somebody raises words[0]. */
static void launch_held(CUfunction kernel, unsigned blocks) {
  uint64_t until = words[0] + 1, to = 0, store = 0, from = device;
  void *parameters[] = {&from, &until, &to, &store};
  OK(cuLaunchKernel(kernel, blocks, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static void let_go(void) {
  __atomic_fetch_add(&words[0], 1, __ATOMIC_RELEASE);
  OK(cuStreamSynchronize(stream));
}

/* Until the shim has learned that it takes long. */
static void learn(CUfunction kernel, unsigned blocks) {
  for (int i = 0; i < 2; i++) {
    launch_held(kernel, blocks);
    usleep(LONG_NS / 1000);
    let_go();
  }
}

static void launch_short(CUfunction kernel, unsigned blocks, unsigned shared_bytes) {
  uint64_t ns = 1000;
  void *parameters[] = {&ns};
  OK(cuLaunchKernel(kernel, blocks, 1, 1, 32, 1, 1, shared_bytes, stream, parameters, NULL));
}

/* What is typical is short again. */
static void many_short(CUfunction kernel) {
  for (unsigned i = 0; i < 400; i++) {
    launch_short(kernel, 1 + i % 4, 0);
    OK(cuStreamSynchronize(stream));
  }
}

static void show(const char *what) {
  printf("%s\n", what);
  fflush(stdout);
  CHECK(getchar() == '\n');
}

CASE(a_module_is_unloaded_beside_one_that_is_known) {
  CUmodule kept, gone;
  prepare();
  CUfunction known = of_module(&kept, "meet"), other = of_module(&gone, "spin");
  learn(known, 1);
  many_short(other);
  OK(cuModuleUnload(gone));
  launch_held(known, 1);
  show("launched");
  let_go();
}

CASE(a_module_is_loaded_where_a_long_kernel_was_unloaded) {
  CUmodule module;
  prepare();
  learn(of_module(&module, "meet"), 1);
  many_short(kernel_anew("spin"));
  OK(cuModuleUnload(module)); /* whether the handle is the same or not */
  launch_held(of_module(&module, "meet"), 1);
  show("launched");
  let_go();
}

CASE(a_known_function_is_launched_in_a_new_shape) {
  CUmodule module;
  prepare();
  CUfunction known = of_module(&module, "meet");
  learn(known, 1);
  many_short(kernel_anew("spin"));
  launch_held(known, 7);
  show("launched");
  let_go();
}

static long resident_kib(void) {
  long all = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  CHECK(file && fscanf(file, "%ld %ld", &all, &resident) == 2);
  fclose(file);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Shared memory keeps shapes apart that differ in their grid only by a little. */
static void launch_different(CUfunction kernel, unsigned launches) {
  for (unsigned i = 0; i < launches; i++) {
    launch_short(kernel, 1 + i, i % 2 ? 0 : i % 40000);
    if (i % 64 == 63) OK(cuStreamSynchronize(stream));
  }
  OK(cuStreamSynchronize(stream));
}

CASE(two_hundred_thousand_shapes) {
  prepare();
  CUfunction kernel = kernel_anew("spin"), known = kernel_anew("meet");
  learn(known, 1);
  launch_different(kernel, 2000);
  long before = resident_kib();
  launch_different(kernel, 200000);
  printf("%ld\n", resident_kib() - before);
  learn(known, 1); /* it had to give its place up */
  many_short(kernel);
  launch_held(known, 1);
  show("launched");
  let_go();
}

static bool ended;

static void *launch_all_kinds(void *argument) {
  CUcontext context = argument;
  OK(cuCtxSetCurrent(context));
  CUfunction kernel = kernel_anew("spin");
  for (unsigned round = 0; round < 20; round++) {
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
    CUfunction kernel = of_module(&module, "spin");
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

/* Entries are used for others while threads hold them. */
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
