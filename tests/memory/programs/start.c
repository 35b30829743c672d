/* A first CUDA call, an allocation, and an end without giving anything back: start [kill] */
#include <cuda.h>
#include <signal.h>
#include <unistd.h>

int main(int count, char **words) {
  CUcontext context;
  CUdeviceptr pointer;
  (void)words;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
  if (cuMemAlloc(&pointer, 1 << 20)) return 2;
  if (count > 1) raise(SIGKILL);
  _exit(0);
}
