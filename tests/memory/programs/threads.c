/* Many threads allocate and free at once, each its own and each other's: threads COUNT ROUNDS */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static CUcontext context;
static long rounds;
static CUdeviceptr shared[256]; /* freed by the thread that exchanges them out */

static void *work(void *argument) {
  unsigned seed = (unsigned)(size_t)argument;
  if (cuCtxSetCurrent(context) != CUDA_SUCCESS) return (void *)1;
  for (long i = 0; i < rounds; i++) {
    CUdeviceptr fresh = 0;
    CUresult result = cuMemAlloc(&fresh, 1 + rand_r(&seed) % 100000);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) return (void *)2;
    CUdeviceptr old = __atomic_exchange_n(&shared[rand_r(&seed) % 256], fresh, __ATOMIC_ACQ_REL);
    if (old && cuMemFree(old) != CUDA_SUCCESS) return (void *)3;
  }
  return NULL;
}

int main(int count, char **words) {
  int threads = count > 2 ? atoi(words[1]) : 1;
  rounds = count > 2 ? atol(words[2]) : 1;
  pthread_t ids[64];
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
  for (long i = 0; i < threads; i++) pthread_create(&ids[i], NULL, work, (void *)(i + 1));
  for (int i = 0; i < threads; i++) {
    void *failed;
    pthread_join(ids[i], &failed);
    if (failed) return 10 + (int)(size_t)failed;
  }
  for (int i = 0; i < 256; i++) {
    if (shared[i] && cuMemFree(shared[i]) != CUDA_SUCCESS) return 2;
  }
  puts("done");
  fflush(stdout);
  getchar();
  return 0;
}
