/* penstock-costs: measures what a driver and its device cost in time and memory. It prints, as one
 * line of JSON, the figures of a simulated GPU's device profile under their own names, and a few
 * figures that the gate assumes. It is an ordinary CUDA program that knows nothing of the shim.
 *
 * Figures that need the device's own clock (duration and gap of kernels) are omitted where that
 * clock is not available, as on a simulated device.
 *
 *   penstock-costs [CALLS]      default 2000
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <stdbool.h>
#include <string.h>

#define PROGRAM "penstock-costs"
#include "workload/program.h"
#include "workload/trace_kernels.h"

enum { DRAIN_EVERY = 128, SLAB_BYTES = 4 << 20, COPY_BYTES = 256 << 20, SEGMENTS = 4096 };
enum { COPIES = 5, DEEPEST_QUEUE = 8192, BLOCKED_NS = 50000000, TINY_RUNS = 512, GAP_RUNS = 256 };

static struct {
  __typeof__(&cuModuleLoadData) module_load;
  __typeof__(&cuModuleGetFunction) function_get;
  __typeof__(&cuStreamCreate) stream_create;
  __typeof__(&cuStreamSynchronize) synchronize;
  __typeof__(&cuStreamQuery) stream_query;
  __typeof__(&cuLaunchKernel) launch;
  __typeof__(&cuEventCreate) event_create;
  __typeof__(&cuEventRecord) event_record;
  __typeof__(&cuEventQuery) event_query;
  __typeof__(&cuEventElapsedTime_v2) elapsed;
  __typeof__(&cuStreamWriteValue64_v2) write_value;
  __typeof__(&cuMemHostAlloc) host_alloc;
  __typeof__(&cuMemHostGetDevicePointer_v2) device_pointer;
  __typeof__(&cuMemAlloc_v2) alloc;
  __typeof__(&cuMemFree_v2) release;
  __typeof__(&cuMemGetInfo_v2) info;
  __typeof__(&cuMemsetD32Async) set;
  __typeof__(&cuMemcpyDtoHAsync_v2) fetch;
  __typeof__(&cuMemcpyHtoDAsync_v2) send;
} cu;

static CUstream stream;
static CUfunction spin, clock_kernel;
static CUdeviceptr trace;
static uint64_t *samples;
static size_t calls = 2000;
static bool first = true;

static void find_functions(void) {
  static const wanted_function wanted[] = {
      {&cu.module_load, "cuModuleLoadData"},
      {&cu.function_get, "cuModuleGetFunction"},
      {&cu.stream_create, "cuStreamCreate"},
      {&cu.synchronize, "cuStreamSynchronize"},
      {&cu.stream_query, "cuStreamQuery"},
      {&cu.launch, "cuLaunchKernel"},
      {&cu.event_create, "cuEventCreate"},
      {&cu.event_record, "cuEventRecord"},
      {&cu.event_query, "cuEventQuery"},
      {&cu.elapsed, "cuEventElapsedTime"},
      {&cu.write_value, "cuStreamWriteValue64"},
      {&cu.host_alloc, "cuMemHostAlloc"},
      {&cu.device_pointer, "cuMemHostGetDevicePointer"},
      {&cu.alloc, "cuMemAlloc"},
      {&cu.release, "cuMemFree"},
      {&cu.info, "cuMemGetInfo"},
      {&cu.set, "cuMemsetD32Async"},
      {&cu.fetch, "cuMemcpyDtoHAsync"},
      {&cu.send, "cuMemcpyHtoDAsync"},
  };
  load_driver(wanted, sizeof wanted / sizeof *wanted, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
}

static int compare(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static void say(const char *name, double value) {
  printf("%s\"%s\": %.6g", first ? "{" : ", ", name, value);
  first = false;
}

static double median(uint64_t *values, size_t count) {
  qsort(values, count, sizeof *values, compare);
  return (double)values[count / 2];
}

static void drain(void) { check(cu.synchronize(stream), "cuStreamSynchronize"); }

static void launch_spin(uint64_t duration_ns) {
  uint64_t fits = SEGMENTS;
  void *params[] = {&duration_ns, &trace, &fits};
  check(cu.launch(spin, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

/* Times each CALL separately and prints the median as NAME. The queue is drained before it can
 * fill, which is not timed. */
#define TIME_CALL(name, CALL)             \
  do {                                    \
    for (size_t i = 0; i < calls; i++) {  \
      if (i % DRAIN_EVERY == 0) drain();  \
      const uint64_t begin_ns = now_ns(); \
      check(CALL, #CALL);                 \
      samples[i] = now_ns() - begin_ns;   \
    }                                     \
    drain();                              \
    say(name, median(samples, calls));    \
  } while (0)

static void time_stream_calls(void) {
  CUevent event;
  void *word;
  CUdeviceptr word_address, place;
  check(cu.event_create(&event, 0), "cuEventCreate");
  check(cu.host_alloc(&word, 64, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
  check(cu.device_pointer(&word_address, word, 0), "cuMemHostGetDevicePointer");
  check(cu.alloc(&place, 8), "cuMemAlloc");
  void *params[] = {&place};
  for (int warm = 0; warm < 64; warm++)
    check(cu.launch(clock_kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
  TIME_CALL("launch_ns", cu.launch(clock_kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  TIME_CALL("event_record_ns", cu.event_record(event, stream));
  TIME_CALL("query_ns", cu.event_query(event));
  TIME_CALL("stream_query_ns", cu.stream_query(stream));
  TIME_CALL("stream_op_ns", cu.write_value(stream, word_address, i, 0));
}

/* Times small allocations, which share a slab, and large ones, which have slabs of their own. */
static void time_allocations(void) {
  CUdeviceptr keep, pointer;
  size_t free_before, free_after, total;
  uint64_t *frees = calloc(calls, sizeof *frees);
  if (!frees) exit(1);
  check(cu.info(&free_before, &total), "cuMemGetInfo");
  say("memory_total_bytes", (double)total);
  /* keeps its slab allocated while the others are timed */
  check(cu.alloc(&keep, 512), "cuMemAlloc");
  for (int large = 0; large < 2; large++) {
    const size_t count = large ? calls / 10 : calls;
    for (size_t i = 0; i < count; i++) {
      const uint64_t begin_ns = now_ns();
      check(cu.alloc(&pointer, large ? SLAB_BYTES : 512), "cuMemAlloc");
      const uint64_t middle_ns = now_ns();
      check(cu.release(pointer), "cuMemFree");
      samples[i] = middle_ns - begin_ns;
      frees[i] = now_ns() - middle_ns;
    }
    say(large ? "memory_slab_ns" : "memory_call_ns", median(samples, count));
    say(large ? "memory_slab_free_ns" : "memory_free_ns", median(frees, count));
  }
  /* The size of a slab is the drop in free memory when the small allocations need another one. */
  size_t least = SIZE_MAX;
  check(cu.info(&free_before, &total), "cuMemGetInfo");
  for (int i = 0; i < 64; i++) {
    check(cu.alloc(&pointer, 256 << 10), "cuMemAlloc");
    check(cu.info(&free_after, &total), "cuMemGetInfo");
    if (free_after < free_before && free_before - free_after < least)
      least = free_before - free_after;
    free_before = free_after;
  }
  if (least != SIZE_MAX) say("slab_kib", (double)(least >> 10));
  free(frees);
}

/* Finds the tick of the events' clock: the smallest difference between two events. */
static void find_event_tick(void) {
  CUevent a, b;
  float step_ms = 1e9f, apart_ms;
  check(cu.event_create(&a, 0), "cuEventCreate");
  check(cu.event_create(&b, 0), "cuEventCreate");
  for (size_t i = 0; i < calls; i++) {
    check(cu.event_record(a, stream), "cuEventRecord");
    if (i % 8 == 7) launch_spin(1000 + i % 97);
    check(cu.event_record(b, stream), "cuEventRecord");
    drain();
    check(cu.elapsed(&apart_ms, a, b), "cuEventElapsedTime");
    if (apart_ms > 0 && apart_ms < step_ms) step_ms = apart_ms;
  }
  if (step_ms < 1e9f) say("event_tick_ns", (double)step_ms * 1e6);
}

/* Finds the queue depth by launching after a long kernel until a launch blocks. */
static void find_queue_depth(void) {
  CUdeviceptr place;
  check(cu.alloc(&place, 8), "cuMemAlloc");
  void *params[] = {&place};
  drain();
  launch_spin(300000000);
  for (int queued = 1; queued < DEEPEST_QUEUE; queued++) {
    const uint64_t begin_ns = now_ns();
    check(cu.launch(clock_kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
    if (now_ns() - begin_ns < BLOCKED_NS) continue;
    say("queue_depth", queued);
    break;
  }
  drain();
}

static void time_copies(void) {
  void *host;
  CUdeviceptr there;
  uint64_t took[COPIES];
  check(cu.host_alloc(&host, COPY_BYTES, 0), "cuMemHostAlloc");
  check(cu.alloc(&there, COPY_BYTES), "cuMemAlloc");
  for (int back = 0; back < 2; back++) {
    for (int i = 0; i < COPIES; i++) {
      const uint64_t begin_ns = now_ns();
      check(back ? cu.fetch(host, there, COPY_BYTES, stream)
                 : cu.send(there, host, COPY_BYTES, stream),
            "cuMemcpyAsync");
      drain();
      took[i] = now_ns() - begin_ns;
    }
    say(back ? "host_link_back_gb_per_s" : "host_link_gb_per_s",
        (double)COPY_BYTES / median(took, COPIES));
  }
  check(cu.release(there), "cuMemFree");
}

static size_t fetch_segments(uint64_t *segments) {
  uint64_t stored;
  check(cu.fetch(&stored, trace, 8, stream), "cuMemcpyDtoHAsync");
  drain();
  if (stored > SEGMENTS) stored = SEGMENTS;
  if (stored)
    check(cu.fetch(segments, trace + TRACE_HEAD_BYTES, stored * SEGMENT_BYTES, stream),
          "cuMemcpyDtoHAsync");
  check(cu.set(trace, 0, 16, stream), "cuMemsetD32Async");
  drain();
  return stored;
}

/* Measures by the device's clock the gap between kernels of a stream, the duration of an empty
 * kernel, and the delay of a launch on an idle stream. Single-block kernels of a stream run in
 * order, so their segments are in order. */
static void time_kernels(void) {
  static uint64_t segments[SEGMENTS * 4];
  (void)fetch_segments(segments);
  for (int i = 0; i < GAP_RUNS; i++) launch_spin(20000);
  drain();
  size_t stored = fetch_segments(segments), count = 0;
  if (stored < GAP_RUNS) return;
  for (size_t i = stored / 2; i < stored; i++)
    samples[count++] = segments[4 * i] - segments[4 * i - 3];
  const double gap_ns = median(samples, count);
  say("kernel_gap_ns", gap_ns);
  launch_spin(5000000); /* lets the host get ahead of the device */
  for (int i = 0; i < TINY_RUNS; i++) launch_spin(0);
  drain();
  stored = fetch_segments(segments);
  count = 0;
  for (size_t i = stored / 2; i + 1 < stored; i++)
    samples[count++] = segments[4 * i + 4] - segments[4 * i];
  if (count) say("kernel_floor_ns", median(samples, count) - gap_ns);
  uint64_t step_ns = UINT64_MAX;
  for (size_t i = 0; i + 1 < stored; i++) {
    const uint64_t apart = segments[4 * i + 1] - segments[4 * i];
    if (apart && apart < step_ns) step_ns = apart;
  }
  if (step_ns != UINT64_MAX) say("globaltimer_step_ns", (double)step_ns);
}

int main(int count, char **words) {
  if (count > 1) calls = strtoul(words[1], NULL, 10);
  samples = calls >= 100 && calls <= 10000000 ? calloc(calls + SEGMENTS, sizeof *samples) : NULL;
  if (!samples) {
    fprintf(stderr, PROGRAM ": CALLS must be a number from 100 to 10000000\n");
    return 2;
  }
  CUmodule module;
  find_functions();
  check(driver.init(0), "cuInit");
  enter_context(0);
  check(cu.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  check(cu.module_load(&module, trace_kernels), "cuModuleLoadData");
  check(cu.function_get(&spin, module, "penstock_traced"), "penstock_traced");
  check(cu.function_get(&clock_kernel, module, "penstock_clock"), "penstock_clock");
  check(cu.alloc(&trace, TRACE_HEAD_BYTES + SEGMENTS * SEGMENT_BYTES), "cuMemAlloc");
  check(cu.set(trace, 0, (TRACE_HEAD_BYTES + SEGMENTS * SEGMENT_BYTES) / 4, stream),
        "cuMemsetD32Async");
  drain();
  time_stream_calls();
  time_allocations();
  find_event_tick();
  find_queue_depth();
  time_copies();
  time_kernels();
  printf("}\n");
  return 0;
}
