/* A driver older than CUDA 12.2: one device, with the UUID $OLDER_DRIVER_UUID, and no attribute for
 * MPS. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

CUresult cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  const char *text = getenv("OLDER_DRIVER_UUID");
  for (int i = 0; text && i < 16; i++) {
    unsigned byte = 0;
    sscanf(text + 2 * i, "%2x", &byte);
    uuid->bytes[i] = (char)byte;
  }
  return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)value, (void)attribute, (void)device;
  return CUDA_ERROR_INVALID_VALUE;
}
