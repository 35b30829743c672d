/* penstock-steps: computes in steps on data that lies in device memory, holds the memory of its
 * devices, tells its progress in a file, and prints a digest of its result as one line of JSON.
 *
 * It is an ordinary CUDA program that knows nothing of the shim. A step launches kernels on every
 * device that it sees, waits for them, and then mixes pages that it copies from and to the device.
 * So the digest depends on every step and on the contents of all of its pages: two runs with the
 * same options give the same digest only if no content was lost.
 *
 *   penstock-steps --steps N --progress FILE [--kernel-us N] [--launches N] [--chunks N]
 *                  [--hold BYTES] [--seed N]
 *
 * On each device the data takes CHUNKS allocations of 8 MiB. --hold takes further allocations until
 * the program has BYTES there, or, with --hold all, until the driver refuses a further megabyte.
 * N launches are made before each wait. The file has seven 8-byte numbers: see `progress`. Times
 * are those of CLOCK_MONOTONIC.
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PROGRAM "penstock-steps"
#include "workload/program.h"

enum { CHUNK_BYTES = 8 << 20, PAGE_WORDS = 1024, MOST_CHUNKS = 1024, MOST_DEVICES = 16 };
enum { LEAST_BYTES = 1 << 20 };

static const char ptx[] =
    ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".visible .entry penstock_spin(.param .u64 duration)\n{\n"
    ".reg .u64 %start, %now, %limit;\n.reg .pred %more;\n"
    "ld.param.u64 %limit, [duration];\nmov.u64 %start, %globaltimer;\n"
    "again:\nmov.u64 %now, %globaltimer;\nsub.u64 %now, %now, %start;\n"
    "setp.lt.u64 %more, %now, %limit;\n@%more bra again;\nret;\n}\n";

static struct {
  __typeof__(&cuDeviceGetCount) device_count;
  __typeof__(&cuModuleLoadData) module_load;
  __typeof__(&cuModuleGetFunction) function_get;
  __typeof__(&cuStreamCreate) stream_create;
  __typeof__(&cuStreamSynchronize) synchronize;
  __typeof__(&cuLaunchKernel) launch;
  __typeof__(&cuMemAlloc_v2) alloc;
  __typeof__(&cuMemsetD32_v2) fill;
  __typeof__(&cuMemcpyHtoD_v2) to_device;
  __typeof__(&cuMemcpyDtoH_v2) to_host;
  __typeof__(&cuMemcpyDtoD_v2) within;
} cu;

static struct {
  long steps, launches, chunks, seed;
  double kernel_us;
  uint64_t hold_bytes; /* UINT64_MAX: all that there is */
  const char *progress;
} options = {.launches = 1, .chunks = 8, .seed = 1, .kernel_us = 200};

/* What others read while the program runs. */
typedef struct progress {
  uint64_t began_ns;        /* when the program began */
  uint64_t held_ns;         /* when it had its memory; 0: not yet */
  uint64_t first_ns;        /* when its first kernel had ended; 0: not yet */
  uint64_t latest_ns;       /* when its latest kernel had ended */
  uint64_t steps;           /* that are done */
  uint64_t held_bytes;      /* on all devices */
  uint64_t longest_stop_ns; /* the longest time between two kernels' ends */
} progress;

typedef struct device {
  CUcontext context;
  CUfunction kernel;
  CUstream stream;
  CUdeviceptr chunks[MOST_CHUNKS];
  uint64_t held_bytes;
} device;

static device devices[MOST_DEVICES];
static int device_count;
static volatile progress *shared;

static void find_functions(void) {
  static const wanted_function wanted[] = {
      {&cu.device_count, "cuDeviceGetCount"},
      {&cu.module_load, "cuModuleLoadData"},
      {&cu.function_get, "cuModuleGetFunction"},
      {&cu.stream_create, "cuStreamCreate"},
      {&cu.synchronize, "cuStreamSynchronize"},
      {&cu.launch, "cuLaunchKernel"},
      {&cu.alloc, "cuMemAlloc"},
      {&cu.fill, "cuMemsetD32"},
      {&cu.to_device, "cuMemcpyHtoD"},
      {&cu.to_host, "cuMemcpyDtoH"},
      {&cu.within, "cuMemcpyDtoD"},
  };
  load_driver(wanted, sizeof wanted / sizeof *wanted, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
}

static void open_progress(void) {
  int fd = open(options.progress, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0 || ftruncate(fd, sizeof(progress)) != 0) {
    perror(PROGRAM ": the progress file");
    exit(1);
  }
  void *at = mmap(NULL, sizeof(progress), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    perror(PROGRAM ": the progress file");
    exit(1);
  }
  close(fd);
  shared = at;
  shared->began_ns = now_ns();
}

/* Takes memory that only fills the device: in pieces, which become smaller where one is refused. */
static void hold_more(device *one) {
  size_t piece = (size_t)256 << 20;
  while (piece >= LEAST_BYTES && one->held_bytes < options.hold_bytes) {
    const uint64_t lacks = options.hold_bytes - one->held_bytes;
    const size_t bytes = lacks < piece ? (size_t)lacks : piece;
    CUdeviceptr pointer;
    const CUresult result = cu.alloc(&pointer, bytes);
    if (result == CUDA_SUCCESS) {
      one->held_bytes += bytes;
      continue;
    }
    if (result != CUDA_ERROR_OUT_OF_MEMORY) check(result, "cuMemAlloc");
    piece /= 2;
  }
  if (options.hold_bytes != UINT64_MAX && one->held_bytes < options.hold_bytes) {
    fprintf(stderr, PROGRAM ": out of memory: %llu of %llu bytes\n",
            (unsigned long long)one->held_bytes, (unsigned long long)options.hold_bytes);
    exit(3);
  }
}

static void open_device(int ordinal) {
  device *one = &devices[ordinal];
  CUmodule module;
  one->context = enter_context(ordinal);
  check(cu.module_load(&module, ptx), "cuModuleLoadData");
  check(cu.function_get(&one->kernel, module, "penstock_spin"), "cuModuleGetFunction");
  check(cu.stream_create(&one->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  for (long i = 0; i < options.chunks; i++) {
    check(cu.alloc(&one->chunks[i], CHUNK_BYTES), "cuMemAlloc");
    one->held_bytes += CHUNK_BYTES;
    check(cu.fill(one->chunks[i], (unsigned)(options.seed * 1000 + ordinal * 100 + i), PAGE_WORDS),
          "cuMemsetD32");
  }
  hold_more(one);
  shared->held_bytes += one->held_bytes;
}

static void launch_all(void) {
  uint64_t duration_ns = (uint64_t)(options.kernel_us * 1000);
  void *params[] = {&duration_ns};
  for (int i = 0; i < device_count; i++) {
    check(driver.context_set(devices[i].context), "cuCtxSetCurrent");
    for (long k = 0; k < options.launches; k++)
      check(cu.launch(devices[i].kernel, 1, 1, 1, 32, 1, 1, 0, devices[i].stream, params, NULL),
            "cuLaunchKernel");
  }
  for (int i = 0; i < device_count; i++) {
    check(driver.context_set(devices[i].context), "cuCtxSetCurrent");
    check(cu.synchronize(devices[i].stream), "cuStreamSynchronize");
  }
}

static void tell_progress(void) {
  const uint64_t now = now_ns();
  if (!shared->first_ns) {
    shared->first_ns = now;
  } else if (now - shared->latest_ns > shared->longest_stop_ns) {
    shared->longest_stop_ns = now - shared->latest_ns;
  }
  shared->latest_ns = now;
  shared->steps++;
}

/* Reads one chunk's page, mixes it with the step, and writes it to another; a third is copied on
 * the device. */
static void mix(device *one, uint64_t step) {
  static uint32_t page[PAGE_WORDS];
  const uint64_t many = (uint64_t)options.chunks;
  const CUdeviceptr from = one->chunks[step % many], to = one->chunks[(7 * step + 3) % many];
  check(driver.context_set(one->context), "cuCtxSetCurrent");
  check(cu.to_host(page, from, sizeof page), "cuMemcpyDtoH");
  for (size_t i = 0; i < PAGE_WORDS; i++) {
    const uint32_t before = page[(i + PAGE_WORDS - 1) % PAGE_WORDS];
    page[i] = page[i] * 2654435761u + (before >> 7) + (uint32_t)step;
  }
  check(cu.to_device(to, page, sizeof page), "cuMemcpyHtoD");
  check(cu.within(one->chunks[(5 * step + 1) % many] + CHUNK_BYTES / 2, to, sizeof page / 2),
        "cuMemcpyDtoD");
}

static uint64_t digest_of(uint64_t digest, CUdeviceptr at) {
  static unsigned char page[PAGE_WORDS * 4];
  check(cu.to_host(page, at, sizeof page), "cuMemcpyDtoH");
  for (size_t i = 0; i < sizeof page; i++) digest = (digest ^ page[i]) * 0x100000001b3;
  return digest;
}

/* FNV-1a of all pages. */
static uint64_t digest_all(void) {
  uint64_t digest = 0xcbf29ce484222325;
  for (int d = 0; d < device_count; d++) {
    check(driver.context_set(devices[d].context), "cuCtxSetCurrent");
    for (long i = 0; i < options.chunks; i++) {
      digest = digest_of(digest, devices[d].chunks[i]);
      digest = digest_of(digest, devices[d].chunks[i] + CHUNK_BYTES / 2);
    }
  }
  return digest;
}

static bool take_word(const char *name, const char *value) {
  static const struct {
    const char *name;
    long *whole;
  } known[] = {
      {"--steps", &options.steps},
      {"--launches", &options.launches},
      {"--chunks", &options.chunks},
      {"--seed", &options.seed},
  };
  if (!value) return false;
  if (strcmp(name, "--progress") == 0) {
    options.progress = value;
    return true;
  }
  if (strcmp(name, "--kernel-us") == 0) {
    options.kernel_us = atof(value);
    return true;
  }
  if (strcmp(name, "--hold") == 0) {
    options.hold_bytes = strcmp(value, "all") == 0 ? UINT64_MAX : strtoull(value, NULL, 10);
    return true;
  }
  for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
    if (strcmp(known[k].name, name) != 0) continue;
    *known[k].whole = atol(value);
    return true;
  }
  return false;
}

static void parse(int count, char **words) {
  for (int i = 1; i < count; i += 2) {
    if (!take_word(words[i], i + 1 < count ? words[i + 1] : NULL)) {
      fprintf(stderr, PROGRAM ": %s is not an option, or lacks its value\n", words[i]);
      exit(2);
    }
  }
  if (options.steps < 1 || !options.progress || options.launches < 1 || options.chunks < 1 ||
      options.chunks > MOST_CHUNKS || !(options.kernel_us > 0)) {
    fprintf(stderr, PROGRAM ": --steps and --progress are needed; 1 to %d chunks\n", MOST_CHUNKS);
    exit(2);
  }
}

int main(int count, char **words) {
  parse(count, words);
  open_progress();
  find_functions();
  check(driver.init(0), "cuInit");
  check(cu.device_count(&device_count), "cuDeviceGetCount");
  if (device_count > MOST_DEVICES) device_count = MOST_DEVICES;
  for (int i = 0; i < device_count; i++) open_device(i);
  shared->held_ns = now_ns();
  for (long step = 0; step < options.steps; step++) {
    launch_all();
    tell_progress();
    for (int i = 0; i < device_count; i++) mix(&devices[i], (uint64_t)step);
  }
  printf("{\"digest\": \"%016llx\", \"steps\": %ld, \"devices\": %d, \"held_bytes\": %llu}\n",
         (unsigned long long)digest_all(), options.steps, device_count,
         (unsigned long long)shared->held_bytes);
  return 0;
}
