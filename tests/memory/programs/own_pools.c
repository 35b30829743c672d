/* Threads that each make, use and destroy pools of their own: own_pools THREADS ROUNDS HELD_MIB
 *
 * HELD_MIB are allocated before, so that the quota is short. Prints how often memory was given and
 * refused. Any answer but success and out-of-memory is an error.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ok.h"

#define MOST_THREADS 32
#define BLOCK_BYTES (2u << 20)

static CUcontext context;
static int rounds, given, refused;

static void use(CUmemoryPool pool, CUstream stream) {
  CUdeviceptr block;
  CUresult result = cuMemAllocFromPoolAsync(&block, BLOCK_BYTES, pool, stream);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
    return;
  }
  OK(result);
  __atomic_fetch_add(&given, 1, __ATOMIC_RELAXED);
  OK(cuMemFreeAsync(block, stream));
  OK(cuStreamSynchronize(stream));
}

static void *run(void *unused) {
  (void)unused;
  CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  CUmemoryPool pool;
  CUstream stream;
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < rounds; i++) {
    OK(cuMemPoolCreate(&pool, &properties));
    use(pool, stream);
    OK(cuMemPoolDestroy(pool));
  }
  OK(cuStreamDestroy(stream));
  return NULL;
}

int main(int count, char **words) {
  if (count != 4) return 2;
  pthread_t threads[MOST_THREADS];
  CUdeviceptr held;
  int number = atoi(words[1]);
  rounds = atoi(words[2]);
  if (number > MOST_THREADS) return 2;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuMemAlloc(&held, (size_t)atol(words[3]) << 20));
  for (int i = 0; i < number; i++) pthread_create(&threads[i], NULL, run, NULL);
  for (int i = 0; i < number; i++) pthread_join(threads[i], NULL);
  printf("%d %d\n", given, refused);
  return 0;
}
