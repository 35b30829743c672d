/* Threads set a context's stack limit at the same time, as often as the argument says; after each
 * time, the charge must be the same as when a single thread sets the resulting limit. Prints how
 * often it was less, and how often more. */
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ok.h"

#define THREADS 4
#define LIMITS 4

static const size_t limits[LIMITS] = {1024, 2048, 4096, 8192};
static size_t room[LIMITS];
static CUcontext context;
static pthread_barrier_t barrier;
static long rounds;

static size_t free_bytes(void) {
  size_t bytes, total;
  OK(cuMemGetInfo(&bytes, &total));
  return bytes;
}

static size_t room_now(void) {
  size_t set = 0;
  OK(cuCtxGetLimit(&set, CU_LIMIT_STACK_SIZE));
  for (int i = 0; i < LIMITS; i++) {
    if (limits[i] == set) return room[i];
  }
  exit(1);
}

static void *set(void *seed) {
  unsigned dice = (unsigned)(uintptr_t)seed;
  OK(cuCtxSetCurrent(context));
  for (long i = 0; i < rounds; i++) {
    pthread_barrier_wait(&barrier);
    for (int j = 0; j < 4; j++) {
      OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, limits[rand_r(&dice) % LIMITS]));
    }
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
  }
  return NULL;
}

int main(int count, char **words) {
  pthread_t threads[THREADS];
  long less = 0, more = 0;
  rounds = count > 1 ? atol(words[1]) : 1;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  for (int i = 0; i < LIMITS; i++) {
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, limits[i]));
    room[i] = free_bytes();
  }
  pthread_barrier_init(&barrier, NULL, THREADS + 1);
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, set, (void *)(i + 1));
  for (long i = 0; i < rounds; i++) {
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    size_t now = free_bytes(), right = room_now();
    less += now > right;
    more += now < right;
    pthread_barrier_wait(&barrier);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  printf("%ld %ld\n", less, more);
  return 0;
}
