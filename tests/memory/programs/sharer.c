/* Hands memory to other processes and takes it from them, as told on its standard input:
 *
 *   export-ipc BYTES     cuMemAlloc and its IPC handle: prints the handle
 *   open-ipc HANDLE      prints the result
 *   close-ipc            prints the result
 *   free-ipc             frees what was exported
 *   export-fd BYTES      cuMemCreate and its descriptor: prints where that lies in /proc
 *   import-fd PATH       also maps it; prints the result
 *   release-fd           unmaps, releases, closes
 */
#include <cuda.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CUdeviceptr allocated, opened, mapped;
static CUmemGenericAllocationHandle physical;
static size_t physical_bytes;
static int descriptor = -1;

static void say(CUresult result) { printf("%d\n", result); }

static void export_ipc(const char *argument) {
  CUipcMemHandle handle;
  CUresult result = cuMemAlloc(&allocated, strtoull(argument, NULL, 10));
  if (result == CUDA_SUCCESS) result = cuIpcGetMemHandle(&handle, allocated);
  if (result != CUDA_SUCCESS) return say(result);
  for (size_t i = 0; i < sizeof handle; i++) printf("%02x", (unsigned char)handle.reserved[i]);
  putchar('\n');
}

static void open_ipc(const char *argument) {
  CUipcMemHandle handle;
  for (size_t i = 0; i < sizeof handle; i++) {
    unsigned byte = 0;
    sscanf(argument + 2 * i, "%2x", &byte);
    handle.reserved[i] = (char)byte;
  }
  say(cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

static CUresult map(size_t bytes) {
  physical_bytes = bytes;
  CUresult result = cuMemAddressReserve(&mapped, bytes, 0, 0, 0);
  return result == CUDA_SUCCESS ? cuMemMap(mapped, bytes, 0, physical, 0) : result;
}

static void export_fd(const char *argument) {
  size_t bytes = strtoull(argument, NULL, 10);
  CUmemAllocationProp properties = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  };
  CUresult result = cuMemCreate(&physical, bytes, &properties, 0);
  if (result == CUDA_SUCCESS) result = map(bytes);
  if (result == CUDA_SUCCESS) {
    result = cuMemExportToShareableHandle(&descriptor, physical,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  }
  if (result != CUDA_SUCCESS) return say(result);
  printf("/proc/%d/fd/%d %zu\n", getpid(), descriptor, bytes);
}

static void import_fd(char *argument) {
  char *bytes = strchr(argument, ' ');
  *bytes++ = 0;
  int fd = open(argument, O_RDWR | O_CLOEXEC);
  if (fd < 0) return say(CUDA_ERROR_OPERATING_SYSTEM);
  CUresult result = cuMemImportFromShareableHandle(&physical, (void *)(intptr_t)fd,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  close(fd);
  say(result == CUDA_SUCCESS ? map(strtoull(bytes, NULL, 10)) : result);
}

static void release_fd(void) {
  CUresult result = cuMemRelease(physical); /* the mapping holds it */
  if (result == CUDA_SUCCESS) result = cuMemUnmap(mapped, physical_bytes);
  if (result == CUDA_SUCCESS) result = cuMemAddressFree(mapped, physical_bytes);
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
  say(result);
}

int main(void) {
  CUcontext context;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
  puts("ready");
  fflush(stdout);
  char line[512];
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    char *argument = strchr(line, ' ');
    if (argument) *argument++ = 0;
    if (!strcmp(line, "export-ipc")) export_ipc(argument);
    if (!strcmp(line, "open-ipc")) open_ipc(argument);
    if (!strcmp(line, "close-ipc")) say(cuIpcCloseMemHandle(opened));
    if (!strcmp(line, "free-ipc")) say(cuMemFree(allocated));
    if (!strcmp(line, "export-fd")) export_fd(argument);
    if (!strcmp(line, "import-fd")) import_fd(argument);
    if (!strcmp(line, "release-fd")) release_fd();
    fflush(stdout);
  }
  return 0;
}
