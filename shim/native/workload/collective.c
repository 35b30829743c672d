/* penstock-collective: ranks that alternately compute and wait for each other, as in training on
 * several devices. Each step has some kernels, followed by one kernel for each peer that waits for
 * that peer.
 *
 * It is an ordinary CUDA program that knows nothing of the shim. PAGE is a file that all ranks
 * share, in one process or several. It has a line of words for each rank (see `line`), from which a
 * benchmark also reads the ranks' progress. The file must exist, be long enough for all ranks, and
 * be zeroed.
 *
 *   penstock-collective PAGE RANKS [--rank N] [--one-device] [--work-us N] [--kernels N]
 *                       [--seconds S]
 *
 * --rank N makes this process only that rank; without it, the process has a thread for each rank.
 * Rank N uses device N. With --one-device, the ranks are streams of one thread on device 0 that
 * wait for each other. The program ends after S seconds (default 600), unless its parent ends it
 * earlier.
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PROGRAM "penstock-collective"
#include "workload/program.h"

enum { MOST_RANKS = 16, PAGE_BYTES = 4096 };

/* One rank's line in the page. */
typedef struct line {
  uint64_t arrived;  /* the step that the rank has reached, written by its kernel */
  uint64_t steps;    /* number of completed steps */
  uint64_t ended_ns; /* CLOCK_MONOTONIC time at the end of the last step */
  /* written by other programs: how long the rank sleeps before its next step */
  uint64_t hold_ns;
  uint64_t unused[4];
} line;

/* The kernel `meet` stores its own word when it starts, and ends when the word at `there` is at
 * least `wanted`.
 */
static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry penstock_spin(.param .u64 duration)\n{\n"
    ".reg .u64 %start, %now, %limit;\n.reg .pred %more;\n"
    "ld.param.u64 %limit, [duration];\nmov.u64 %start, %globaltimer;\n"
    "again:\nmov.u64 %now, %globaltimer;\nsub.u64 %now, %now, %start;\n"
    "setp.lt.u64 %more, %now, %limit;\n@%more bra again;\nret;\n}\n"
    ".visible .entry meet(.param .u64 there, .param .u64 wanted, .param .u64 here,\n"
    ".param .u64 own)\n{\n"
    ".reg .u64 %there, %wanted, %here, %own, %seen;\n.reg .pred %more;\n"
    "ld.param.u64 %there, [there];\nld.param.u64 %wanted, [wanted];\n"
    "ld.param.u64 %here, [here];\nld.param.u64 %own, [own];\n"
    "st.release.sys.global.u64 [%here], %own;\n"
    "again:\nld.acquire.sys.global.u64 %seen, [%there];\n"
    "setp.lt.u64 %more, %seen, %wanted;\n@%more bra again;\nret;\n}\n";

static struct {
  __typeof__(&cuModuleLoadData) module_load;
  __typeof__(&cuModuleGetFunction) function_get;
  __typeof__(&cuStreamCreate) stream_create;
  __typeof__(&cuStreamSynchronize) synchronize;
  __typeof__(&cuLaunchKernel) launch;
  __typeof__(&cuMemHostRegister_v2) host_register;
  __typeof__(&cuMemHostGetDevicePointer_v2) device_pointer;
} cu;

static struct {
  double work_us, seconds;
  long ranks, rank, kernels;
  bool one_device;
} options = {.work_us = 1000, .seconds = 600, .rank = -1, .kernels = 5};

static line *lines;

typedef struct place {
  long rank;
  CUstream stream;
  CUfunction spin, meet;
  CUdeviceptr page; /* address of the page on the rank's device */
} place;

static void find_functions(void) {
  static const wanted_function wanted[] = {
      {&cu.module_load, "cuModuleLoadData"},
      {&cu.function_get, "cuModuleGetFunction"},
      {&cu.stream_create, "cuStreamCreate"},
      {&cu.synchronize, "cuStreamSynchronize"},
      {&cu.launch, "cuLaunchKernel"},
      {&cu.host_register, "cuMemHostRegister"},
      {&cu.device_pointer, "cuMemHostGetDevicePointer"},
  };
  load_driver(wanted, sizeof wanted / sizeof *wanted, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
}

static void share_page(const char *path) {
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  lines = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (lines == MAP_FAILED || lseek(fd, 0, SEEK_END) < PAGE_BYTES) {
    fprintf(stderr, PROGRAM ": %s is no file of %d bytes that can be shared\n", path, PAGE_BYTES);
    exit(1);
  }
  close(fd);
}

/* Makes the rank's context current in this thread. The page is registered once per process. */
static void settle(place *self, long rank) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static bool registered;
  CUmodule module;
  self->rank = rank;
  enter_context(options.one_device ? 0 : (int)rank);
  pthread_mutex_lock(&lock);
  if (!registered)
    check(cu.host_register(lines, PAGE_BYTES,
                           CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
          "cuMemHostRegister");
  registered = true;
  pthread_mutex_unlock(&lock);
  check(cu.device_pointer(&self->page, lines, 0), "cuMemHostGetDevicePointer");
  check(cu.stream_create(&self->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  check(cu.module_load(&module, ptx), "cuModuleLoadData");
  check(cu.function_get(&self->spin, module, "penstock_spin"), "penstock_spin");
  check(cu.function_get(&self->meet, module, "meet"), "meet");
}

static void launch_work(const place *self) {
  uint64_t duration_ns = (uint64_t)(options.work_us * 1000);
  void *params[] = {&duration_ns};
  for (long i = 0; i < options.kernels; i++)
    check(cu.launch(self->spin, 1, 1, 1, 32, 1, 1, 0, self->stream, params, NULL),
          "cuLaunchKernel");
}

/* Launches a kernel for each peer, which waits until the peer has reached the step. */
static void launch_meeting(const place *self, uint64_t step) {
  const uint64_t own = self->page + (uint64_t)self->rank * sizeof(line);
  for (long i = 1; i < options.ranks; i++) {
    uint64_t wanted = step, here = own, mine = step;
    uint64_t there = self->page + (uint64_t)((self->rank + i) % options.ranks) * sizeof(line);
    void *params[] = {&there, &wanted, &here, &mine};
    check(cu.launch(self->meet, 1, 1, 1, 32, 1, 1, 0, self->stream, params, NULL),
          "cuLaunchKernel");
  }
}

static void end_step(const place *self, uint64_t step) {
  check(cu.synchronize(self->stream), "cuStreamSynchronize");
  line *own = &lines[self->rank];
  __atomic_store_n(&own->ended_ns, now_ns(), __ATOMIC_RELAXED);
  __atomic_store_n(&own->steps, step, __ATOMIC_RELEASE);
  const uint64_t hold_ns = __atomic_exchange_n(&own->hold_ns, 0, __ATOMIC_ACQUIRE);
  if (!hold_ns) return;
  struct timespec held = {(time_t)(hold_ns / 1000000000u), (long)(hold_ns % 1000000000u)};
  nanosleep(&held, NULL);
}

static void *run_rank(void *argument) {
  place self = {0};
  settle(&self, (long)(intptr_t)argument);
  for (uint64_t step = 1;; step++) {
    launch_work(&self);
    launch_meeting(&self, step);
    end_step(&self, step);
  }
  return NULL;
}

static void run_streams(void) {
  static place places[MOST_RANKS];
  for (long i = 0; i < options.ranks; i++) settle(&places[i], i);
  for (uint64_t step = 1;; step++) {
    for (long i = 0; i < options.ranks; i++) launch_work(&places[i]);
    for (long i = 0; i < options.ranks; i++) launch_meeting(&places[i], step);
    for (long i = 0; i < options.ranks; i++) end_step(&places[i], step);
  }
}

static void parse(int count, char **words) {
  options.ranks = count > 2 ? atol(words[2]) : 0;
  for (int i = 3; i < count; i++) {
    const char *value = i + 1 < count ? words[i + 1] : NULL;
    if (strcmp(words[i], "--one-device") == 0) {
      options.one_device = true;
      continue;
    }
    if (value && strcmp(words[i], "--rank") == 0) {
      options.rank = atol(value);
    } else if (value && strcmp(words[i], "--kernels") == 0) {
      options.kernels = atol(value);
    } else if (value && strcmp(words[i], "--work-us") == 0) {
      options.work_us = atof(value);
    } else if (value && strcmp(words[i], "--seconds") == 0) {
      options.seconds = atof(value);
    } else {
      fprintf(stderr, PROGRAM ": %s is not an option, or lacks its value\n", words[i]);
      exit(2);
    }
    i++;
  }
  if (options.ranks < 2 || options.ranks > MOST_RANKS || options.rank >= options.ranks) {
    fprintf(stderr, PROGRAM ": PAGE, and 2 to %d ranks\n", MOST_RANKS);
    exit(2);
  }
}

static void *end_in_time(void *argument) {
  (void)argument;
  const uint64_t most_ns = (uint64_t)(options.seconds * 1e9);
  const struct timespec most = {(time_t)(most_ns / 1000000000u), (long)(most_ns % 1000000000u)};
  nanosleep(&most, NULL);
  _exit(0);
}

int main(int count, char **words) {
  pthread_t threads[MOST_RANKS], end;
  parse(count, words);
  share_page(words[1]);
  if (pthread_create(&end, NULL, end_in_time, NULL) != 0) exit(1);
  find_functions();
  check(driver.init(0), "cuInit");
  if (options.one_device) run_streams();
  if (options.rank >= 0) run_rank((void *)(intptr_t)options.rank);
  for (long i = 0; i < options.ranks; i++)
    if (pthread_create(&threads[i], NULL, run_rank, (void *)(intptr_t)i) != 0) exit(1);
  for (long i = 0; i < options.ranks; i++) pthread_join(threads[i], NULL);
  return 0;
}
