/* Threads that retain, use and release the primary context all at once: primaries THREADS ROUNDS */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static long rounds;

static void *work(void *argument) {
  unsigned seed = (unsigned)(size_t)argument;
  for (long i = 0; i < rounds; i++) {
    CUcontext context;
    CUdeviceptr pointer;
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return (void *)1;
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS) return (void *)2;
    if (cuMemAlloc(&pointer, 1 + rand_r(&seed) % 10000) != CUDA_SUCCESS) return (void *)3;
    /* now and then it is left to the context */
    if (rand_r(&seed) % 4 && cuMemFree(pointer) != CUDA_SUCCESS) return (void *)4;
    if (cuDevicePrimaryCtxRelease(0) != CUDA_SUCCESS) return (void *)5;
  }
  return NULL;
}

int main(int count, char **words) {
  int threads = count > 2 ? atoi(words[1]) : 1;
  rounds = count > 2 ? atol(words[2]) : 1;
  pthread_t ids[64];
  if (cuInit(0)) return 1;
  for (long i = 0; i < threads; i++) pthread_create(&ids[i], NULL, work, (void *)(i + 1));
  for (int i = 0; i < threads; i++) {
    void *failed;
    pthread_join(ids[i], &failed);
    if (failed) return 10 + (int)(size_t)failed;
  }
  puts("done");
  fflush(stdout);
  getchar();
  return 0;
}
