/* Ranks that meet in every step, a device each: what an all-reduce does to the gates of a tenant.
 *
 *   collective DEVICES threads|processes STEPS KERNELS KERNEL_US [RANK STEP HOLD_MS]
 *
 * A step is KERNELS kernels and then, on every device, kernels that spin until all other ranks are
 * at this step as well. RANK sleeps for HOLD_MS before its STEP. Rank 0 prints how long each of its
 * steps took, in microseconds. */
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
  CUresult result = cuMemHostRegister(reached, 4096, CU_MEMHOSTREGISTER_DEVICEMAP |
                                                         CU_MEMHOSTREGISTER_PORTABLE);
  if (result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) OK(result);
  OK(cuMemHostGetDevicePointer(words, reached, 0));
}

static void step(CUstream stream, CUdeviceptr words, int rank, uint64_t number) {
  for (long i = 0; i < job.kernels; i++) busy(stream, job.kernel_ns);
  for (int i = 1; i < job.ranks; i++) {
    int peer = (rank + i) % job.ranks;
    meet(stream, words + 8 * (unsigned)peer, number, i == 1 ? words + 8 * (unsigned)rank : 0,
         number);
  }
  OK(cuStreamSynchronize(stream));
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
    if (rank == 0) printf("%llu\n", (unsigned long long)((now_ns() - began) / 1000));
  }
  return NULL;
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
  run_threads();
  return 0;
}
