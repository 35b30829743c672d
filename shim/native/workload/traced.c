/* penstock-traced: keeps a device busy with kernels that record when they ran, one segment for each
 * stretch without preemption (trace_kernels.h). `make gpu-check` uses it to measure.
 *
 * It is an ordinary CUDA program that knows nothing of the shim. It prints "ready" on a line of its
 * own and launches until its time is over or SIGTERM arrives. It then writes the segments to a file
 * (four 64-bit words each) and prints what it did as one line of JSON, without waiting for queued
 * work. On a simulated device, kernels compute nothing, so the trace stays empty; use the
 * simulator's record there.
 *
 *   penstock-traced [--kernel spin|sweep|multiply] [--kernel-us N] [--jitter PERCENT] [--seconds S]
 *                   [--graph NODES] [--sync-every N] [--launches N] [--size N] [--threads N]
 *                   [--out FILE]
 *   penstock-traced --ptx      prints its kernels
 *
 * --size is the number of MiB that a sweep reads, or the number of rows of the matrices, a multiple
 * of 16. With --threads, all threads launch on one stream, and each waits for it on its own.
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "penstock-traced"
#include "workload/program.h"
#include "workload/trace_kernels.h"

enum {
  SEGMENTS = 2 << 20,
  CLOCK_ROUNDS = 50,
  SWEEP_BLOCKS = 528,
  SWEEP_THREADS = 256,
  TILE = 16,
  MOST_THREADS = 64
};

static struct {
  __typeof__(&cuModuleLoadData) module_load;
  __typeof__(&cuModuleGetFunction) function_get;
  __typeof__(&cuStreamCreate) stream_create;
  __typeof__(&cuStreamSynchronize) synchronize;
  __typeof__(&cuLaunchKernel) launch;
  __typeof__(&cuStreamBeginCapture_v2) capture_begin;
  __typeof__(&cuStreamEndCapture) capture_end;
  __typeof__(&cuGraphInstantiateWithFlags) instantiate;
  __typeof__(&cuGraphLaunch) graph_launch;
  __typeof__(&cuMemAlloc_v2) alloc;
  __typeof__(&cuMemsetD32Async) set;
  __typeof__(&cuMemcpyDtoHAsync_v2) fetch;
  __typeof__(&cuMemcpyHtoDAsync_v2) send;
} cu;

static struct {
  const char *kernel, *out;
  double kernel_us, jitter, seconds;
  long graph, sync_every, launches, size, threads;
} options = {.kernel = "spin", .kernel_us = 200, .seconds = 1, .threads = 1};

static volatile sig_atomic_t stopped;
static CUcontext context;
static CUfunction spin, sweep, multiply, clock_kernel;
static CUstream stream, aside; /* `stream` for work, `aside` for reading memory meanwhile */
static CUdeviceptr trace, data, right, result;
static CUgraphExec graph;
static uint64_t launched, end_ns;
static __thread unsigned seed = 1;

typedef struct clock_pair {
  /* the host's time is exact to within half of width_ns */
  uint64_t host_ns, device_ns, width_ns;
} clock_pair;

static void stop(int signal_number) {
  (void)signal_number;
  stopped = 1;
}

static void find_functions(void) {
  static const wanted_function wanted[] = {
      {&cu.module_load, "cuModuleLoadData"},   {&cu.function_get, "cuModuleGetFunction"},
      {&cu.stream_create, "cuStreamCreate"},   {&cu.synchronize, "cuStreamSynchronize"},
      {&cu.launch, "cuLaunchKernel"},          {&cu.capture_begin, "cuStreamBeginCapture"},
      {&cu.capture_end, "cuStreamEndCapture"}, {&cu.instantiate, "cuGraphInstantiateWithFlags"},
      {&cu.graph_launch, "cuGraphLaunch"},     {&cu.alloc, "cuMemAlloc"},
      {&cu.set, "cuMemsetD32Async"},           {&cu.fetch, "cuMemcpyDtoHAsync"},
      {&cu.send, "cuMemcpyHtoDAsync"},
  };
  load_driver(wanted, sizeof wanted / sizeof *wanted, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
}

static CUdeviceptr memory(size_t bytes, uint32_t word) {
  CUdeviceptr address;
  check(cu.alloc(&address, bytes), "cuMemAlloc");
  check(cu.set(address, word, bytes / 4, stream), "cuMemsetD32Async");
  return address;
}

static void fetch(void *to, CUdeviceptr from, size_t bytes) {
  check(cu.fetch(to, from, bytes, aside), "cuMemcpyDtoHAsync");
  check(cu.synchronize(aside), "cuStreamSynchronize");
}

/* Initialises the segments of multi-block kernels, whose blocks take the minimum start and the
 * maximum end. */
static void prepare_segments(void) {
  uint64_t *blank = malloc((size_t)SEGMENTS * SEGMENT_BYTES);
  if (!blank) exit(1);
  for (size_t i = 0; i < SEGMENTS; i++) {
    blank[4 * i] = UINT64_MAX;
    blank[4 * i + 1] = blank[4 * i + 2] = blank[4 * i + 3] = 0;
  }
  check(cu.send(trace + TRACE_HEAD_BYTES, blank, (size_t)SEGMENTS * SEGMENT_BYTES, stream),
        "cuMemcpyHtoDAsync");
  check(cu.synchronize(stream), "cuStreamSynchronize");
  free(blank);
}

static void prepare_work(void) {
  trace = memory(TRACE_HEAD_BYTES + (size_t)SEGMENTS * SEGMENT_BYTES, 0);
  prepare_segments();
  if (strcmp(options.kernel, "sweep") == 0) {
    if (!options.size) options.size = 512;
    data = memory((size_t)options.size << 20, 3);
    result = memory((size_t)SWEEP_BLOCKS * SWEEP_THREADS * 4, 0);
  } else if (strcmp(options.kernel, "multiply") == 0) {
    if (!options.size) options.size = 1024;
    size_t bytes = (size_t)options.size * (size_t)options.size * 4;
    data = memory(bytes, 0x3f9d70a4);  /* 1.23 */
    right = memory(bytes, 0x3ea8f5c3); /* 0.33 */
    result = memory(bytes, 0);
  }
  check(cu.synchronize(stream), "cuStreamSynchronize");
}

static void launch_spin(void) {
  double factor = 1;
  if (options.jitter > 0) factor += options.jitter / 100 * (2.0 * rand_r(&seed) / RAND_MAX - 1);
  uint64_t duration = (uint64_t)(options.kernel_us * 1000 * factor), fits = SEGMENTS;
  void *params[] = {&duration, &trace, &fits};
  check(cu.launch(spin, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

static void launch_wide(uint64_t number) {
  CUdeviceptr segment = trace + TRACE_HEAD_BYTES + number % SEGMENTS * SEGMENT_BYTES;
  if (*options.kernel == 's') {
    uint64_t words = (uint64_t)options.size << 18;
    void *params[] = {&data, &words, &result, &segment};
    check(cu.launch(sweep, SWEEP_BLOCKS, 1, 1, SWEEP_THREADS, 1, 1, 0, stream, params, NULL),
          "cuLaunchKernel");
  } else {
    uint64_t edge = (uint64_t)options.size;
    unsigned tiles = (unsigned)options.size / TILE;
    void *params[] = {&data, &right, &result, &edge, &segment};
    check(cu.launch(multiply, tiles, tiles, 1, TILE, TILE, 1, 0, stream, params, NULL),
          "cuLaunchKernel");
  }
}

static void launch_one(uint64_t number) {
  if (strcmp(options.kernel, "spin") == 0) {
    launch_spin();
  } else {
    launch_wide(number);
  }
}

static clock_pair pair_clocks(void) {
  CUdeviceptr place = memory(8, 0);
  void *params[] = {&place};
  clock_pair best = {.width_ns = UINT64_MAX};
  for (int i = 0; i < CLOCK_ROUNDS; i++) {
    uint64_t before = now_ns();
    check(cu.launch(clock_kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
    check(cu.synchronize(stream), "cuStreamSynchronize");
    uint64_t after = now_ns();
    if (after - before >= best.width_ns) continue;
    best.width_ns = after - before;
    best.host_ns = before + (after - before) / 2;
    fetch(&best.device_ns, place, 8);
  }
  return best;
}

/* Launches until the time is over, in one thread. `argument` seeds the thread's random order. */
static void *launch_on(void *argument) {
  seed = (unsigned)(uintptr_t)argument;
  check(driver.context_set(context), "cuCtxSetCurrent");
  uint64_t own = 0;
  while (!stopped && now_ns() < end_ns) {
    uint64_t before = __atomic_fetch_add(&launched, 1, __ATOMIC_RELAXED);
    if (options.launches && before >= (uint64_t)options.launches) {
      __atomic_fetch_sub(&launched, 1, __ATOMIC_RELAXED);
      break;
    }
    if (graph) {
      check(cu.graph_launch(graph, stream), "cuGraphLaunch");
    } else {
      launch_one(before);
    }
    if (options.sync_every && ++own % (uint64_t)options.sync_every == 0) {
      check(cu.synchronize(stream), "cuStreamSynchronize");
    }
  }
  return NULL;
}

static void work(void) {
  if (options.graph) {
    CUgraph captured;
    check(cu.capture_begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    for (long i = 0; i < options.graph; i++) launch_one(0);
    check(cu.capture_end(stream, &captured), "cuStreamEndCapture");
    check(cu.instantiate(&graph, captured, 0), "cuGraphInstantiateWithFlags");
  }
  end_ns = now_ns() + (uint64_t)(options.seconds * 1e9);
  pthread_t others[MOST_THREADS];
  for (long i = 1; i < options.threads; i++) {
    void *number = (void *)(uintptr_t)(i + 1);
    if (pthread_create(&others[i], NULL, launch_on, number) != 0) exit(1);
  }
  launch_on((void *)1);
  for (long i = 1; i < options.threads; i++) pthread_join(others[i], NULL);
}

static uint64_t digest_of_result(void) {
  if (!result) return 0;
  check(cu.synchronize(stream), "cuStreamSynchronize");
  size_t bytes = *options.kernel == 's' ? (size_t)SWEEP_BLOCKS * SWEEP_THREADS * 4
                                        : (size_t)options.size * (size_t)options.size * 4;
  unsigned char *host = malloc(bytes);
  uint64_t digest = 0xcbf29ce484222325u;
  if (!host) exit(1);
  fetch(host, result, bytes);
  for (size_t i = 0; i < bytes; i++) digest = (digest ^ host[i]) * 0x100000001b3u;
  free(host);
  return digest;
}

/* Writes the completed segments to the file and returns how many there are. */
static uint64_t write_segments(uint64_t *missed) {
  uint64_t stored = 0, written = 0;
  fetch(&stored, trace, 8);
  if (strcmp(options.kernel, "spin") != 0) stored = launched;
  *missed = stored > SEGMENTS ? stored - SEGMENTS : 0;
  if (stored > SEGMENTS) stored = SEGMENTS;
  uint64_t *segments = malloc(stored * SEGMENT_BYTES + 1);
  FILE *file = fopen(options.out ? options.out : "/dev/null", "w");
  if (!segments || !file) {
    fprintf(stderr, PROGRAM ": cannot write %s\n", options.out);
    exit(1);
  }
  if (stored) fetch(segments, trace + TRACE_HEAD_BYTES, stored * SEGMENT_BYTES);
  for (uint64_t i = 0; i < stored; i++) {
    /* not run yet */
    if (!segments[4 * i + 1] || segments[4 * i] > segments[4 * i + 1]) continue;
    written += fwrite(&segments[4 * i], SEGMENT_BYTES, 1, file);
  }
  if (fclose(file) != 0) exit(1);
  free(segments);
  return written;
}

static void parse(int count, char **words) {
  const struct {
    const char *name, **text;
    double *real;
    long *whole;
  } known[] = {
      {"--kernel", &options.kernel, NULL, NULL},
      {"--out", &options.out, NULL, NULL},
      {"--kernel-us", NULL, &options.kernel_us, NULL},
      {"--jitter", NULL, &options.jitter, NULL},
      {"--seconds", NULL, &options.seconds, NULL},
      {"--graph", NULL, NULL, &options.graph},
      {"--sync-every", NULL, NULL, &options.sync_every},
      {"--launches", NULL, NULL, &options.launches},
      {"--size", NULL, NULL, &options.size},
      {"--threads", NULL, NULL, &options.threads},
  };
  for (int i = 1; i < count; i += 2) {
    size_t k = 0;
    while (k < sizeof known / sizeof *known && strcmp(known[k].name, words[i]) != 0) k++;
    if (k == sizeof known / sizeof *known || i + 1 == count) {
      fprintf(stderr, PROGRAM ": %s is not an option, or lacks its value\n", words[i]);
      exit(2);
    }
    if (known[k].text) *known[k].text = words[i + 1];
    if (known[k].real) *known[k].real = atof(words[i + 1]);
    if (known[k].whole) *known[k].whole = atol(words[i + 1]);
  }
  bool wide = strcmp(options.kernel, "sweep") == 0 || strcmp(options.kernel, "multiply") == 0;
  if ((!wide && strcmp(options.kernel, "spin") != 0) || (wide && options.graph) ||
      options.size < 0 || options.size % TILE || options.threads < 1 ||
      options.threads > MOST_THREADS) {
    fprintf(stderr,
            PROGRAM
            ": --kernel spin, or sweep or multiply without --graph; --size a "
            "multiple of %d; --threads 1 to %d\n",
            TILE, MOST_THREADS);
    exit(2);
  }
}

int main(int count, char **words) {
  if (count == 2 && strcmp(words[1], "--ptx") == 0) return fputs(trace_kernels, stdout) < 0;
  CUmodule module;
  uint64_t missed;
  parse(count, words);
  signal(SIGTERM, stop);
  find_functions();
  check(driver.init(0), "cuInit");
  context = enter_context(0);
  check(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  check(cu.stream_create(&aside, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  check(cu.module_load(&module, trace_kernels), "cuModuleLoadData");
  check(cu.function_get(&spin, module, "penstock_traced"), "penstock_traced");
  check(cu.function_get(&sweep, module, "penstock_sweep"), "penstock_sweep");
  check(cu.function_get(&multiply, module, "penstock_multiply"), "penstock_multiply");
  check(cu.function_get(&clock_kernel, module, "penstock_clock"), "penstock_clock");
  prepare_work();
  clock_pair before = pair_clocks();
  puts("ready");
  fflush(stdout);
  const uint64_t began_ns = now_ns();
  work();
  const uint64_t ended_ns = now_ns();
  uint64_t digest = digest_of_result(), written = write_segments(&missed);
  printf(
      "{\"launches\": %llu, \"began_ns\": %llu, \"ended_ns\": %llu, \"segments\": %llu, "
      "\"missed\": %llu, \"digest\": \"%016llx\", \"clock\": {\"host_ns\": %llu, "
      "\"device_ns\": %llu, \"width_ns\": %llu}}\n",
      (unsigned long long)launched, (unsigned long long)began_ns, (unsigned long long)ended_ns,
      (unsigned long long)written, (unsigned long long)missed, (unsigned long long)digest,
      (unsigned long long)before.host_ns, (unsigned long long)before.device_ns,
      (unsigned long long)before.width_ns);
  fflush(stdout);
  _exit(0); /* exits without waiting for queued work */
}
