/* Threads at the limit, each with blocks of many small sizes and some large ones: brink COUNT
 * ROUNDS
 *
 * Any answer but success and out-of-memory is an error. Prints how many were granted and refused,
 * waits for a line, frees everything, prints "free", and waits for the end of its standard input.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define HELD 96

typedef struct worker {
  pthread_t thread;
  unsigned seed;
  long granted, refused;
  CUdeviceptr held[HELD];
} worker;

static CUcontext context;
static long rounds;

static size_t some_size(unsigned *seed) {
  unsigned kind = (unsigned)rand_r(seed) % 16;
  if (kind == 0) return (size_t)2 << 20;
  return 1 + (size_t)rand_r(seed) % (kind < 8 ? 16384u : 1u << 20);
}

static void *work(void *argument) {
  worker *w = argument;
  if (cuCtxSetCurrent(context) != CUDA_SUCCESS) return (void *)1;
  for (long i = 0; i < rounds; i++) {
    CUdeviceptr *place = &w->held[rand_r(&w->seed) % HELD];
    if (*place && cuMemFree(*place) != CUDA_SUCCESS) return (void *)2;
    *place = 0;
    CUresult result = cuMemAlloc(place, some_size(&w->seed));
    if (result != CUDA_SUCCESS) *place = 0;
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) return (void *)3;
    w->granted += result == CUDA_SUCCESS;
    w->refused += result != CUDA_SUCCESS;
  }
  return NULL;
}

int main(int count, char **words) {
  static worker workers[16];
  long granted = 0, refused = 0;
  if (count < 3) return 2;
  int threads = atoi(words[1]);
  rounds = atol(words[2]);
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
  for (int i = 0; i < threads; i++) {
    workers[i].seed = (unsigned)i + 1;
    pthread_create(&workers[i].thread, NULL, work, &workers[i]);
  }
  for (int i = 0; i < threads; i++) {
    void *failed;
    pthread_join(workers[i].thread, &failed);
    if (failed) return 10 + (int)(size_t)failed;
    granted += workers[i].granted;
    refused += workers[i].refused;
  }
  printf("%ld %ld\n", granted, refused);
  fflush(stdout);
  getchar();
  for (int i = 0; i < threads * HELD; i++) {
    CUdeviceptr block = workers[i / HELD].held[i % HELD];
    if (block && cuMemFree(block) != CUDA_SUCCESS) return 3;
  }
  puts("free");
  fflush(stdout);
  while (getchar() != EOF) continue;
  return 0;
}
