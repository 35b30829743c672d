/* penstock-launcher: keeps a device busy in a chosen way and prints the latency of its launches as
 * one line of JSON.
 *
 * It is an ordinary CUDA program that knows nothing of the shim. It finds the driver by dlopen and
 * cuGetProcAddress, as the runtime does. Its kernel spins for the time in its parameter: on a real
 * device by the device's clock, on a simulated one by the rule "penstock_spin=param0".
 *
 *   penstock-launcher [--kernel-us N] [--jitter PERCENT] [--seconds S] [--threads N] [--streams N]
 *                     [--graph NODES] [--sync-every N] [--gap-us N] [--launches N] [--device N]
 *                     [--copy-bytes N] [--default-stream] [--per-thread] [--start-at NS]
 *
 * Each thread has its own streams, unless all threads launch on the default stream
 * (--default-stream) or each on its own default stream (--per-thread).
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define PROGRAM "penstock-launcher"
#include "workload/program.h"

enum { MOST_THREADS = 64, MOST_STREAMS = 64, BUCKETS = 64 * 16 };

static const char ptx[] =
    ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".visible .entry penstock_spin(.param .u64 duration)\n{\n"
    ".reg .u64 %start, %now, %limit;\n.reg .pred %more;\n"
    "ld.param.u64 %limit, [duration];\nmov.u64 %start, %globaltimer;\n"
    "again:\nmov.u64 %now, %globaltimer;\nsub.u64 %now, %now, %start;\n"
    "setp.lt.u64 %more, %now, %limit;\n@%more bra again;\nret;\n}\n";

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
  __typeof__(&cuMemcpyHtoDAsync_v2) copy;
} cu;

static struct {
  double kernel_us, jitter, seconds, gap_us;
  long threads, streams, graph, sync_every, launches, device, copy_bytes, default_stream,
      per_thread;
  uint64_t start_at;
} options = {.kernel_us = 200, .seconds = 1, .threads = 1, .streams = 1};

static CUcontext context;
static CUfunction kernel;

typedef struct worker {
  pthread_t thread;
  unsigned seed;
  uint64_t launches;
  uint64_t worst_ns;
  uint64_t sum_ns;
  uint64_t histogram[BUCKETS]; /* launch latencies, 16 buckets per octave */
} worker;

static void sleep_until(uint64_t ns) {
  struct timespec until = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {
  }
}

static void find_functions(void) {
  static const wanted_function wanted[] = {
      {&cu.module_load, "cuModuleLoadData"},   {&cu.function_get, "cuModuleGetFunction"},
      {&cu.stream_create, "cuStreamCreate"},   {&cu.synchronize, "cuStreamSynchronize"},
      {&cu.launch, "cuLaunchKernel"},          {&cu.capture_begin, "cuStreamBeginCapture"},
      {&cu.capture_end, "cuStreamEndCapture"}, {&cu.instantiate, "cuGraphInstantiateWithFlags"},
      {&cu.graph_launch, "cuGraphLaunch"},     {&cu.alloc, "cuMemAlloc"},
      {&cu.copy, "cuMemcpyHtoDAsync"},
  };
  cuuint64_t flags = options.per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                        : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  load_driver(wanted, sizeof wanted / sizeof *wanted, flags);
}

static unsigned bucket_of(uint64_t ns) {
  if (ns < 16) return (unsigned)ns;
  unsigned octave = 63 - (unsigned)__builtin_clzll(ns);
  return (octave - 3) * 16 + (unsigned)(ns >> (octave - 4) & 15);
}

static uint64_t value_of(unsigned bucket) {
  if (bucket < 16) return bucket;
  unsigned octave = bucket / 16 + 3;
  return (uint64_t)(16 + bucket % 16) << (octave - 4);
}

static uint64_t duration_ns(worker *self) {
  double factor = 1;
  if (options.jitter > 0) {
    factor += options.jitter / 100 * (2.0 * rand_r(&self->seed) / RAND_MAX - 1);
  }
  return (uint64_t)(options.kernel_us * 1000 * factor);
}

static void launch_kernel(worker *self, CUstream stream) {
  uint64_t duration = duration_ns(self);
  void *params[] = {&duration};
  check(cu.launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

static CUgraphExec make_graph(worker *self, CUstream stream) {
  CUgraph graph;
  CUgraphExec exec;
  check(cu.capture_begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
  for (long i = 0; i < options.graph; i++) launch_kernel(self, stream);
  check(cu.capture_end(stream, &graph), "cuStreamEndCapture");
  check(cu.instantiate(&exec, graph, 0), "cuGraphInstantiateWithFlags");
  return exec;
}

static void *work(void *argument) {
  worker *self = argument;
  CUstream streams[MOST_STREAMS];
  CUgraphExec graph = NULL;
  CUdeviceptr buffer = 0;
  void *host = NULL;
  check(driver.context_set(context), "cuCtxSetCurrent");
  for (long i = 0; i < options.streams; i++) {
    streams[i] = NULL;
    if (options.per_thread || options.default_stream) continue;
    check(cu.stream_create(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  if (options.graph) graph = make_graph(self, streams[0]);
  if (options.copy_bytes) {
    check(cu.alloc(&buffer, (size_t)options.copy_bytes), "cuMemAlloc");
    host = calloc(1, (size_t)options.copy_bytes);
  }
  if (options.start_at) sleep_until(options.start_at);
  const uint64_t end_ns = now_ns() + (uint64_t)(options.seconds * 1e9);
  while (!options.launches || self->launches < (uint64_t)options.launches) {
    CUstream stream = streams[self->launches % (uint64_t)options.streams];
    uint64_t before_ns = now_ns();
    if (before_ns >= end_ns) break;
    if (graph) {
      check(cu.graph_launch(graph, stream), "cuGraphLaunch");
    } else {
      launch_kernel(self, stream);
    }
    uint64_t took_ns = now_ns() - before_ns;
    self->launches++;
    self->sum_ns += took_ns;
    self->histogram[bucket_of(took_ns)]++;
    if (took_ns > self->worst_ns) self->worst_ns = took_ns;
    if (buffer) {
      check(cu.copy(buffer, host, (size_t)options.copy_bytes, stream), "cuMemcpyHtoDAsync");
    }
    if (options.sync_every && self->launches % (uint64_t)options.sync_every == 0) {
      check(cu.synchronize(stream), "cuStreamSynchronize");
    }
    if (options.gap_us > 0) sleep_until(now_ns() + (uint64_t)(options.gap_us * 1000));
  }
  return NULL;
}

static uint64_t quantile(const worker *all, double q) {
  uint64_t rank = (uint64_t)(q * (double)all->launches), seen = 0;
  for (unsigned i = 0; i < BUCKETS; i++) {
    seen += all->histogram[i];
    if (seen > rank) return value_of(i);
  }
  return all->worst_ns;
}

static void report(const worker *workers, double seconds) {
  worker all = {0};
  for (long i = 0; i < options.threads; i++) {
    all.launches += workers[i].launches;
    all.sum_ns += workers[i].sum_ns;
    if (workers[i].worst_ns > all.worst_ns) all.worst_ns = workers[i].worst_ns;
    for (unsigned k = 0; k < BUCKETS; k++) all.histogram[k] += workers[i].histogram[k];
  }
  printf(
      "{\"launches\": %llu, \"seconds\": %.6f, \"launch_ns\": {\"mean\": %.1f, \"p50\": %llu, "
      "\"p90\": %llu, \"p99\": %llu, \"max\": %llu}}\n",
      (unsigned long long)all.launches, seconds,
      all.launches ? (double)all.sum_ns / (double)all.launches : 0.0,
      (unsigned long long)quantile(&all, 0.5), (unsigned long long)quantile(&all, 0.9),
      (unsigned long long)quantile(&all, 0.99), (unsigned long long)all.worst_ns);
  fflush(stdout);
}

static void parse(int count, char **words) {
  static const struct {
    const char *name;
    double *real;
    long *whole;
  } known[] = {
      {"--kernel-us", &options.kernel_us, NULL},   {"--jitter", &options.jitter, NULL},
      {"--seconds", &options.seconds, NULL},       {"--gap-us", &options.gap_us, NULL},
      {"--threads", NULL, &options.threads},       {"--streams", NULL, &options.streams},
      {"--graph", NULL, &options.graph},           {"--sync-every", NULL, &options.sync_every},
      {"--launches", NULL, &options.launches},     {"--device", NULL, &options.device},
      {"--copy-bytes", NULL, &options.copy_bytes},
  };
  for (int i = 1; i < count; i++) {
    bool per_thread = strcmp(words[i], "--per-thread") == 0;
    if (per_thread || strcmp(words[i], "--default-stream") == 0) {
      *(per_thread ? &options.per_thread : &options.default_stream) = 1;
      continue;
    }
    size_t k = 0;
    while (k < sizeof known / sizeof *known && strcmp(known[k].name, words[i]) != 0) k++;
    bool start = strcmp(words[i], "--start-at") == 0;
    if ((k == sizeof known / sizeof *known && !start) || i + 1 == count) {
      fprintf(stderr, PROGRAM ": %s is not an option, or lacks its value\n", words[i]);
      exit(2);
    }
    i++;
    if (start) {
      options.start_at = strtoull(words[i], NULL, 10);
    } else if (known[k].real) {
      *known[k].real = atof(words[i]);
    } else {
      *known[k].whole = atol(words[i]);
    }
  }
  if (options.threads < 1 || options.threads > MOST_THREADS || options.streams < 1 ||
      options.streams > MOST_STREAMS) {
    fprintf(stderr, PROGRAM ": 1 to %d threads, 1 to %d streams each\n", MOST_THREADS,
            MOST_STREAMS);
    exit(2);
  }
}

int main(int count, char **words) {
  static worker workers[MOST_THREADS];
  CUmodule module;
  parse(count, words);
  find_functions();
  check(driver.init(0), "cuInit");
  context = enter_context((int)options.device);
  check(cu.module_load(&module, ptx), "cuModuleLoadData");
  check(cu.function_get(&kernel, module, "penstock_spin"), "cuModuleGetFunction");
  uint64_t began_ns = now_ns();
  for (long i = 0; i < options.threads; i++) {
    workers[i].seed = (unsigned)(i + 1);
    if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) exit(1);
  }
  for (long i = 0; i < options.threads; i++) pthread_join(workers[i].thread, NULL);
  report(workers, (double)(now_ns() - began_ns) / 1e9);
  return 0;
}
