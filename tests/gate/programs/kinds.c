/* Very many kinds of launches, modules that are loaded and unloaded, and the costs learned for
 * others. */
#include "gate.h"

#define LONG_NS (150 * MS)

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

/* Until the shim has learned that it takes long, also where a busy host makes a measurement
 * vague. */
static void learn(CUfunction kernel, unsigned blocks) {
  for (int i = 0; i < 5; i++) {
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

static void *launch_many(void *context) {
  OK(cuCtxSetCurrent(context));
  launch_different(kernel_anew("spin"), 30000);
  return NULL;
}

/* This thread remembers the kind, whose place others have by then. */
CASE(another_thread_takes_the_place_of_a_kind) {
  pthread_t thread;
  CUcontext context;
  prepare();
  OK(cuCtxGetCurrent(&context));
  CUfunction known = kernel_anew("meet");
  learn(known, 1);
  CHECK(pthread_create(&thread, NULL, launch_many, context) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  launch_held(known, 1);
  show("launched");
  let_go();
}

/* Sees them, launches none. */
CASE(kernels_that_nobody_launches_are_listed) {
  enum { MANY = 20000 };
  static char text[MANY * 48 + 256];
  static CUkernel kernels[MANY];
  CUlibrary library;
  prepare();
  CUfunction known = kernel_anew("meet");
  learn(known, 1);
  many_short(kernel_anew("spin"));
  char *at = text + sprintf(text, ".version 7.0\n.target sm_50\n.address_size 64\n");
  for (int i = 0; i < MANY; i++) at += sprintf(at, ".visible .entry k%d() { ret; }\n", i);
  OK(cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0));
  OK(cuLibraryEnumerateKernels(kernels, MANY, library));
  launch_held(known, 1);
  show("launched");
  let_go();
}
