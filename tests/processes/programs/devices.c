/* Which devices a program sees: devices [VALUE|-unset]
 *
 * Prints cuInit's code, then a line a device: UUID, memory, the code of its primary context; last,
 * what CUDA_VISIBLE_DEVICES is then.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show(int ordinal) {
  CUdevice device;
  CUuuid uuid;
  size_t bytes = 0;
  CUcontext context;
  cuDeviceGet(&device, ordinal);
  cuDeviceGetUuid(&uuid, device);
  cuDeviceTotalMem(&bytes, device);
  for (unsigned i = 0; i < sizeof uuid.bytes; i++) printf("%02x", (unsigned char)uuid.bytes[i]);
  printf(" %zu %d\n", bytes, cuDevicePrimaryCtxRetain(&context, device));
}

int main(int words, char **word) {
  if (words == 2 && strcmp(word[1], "-unset") == 0) {
    unsetenv("CUDA_VISIBLE_DEVICES");
  } else if (words == 2) {
    setenv("CUDA_VISIBLE_DEVICES", word[1], 1);
  }
  printf("%d\n", cuInit(0));
  int count = 0;
  cuDeviceGetCount(&count);
  for (int i = 0; i < count; i++) show(i);
  const char *after = getenv("CUDA_VISIBLE_DEVICES");
  printf("%s\n", after ? after : "unset");
  return 0;
}
