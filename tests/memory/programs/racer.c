/* Makes COUNT random allocations and frees: racer COUNT SEED LARGEST_KIB [hold]
 *
 * Holds up to 64 allocations at a time. Prints how many were granted and refused. Any answer but
 * success and out-of-memory is an error. With `hold` it allocates LARGEST_KIB at a time until it is
 * refused, prints how many it got, and waits for the end of its standard input.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HELD 64

static int fail(const char *call, CUresult result) {
  fprintf(stderr, "%s: CUDA error %d\n", call, result);
  exit(1);
}

#define OK(call)                                       \
  do {                                                 \
    CUresult result_ = (call);                         \
    if (result_ != CUDA_SUCCESS) fail(#call, result_); \
  } while (0)

static void hold(size_t bytes) {
  CUdeviceptr pointer;
  unsigned granted = 0;
  CUresult result;
  while ((result = cuMemAlloc(&pointer, bytes)) == CUDA_SUCCESS) granted++;
  if (result != CUDA_ERROR_OUT_OF_MEMORY) fail("cuMemAlloc", result);
  printf("%u\n", granted);
  fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
}

int main(int count, char **words) {
  CUcontext context;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  long rounds = atol(words[1]), granted = 0, refused = 0;
  unsigned seed = (unsigned)atoi(words[2]);
  size_t largest = (size_t)atol(words[3]) << 10;
  if (count > 4) return hold(largest), 0;
  CUdeviceptr held[HELD] = {0};
  for (long i = 0; i < rounds; i++) {
    int place = rand_r(&seed) % HELD;
    if (held[place]) OK(cuMemFree(held[place]));
    held[place] = 0;
    CUresult result = cuMemAlloc(&held[place], 1 + rand_r(&seed) % largest);
    granted += result == CUDA_SUCCESS;
    refused += result == CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) held[place] = 0;
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) fail("cuMemAlloc", result);
  }
  for (int i = 0; i < HELD; i++) {
    if (held[i]) OK(cuMemFree(held[i]));
  }
  OK(cuDevicePrimaryCtxRelease(0));
  printf("%ld %ld\n", granted, refused);
  return 0;
}
