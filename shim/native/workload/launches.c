/* penstock-launches: measures what a launch costs the caller, in nanoseconds, and prints the result
 * as JSON. It measures several ways of launching: back to back or singly, of one kind or many, by
 * several threads at the same time, and after operations that may slow down later launches.
 *
 * It is an ordinary CUDA program that knows nothing of the shim. Its kernels take --kernel-us,
 * which is short enough that no launch waits at a gate. A kind is a function with a grid.
 *
 *   penstock-launches [--calls N] [--gap-us N] [--kinds N] [--threads N] [--default-stream]
 *                     [--pause-us N] [--kernel-us N]
 *                     [--after grids|modules|shares [--count N] [--seconds S]]
 *
 * Without a gap, each stream is drained, untimed, after one launch of every kind (after 256
 * launches if there is one kind), and the caller sleeps for --pause-us. With --after, the same
 * launches are timed before and after COUNT steps. A step makes a new grid, or loads, uses and
 * unloads a module, or shares an allocation with other processes. The steps end after S seconds at
 * the latest; "reached" is the number of steps made.
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "penstock-launches"
#include "workload/program.h"
#include "workload/statistics.h"

enum { MOST_THREADS = 64, MOST_KINDS = 4096, FUNCTIONS = 20, DRAIN_EVERY = 256 };
enum { SHARE_BYTES = 2 << 20, STEPS_KEPT = 1024, PTX_BYTES = 512 };

#define PTX_HEAD ".version 7.0\n.target sm_52\n.address_size 64\n"
/* Spins for the time in its parameter. The simulated device recognises it by the end of its name.
 */
static const char function_ptx[] =
    ".visible .entry penstock_%02d_spin(.param .u64 duration)\n{\n"
    ".reg .u64 %%start, %%now, %%limit;\n.reg .pred %%more;\n"
    "ld.param.u64 %%limit, [duration];\nmov.u64 %%start, %%globaltimer;\n"
    "again:\nmov.u64 %%now, %%globaltimer;\nsub.u64 %%now, %%now, %%start;\n"
    "setp.lt.u64 %%more, %%now, %%limit;\n@%%more bra again;\nret;\n}\n";

static struct {
  __typeof__(&cuModuleLoadData) module_load;
  __typeof__(&cuModuleUnload) module_unload;
  __typeof__(&cuModuleGetFunction) function_get;
  __typeof__(&cuStreamCreate) stream_create;
  __typeof__(&cuStreamSynchronize) synchronize;
  __typeof__(&cuLaunchKernel) launch;
  __typeof__(&cuMemAlloc_v2) alloc;
  __typeof__(&cuIpcGetMemHandle) share;
} cu;

static struct {
  double kernel_us, gap_us, pause_us, seconds;
  long calls, kinds, threads, count, default_stream;
  const char *after;
} options = {.kernel_us = 1, .seconds = 30, .calls = 20000, .kinds = 1, .threads = 1};

static CUcontext context;
static CUfunction functions[FUNCTIONS];
static pthread_barrier_t start;

typedef struct worker {
  pthread_t thread;
  CUstream stream;
  uint64_t *samples;
} worker;

static void find_functions(void) {
  static const wanted_function wanted[] = {
      {&cu.module_load, "cuModuleLoadData"},
      {&cu.module_unload, "cuModuleUnload"},
      {&cu.function_get, "cuModuleGetFunction"},
      {&cu.stream_create, "cuStreamCreate"},
      {&cu.synchronize, "cuStreamSynchronize"},
      {&cu.launch, "cuLaunchKernel"},
      {&cu.alloc, "cuMemAlloc"},
      {&cu.share, "cuIpcGetMemHandle"},
  };
  load_driver(wanted, sizeof wanted / sizeof *wanted, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
}

/* Loads a module with `count` functions. */
static CUmodule load_functions(CUfunction *found, int count) {
  static __thread char text[sizeof PTX_HEAD + FUNCTIONS * PTX_BYTES];
  size_t length = sizeof PTX_HEAD - 1;
  CUmodule module;
  memcpy(text, PTX_HEAD, sizeof PTX_HEAD);
  for (int i = 0; i < count; i++)
    length += (size_t)snprintf(text + length, sizeof text - length, function_ptx, i);
  check(cu.module_load(&module, text), "cuModuleLoadData");
  for (int i = 0; i < count; i++) {
    char name[32];
    snprintf(name, sizeof name, "penstock_%02d_spin", i);
    check(cu.function_get(&found[i], module, name), name);
  }
  return module;
}

static void launch(CUfunction function, unsigned wide, unsigned high, CUstream stream) {
  uint64_t duration_ns = (uint64_t)(options.kernel_us * 1000);
  void *params[] = {&duration_ns};
  check(cu.launch(function, wide, high, 1, 32, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

static void launch_kind(long kind, CUstream stream) {
  launch(functions[kind % FUNCTIONS], 1 + (unsigned)(kind / FUNCTIONS), 1, stream);
}

/* Spins instead of sleeping, because a program that launches singly computes between launches.
 * After a sleep, the measurement would include cold caches. */
static void wait_until(uint64_t when_ns) {
  while (now_ns() < when_ns) {
  }
}

static void drain(CUstream stream) {
  check(cu.synchronize(stream), "cuStreamSynchronize");
  if (options.pause_us > 0) usleep((useconds_t)options.pause_us);
}

static void time_launches(CUstream stream, uint64_t *samples, long calls) {
  const long drain_every = options.kinds > 1 ? options.kinds : DRAIN_EVERY;
  for (long i = 0; i < calls; i++) {
    if (options.gap_us > 0)
      wait_until(now_ns() + (uint64_t)(options.gap_us * 1000));
    else if (i % drain_every == 0)
      drain(stream);
    const uint64_t begin_ns = now_ns();
    launch_kind(i % options.kinds, stream);
    samples[i] = now_ns() - begin_ns;
  }
  check(cu.synchronize(stream), "cuStreamSynchronize");
}

static void *work(void *argument) {
  worker *self = argument;
  check(driver.context_set(context), "cuCtxSetCurrent");
  if (!options.default_stream)
    check(cu.stream_create(&self->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  time_launches(self->stream, self->samples, (options.calls + 3) / 4); /* warm up */
  pthread_barrier_wait(&start);
  time_launches(self->stream, self->samples, options.calls);
  return NULL;
}

/* Runs all threads at the same time and stores their samples one thread after another. */
static void run_threads(uint64_t *samples) {
  static worker workers[MOST_THREADS];
  if (pthread_barrier_init(&start, NULL, (unsigned)options.threads) != 0) exit(1);
  for (long i = 0; i < options.threads; i++) {
    workers[i].samples = samples + i * options.calls;
    if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) exit(1);
  }
  for (long i = 0; i < options.threads; i++) pthread_join(workers[i].thread, NULL);
}

/* Makes one new grid, module or share. Returns the duration of its blocking calls. */
static uint64_t step_once(long number, CUstream stream) {
  const uint64_t begin_ns = now_ns();
  if (options.after[0] == 'g') {
    launch(functions[0], 2 + (unsigned)(number % 1000), 2 + (unsigned)(number / 1000), stream);
    const uint64_t took_ns = now_ns() - begin_ns;
    if (number % 64 == 63) check(cu.synchronize(stream), "cuStreamSynchronize");
    return took_ns;
  }
  if (options.after[0] == 'm') {
    CUfunction function;
    CUmodule module = load_functions(&function, 1);
    launch(function, 1, 1, stream);
    check(cu.synchronize(stream), "cuStreamSynchronize");
    check(cu.module_unload(module), "cuModuleUnload");
    return now_ns() - begin_ns;
  }
  CUdeviceptr pointer;
  CUipcMemHandle handle;
  check(cu.alloc(&pointer, SHARE_BYTES), "cuMemAlloc");
  check(cu.share(&handle, pointer), "cuIpcGetMemHandle");
  return now_ns() - begin_ns;
}

/* Times the same launches before and after the steps, in this thread. */
static void run_steps(uint64_t *samples) {
  static uint64_t steps[STEPS_KEPT];
  CUstream stream;
  check(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  time_launches(stream, samples, (options.calls + 3) / 4); /* warm up */
  time_launches(stream, samples, options.calls);
  printf("{\n");
  report_samples("before", samples, (size_t)options.calls, ",");
  const uint64_t end_ns = now_ns() + (uint64_t)(options.seconds * 1e9);
  long reached = 0;
  for (; reached < options.count && now_ns() < end_ns; reached++)
    steps[reached % STEPS_KEPT] = step_once(reached, stream);
  check(cu.synchronize(stream), "cuStreamSynchronize");
  time_launches(stream, samples, options.calls);
  report_samples("after", samples, (size_t)options.calls, ",");
  const size_t kept = reached < STEPS_KEPT ? (size_t)reached : STEPS_KEPT;
  printf("  \"reached\": %ld, \"last_step_ns\": %llu\n}\n", reached,
         (unsigned long long)median_of(steps, kept));
}

static bool take_word(const char *name, const char *value) {
  static const struct {
    const char *name;
    double *real;
    long *whole;
  } known[] = {
      {"--kernel-us", &options.kernel_us, NULL}, {"--gap-us", &options.gap_us, NULL},
      {"--pause-us", &options.pause_us, NULL},   {"--seconds", &options.seconds, NULL},
      {"--calls", NULL, &options.calls},         {"--kinds", NULL, &options.kinds},
      {"--threads", NULL, &options.threads},     {"--count", NULL, &options.count},
  };
  if (!value) return false;
  if (strcmp(name, "--after") == 0) {
    options.after = value;
    return strcmp(value, "grids") == 0 || strcmp(value, "modules") == 0 ||
           strcmp(value, "shares") == 0;
  }
  for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
    if (strcmp(known[k].name, name) != 0) continue;
    if (known[k].real)
      *known[k].real = atof(value);
    else
      *known[k].whole = atol(value);
    return true;
  }
  return false;
}

static void parse(int count, char **words) {
  for (int i = 1; i < count; i++) {
    if (strcmp(words[i], "--default-stream") == 0) {
      options.default_stream = 1;
    } else if (!take_word(words[i], i + 1 < count ? words[i + 1] : NULL)) {
      fprintf(stderr, PROGRAM ": %s is not an option, or lacks its value\n", words[i]);
      exit(2);
    } else {
      i++;
    }
  }
  if (options.calls < 100 || options.calls > 10000000 || options.kinds < 1 ||
      options.kinds > MOST_KINDS || options.threads < 1 || options.threads > MOST_THREADS) {
    fprintf(stderr, PROGRAM ": at least 100 calls, 1 to %d kinds, 1 to %d threads\n", MOST_KINDS,
            MOST_THREADS);
    exit(2);
  }
}

int main(int count, char **words) {
  parse(count, words);
  const size_t all = (size_t)(options.calls * options.threads);
  uint64_t *samples = calloc(all, sizeof *samples);
  if (!samples) return 1;
  find_functions();
  check(driver.init(0), "cuInit");
  context = enter_context(0);
  (void)load_functions(functions, FUNCTIONS);
  if (options.after) {
    run_steps(samples);
    return 0;
  }
  run_threads(samples);
  printf("{\n");
  report_samples("launch", samples, all, "");
  printf("}\n");
  return 0;
}
