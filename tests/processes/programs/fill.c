/* How many MiB each device takes, allocated one MiB at a time: fill ORDINAL… */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

int main(int words, char **word) {
  if (cuInit(0)) return 1;
  for (int i = 1; i < words; i++) {
    CUdevice device;
    CUcontext context;
    CUdeviceptr pointer;
    int allocated = 0;
    if (cuDeviceGet(&device, atoi(word[i])) || cuDevicePrimaryCtxRetain(&context, device) ||
        cuCtxSetCurrent(context)) {
      return 1;
    }
    while (cuMemAlloc(&pointer, 1 << 20) == CUDA_SUCCESS) allocated++;
    printf("%d\n", allocated);
  }
  return 0;
}
