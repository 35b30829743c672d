/* Threads that are cancelled in the middle of a call: cancelled CASE
 *
 * Cancellation is pending as the call begins, so that it acts at the first point inside of it where
 * it can. What the thread held up then holds up this program as well, until its alarm ends it.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ok.h"

#define MIB ((size_t)1 << 20)
#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUcontext context;

typedef struct exported {
  CUmemGenericAllocationHandle memory;
  int descriptor;
} exported;

static exported make(void) {
  exported one;
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                    .requestedHandleTypes = FD};
  OK(cuMemCreate(&one.memory, 2 * MIB, &properties, 0));
  OK(cuMemExportToShareableHandle(&one.descriptor, one.memory, FD, 0));
  return one;
}

static void *let_go(void *memory) {
  OK(cuCtxSetCurrent(context));
  pthread_cancel(pthread_self());
  cuMemRelease((CUmemGenericAllocationHandle)(uintptr_t)memory);
  pthread_testcancel();
  return NULL;
}

static void *look(void *unused) {
  CUdeviceptr pointer;
  (void)unused;
  OK(cuCtxSetCurrent(context));
  pthread_cancel(pthread_self());
  cuMemAlloc(&pointer, (size_t)1 << 40);
  pthread_testcancel();
  return NULL;
}

static void cancel_in(void *(*call)(void *), uintptr_t argument) {
  pthread_t thread;
  void *result;
  if (pthread_create(&thread, NULL, call, (void *)argument)) exit(1);
  pthread_join(thread, &result);
  if (result != PTHREAD_CANCELED) exit(1);
}

/* The descriptor alone holds the memory from then on. */
static void in_a_release(void) {
  exported kept = make();
  cancel_in(let_go, kept.memory);
  exported other = make();
  close(other.descriptor);
  OK(cuMemRelease(other.memory));
  close(kept.descriptor);
}

/* Without a share to be had, each process looks after its own descriptors. */
static void in_a_look(void) {
  enum { MORE_THAN_SHARES = 800, MANY = 256 };
  static CUdeviceptr blocks[MORE_THAN_SHARES];
  for (int i = 0; i < MORE_THAN_SHARES; i++) {
    CUipcMemHandle handle;
    OK(cuMemAlloc(&blocks[i], 4096));
    OK(cuIpcGetMemHandle(&handle, blocks[i]));
  }
  exported kept = make();
  OK(cuMemRelease(kept.memory));
  cancel_in(look, 0);
  for (int i = 0; i < MORE_THAN_SHARES; i++) OK(cuMemFree(blocks[i]));
  for (int i = 0; i < MANY; i++) OK(cuMemAlloc(&blocks[i], 4096));
  for (int i = 0; i < MANY; i++) OK(cuMemFree(blocks[i]));
  close(kept.descriptor);
}

int main(int count, char **words) {
  size_t free_bytes, total;
  alarm(30);
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  if (count > 1 && !strcmp(words[1], "release")) in_a_release();
  if (count > 1 && !strcmp(words[1], "look")) in_a_look();
  OK(cuMemGetInfo(&free_bytes, &total));
  puts(free_bytes == total ? "empty" : "something is charged");
  return 0;
}
