/* A child of a fork: forker before | after
 *
 *   before  forks before CUDA is initialised: both parent and child use the device
 *   after   forks afterwards: the child's calls fail as the driver says, and it can give nothing
 * back Prints the child's result and then the parent's.
 */
#include <cuda.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1 << 20)

static CUdeviceptr pointer;

static CUresult begin(void) {
  CUcontext context;
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, 0);
  if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
  if (result == CUDA_SUCCESS) result = cuMemAlloc(&pointer, 3 * MIB);
  return result;
}

static int child_after(void) {
  CUdeviceptr other;
  CUresult allocated = cuMemAlloc(&other, MIB), freed = cuMemFree(pointer);
  return allocated == CUDA_SUCCESS || freed == CUDA_SUCCESS ? 99 : (int)allocated;
}

int main(int count, char **words) {
  int after = count > 1 && strcmp(words[1], "after") == 0;
  if (after && begin() != CUDA_SUCCESS) return 1;
  pid_t child = fork();
  if (child == 0) _exit(after ? child_after() : (int)begin());
  int status;
  if (waitpid(child, &status, 0) < 0 || !WIFEXITED(status)) return 2;
  printf("%d %d\n", WEXITSTATUS(status), after ? (int)cuMemFree(pointer) : (int)begin());
  fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  return 0;
}
