/* Maps an allocation while another thread releases its handle, and retains its handle while the
 * other unmaps it, as often as the argument says. If the driver allows that, the memory must stay
 * charged. Prints how often it did not, and how often it was still charged after everything was
 * released. */
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "ok.h"

#define BYTES ((size_t)2 << 20)

static CUcontext context;
static pthread_barrier_t barrier;
static long rounds;
static CUmemGenericAllocationHandle memory;
static CUdeviceptr address;
static bool is_mapped;
static size_t idle_bytes;

static size_t free_bytes(void) {
  size_t bytes, total;
  OK(cuMemGetInfo(&bytes, &total));
  return bytes;
}

static size_t charged(void) { return idle_bytes - free_bytes(); }

static void wait_a_while(unsigned *dice, unsigned most) {
  for (volatile int i = (int)(rand_r(dice) % most); i > 0; i--) continue;
}

static void *give_up(void *unused) {
  unsigned dice = 7;
  (void)unused;
  OK(cuCtxSetCurrent(context));
  for (long i = 0; i < rounds; i++) {
    pthread_barrier_wait(&barrier);
    wait_a_while(&dice, 4000);
    OK(cuMemRelease(memory));
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    wait_a_while(&dice, 4000);
    if (is_mapped) OK(cuMemUnmap(address, BYTES));
    pthread_barrier_wait(&barrier);
  }
  return NULL;
}

static void make(void) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  OK(cuMemCreate(&memory, BYTES, &properties, 0));
}

int main(int count, char **words) {
  pthread_t thread;
  long uncharged = 0, left = 0;
  unsigned dice = 11;
  rounds = count > 1 ? atol(words[1]) : 1;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuMemAddressReserve(&address, BYTES, 0, 0, 0));
  idle_bytes = free_bytes();
  pthread_barrier_init(&barrier, NULL, 2);
  pthread_create(&thread, NULL, give_up, NULL);
  for (long i = 0; i < rounds; i++) {
    make();
    pthread_barrier_wait(&barrier);
    wait_a_while(&dice, 4000);
    is_mapped = cuMemMap(address, BYTES, 0, memory, 0) == CUDA_SUCCESS;
    pthread_barrier_wait(&barrier);
    uncharged += is_mapped && charged() != BYTES;
    pthread_barrier_wait(&barrier);
    wait_a_while(&dice, 4000);
    CUmemGenericAllocationHandle found;
    bool is_found = cuMemRetainAllocationHandle(&found, (void *)address) == CUDA_SUCCESS;
    pthread_barrier_wait(&barrier);
    uncharged += is_found && charged() != BYTES;
    if (is_found) OK(cuMemRelease(found));
    left += charged() != 0;
  }
  pthread_join(thread, NULL);
  printf("%ld %ld\n", uncharged, left);
  return 0;
}
