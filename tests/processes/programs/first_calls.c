/* Threads that all make the process's first CUDA calls at once: first_calls THREADS VALUE
 *
 * VALUE is that of CUDA_VISIBLE_DEVICES, or -unset. Meanwhile one thread reads the environment.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_barrier_t start;
static bool over;
static int failed;

static void *use(void *unused) {
  (void)unused;
  CUdevice device;
  CUcontext context;
  CUdeviceptr pointer;
  size_t free_bytes, total_bytes;
  pthread_barrier_wait(&start);
  int result = cuInit(0);
  if (!result) result = cuDeviceGet(&device, 0);
  if (!result) result = cuDevicePrimaryCtxRetain(&context, device);
  if (!result) result = cuCtxSetCurrent(context);
  if (!result) result = cuMemAlloc(&pointer, 4096);
  if (!result) result = cuMemGetInfo(&free_bytes, &total_bytes);
  if (!result) result = cuMemFree(pointer);
  if (result) __atomic_store_n(&failed, result, __ATOMIC_RELAXED);
  return NULL;
}

static void *read_environment(void *unused) {
  (void)unused;
  while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
    if (!getenv("PENSTOCK_TENANT_DIR")) __atomic_store_n(&failed, -1, __ATOMIC_RELAXED);
  }
  return NULL;
}

int main(int words, char **word) {
  if (words != 3) return 2;
  int count = atoi(word[1]);
  if (strcmp(word[2], "-unset") == 0) {
    unsetenv("CUDA_VISIBLE_DEVICES");
  } else {
    setenv("CUDA_VISIBLE_DEVICES", word[2], 1);
  }
  pthread_t threads[256], reader;
  pthread_barrier_init(&start, NULL, (unsigned)count);
  pthread_create(&reader, NULL, read_environment, NULL);
  for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, use, NULL);
  for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
  __atomic_store_n(&over, true, __ATOMIC_RELAXED);
  pthread_join(reader, NULL);
  const char *after = getenv("CUDA_VISIBLE_DEVICES");
  printf("%d threads: %d\n%s\n", count, failed, after ? after : "unset");
  return 0;
}
