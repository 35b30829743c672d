/* Ranks that wait for each other in every step, as in an all-reduce.
 *
 *   collective RANKS threads|processes|streams STEPS KERNELS KERNEL_US [RANK STEP HOLD_MS]
 *
 * Each rank has a device of its own; or they are streams of one device, which one thread launches
 * on in turn. A step is KERNELS kernels and then, for every rank, kernels that spin until all
 * others are at this step as well. RANK sleeps for HOLD_MS before its STEP. Rank 0 prints how long
 * each of its steps took, in microseconds. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "gate.h"

enum { MOST_RANKS = 16 };

static struct {
  int ranks;
  long steps, kernels, held_rank, held_step;
  uint64_t kernel_ns, hold_ms;
} job = {.held_rank = -1};

static uint64_t *reached; /* shared by all ranks: a word each, the step whose kernels meet */

static void map_words(CUdeviceptr *words) {
  CUresult result =
      cuMemHostRegister(reached, 4096, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);
  if (result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) OK(result);
  OK(cuMemHostGetDevicePointer(words, reached, 0));
}

static void reach(CUstream stream, CUdeviceptr words, int rank, uint64_t number) {
  for (int i = 1; i < job.ranks; i++) {
    int peer = (rank + i) % job.ranks;
    meet(stream, words + 8 * (unsigned)peer, number, i == 1 ? words + 8 * (unsigned)rank : 0,
         number);
  }
}

static void step(CUstream stream, CUdeviceptr words, int rank, uint64_t number) {
  for (long i = 0; i < job.kernels; i++) busy(stream, job.kernel_ns);
  reach(stream, words, rank, number);
  OK(cuStreamSynchronize(stream));
}

static void print_since(uint64_t began_ns) {
  printf("%llu\n", (unsigned long long)((now_ns() - began_ns) / 1000));
}

static void *run_rank(void *which) {
  int rank = (int)(intptr_t)which;
  CUcontext context;
  CUdeviceptr words;
  OK(cuDevicePrimaryCtxRetain(&context, rank));
  OK(cuCtxSetCurrent(context));
  map_words(&words);
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  for (long i = 1; i <= job.steps; i++) {
    if (rank == job.held_rank && i == job.held_step) usleep((useconds_t)job.hold_ms * 1000);
    uint64_t began = now_ns();
    step(stream, words, rank, (uint64_t)i);
    if (rank == 0) print_since(began);
  }
  return NULL;
}

static void run_streams(void) {
  CUcontext context;
  CUdeviceptr words;
  CUstream streams[MOST_RANKS];
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  map_words(&words);
  for (int i = 0; i < job.ranks; i++) streams[i] = new_stream(CU_STREAM_NON_BLOCKING);
  for (long i = 1; i <= job.steps; i++) {
    uint64_t began = now_ns();
    for (long k = 0; k < job.kernels * job.ranks; k++) busy(streams[k % job.ranks], job.kernel_ns);
    for (int k = 0; k < job.ranks; k++) reach(streams[k], words, k, (uint64_t)i);
    for (int k = 0; k < job.ranks; k++) OK(cuStreamSynchronize(streams[k]));
    print_since(began);
  }
}

static void run_threads(void) {
  pthread_t threads[MOST_RANKS];
  OK(cuInit(0));
  for (intptr_t i = 0; i < job.ranks; i++) {
    pthread_create(&threads[i], NULL, run_rank, (void *)i);
  }
  for (int i = 0; i < job.ranks; i++) pthread_join(threads[i], NULL);
}

static int run_processes(void) {
  int failures = 0, status;
  for (intptr_t i = 0; i < job.ranks; i++) {
    if (fork()) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    OK(cuInit(0));
    run_rank((void *)i);
    exit(0);
  }
  while (wait(&status) > 0) failures += status != 0;
  return failures;
}

int main(int count, char **words) {
  if (count != 6 && count != 9) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  job.ranks = atoi(words[1]);
  job.steps = atol(words[3]);
  job.kernels = atol(words[4]);
  job.kernel_ns = (uint64_t)atol(words[5]) * 1000;
  if (count == 9) {
    job.held_rank = atol(words[6]);
    job.held_step = atol(words[7]);
    job.hold_ms = (uint64_t)atol(words[8]);
  }
  if (job.ranks < 2 || job.ranks > MOST_RANKS) return 2;
  reached = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (reached == MAP_FAILED) return 1;
  if (!strcmp(words[2], "processes")) return run_processes();
  if (!strcmp(words[2], "streams")) {
    run_streams();
  } else {
    run_threads();
  }
  return 0;
}
