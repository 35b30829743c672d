/* A program to be checkpointed. It does what standard input says, one order a line, and prints one
 * line for each. */
#include <stdatomic.h>
#include <sys/wait.h>

#include "check.h"

#define WORDS 4096

static CUdeviceptr blocks[64];
static size_t block_bytes[64];
static int block_count;
static CUstream stream;
static CUevent before, after;

static void allocate(size_t bytes) {
  CUresult result = cuMemAlloc(&blocks[block_count], bytes);
  if (result == CUDA_SUCCESS) block_bytes[block_count++] = bytes;
  const char *name;
  cuGetErrorName(result, &name);
  printf("%s\n", name);
}

/* Fills each block's kept part with words that depend on the block and the position. */
static void fill(void) {
  static uint32_t words[WORDS];
  for (int b = 0; b < block_count; b++)
    for (size_t at = 0; at < block_bytes[b] && at < 64 * MIB; at += sizeof words) {
      size_t bytes = block_bytes[b] - at < sizeof words ? block_bytes[b] - at : sizeof words;
      for (uint32_t i = 0; i < WORDS; i++)
        words[i] = (uint32_t)(at + i) * 2654435761u + (uint32_t)b;
      OK(cuMemcpyHtoD(blocks[b] + at, words, bytes));
    }
  puts("filled");
}

static void compare(void) {
  static uint32_t words[WORDS];
  for (int b = 0; b < block_count; b++)
    for (size_t at = 0; at < block_bytes[b] && at < 64 * MIB; at += sizeof words) {
      size_t bytes = block_bytes[b] - at < sizeof words ? block_bytes[b] - at : sizeof words;
      OK(cuMemcpyDtoH(words, blocks[b] + at, bytes));
      for (uint32_t i = 0; i < bytes / 4; i++)
        CHECK(words[i] == (uint32_t)(at + i) * 2654435761u + (uint32_t)b);
    }
  puts("equal");
}

/* Runs a kernel between two events in a stream that exists since the start. */
static void work(uint64_t ns) {
  float ms;
  OK(cuEventRecord(before, stream));
  spin(stream, ns, 1);
  OK(cuEventRecord(after, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuEventElapsedTime(&ms, before, after));
  printf("%.3f\n", ms);
}

static void uuid(void) {
  CUuuid id;
  OK(cuDeviceGetUuid(&id, 0));
  for (int i = 0; i < 16; i++) printf("%02x", (unsigned char)id.bytes[i]);
  puts("");
}

static void nothing_of(const char *what) {
  CUdeviceptr pointer;
  CUipcMemHandle handle;
  CUipcEventHandle event_handle;
  CUevent event;
  CUmemGenericAllocationHandle physical;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  int fd, devices;
  CUcontext other;
  if (!strcmp(what, "managed\n")) {
    OK(cuMemAllocManaged(&pointer, MIB, CU_MEM_ATTACH_GLOBAL));
  } else if (!strcmp(what, "exported\n")) {
    OK(cuMemAlloc(&pointer, 1000));
    OK(cuIpcGetMemHandle(&handle, pointer));
  } else if (!strcmp(what, "descriptor\n")) {
    OK(cuMemCreate(&physical, 2 * MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, physical, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  } else if (!strcmp(what, "event\n")) {
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuIpcGetEventHandle(&event_handle, event));
  } else if (!strcmp(what, "peer\n")) {
    OK(cuDeviceGetCount(&devices));
    CHECK(devices > 1);
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxEnablePeerAccess(other, 0));
  }
  puts("done");
}

int main(void) {
  char line[256];
  begin();
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&before, 0));
  OK(cuEventCreate(&after, 0));
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    unsigned long number = 0;
    const char *name = "?";
    char *space = strchr(line, ' ');
    if (space) number = strtoul(space, NULL, 10);
    if (!strncmp(line, "allocate", 8)) allocate(number);
    if (!strncmp(line, "fill", 4)) fill();
    if (!strncmp(line, "compare", 7)) compare();
    if (!strncmp(line, "work", 4)) work(number);
    if (!strncmp(line, "uuid", 4)) uuid();
    if (!strncmp(line, "make ", 5)) nothing_of(line + 5);
    if (!strncmp(line, "launch", 6)) {
      spin(stream, number, 1);
      puts("launched");
    }
    if (!strncmp(line, "free", 4)) printf("%zu\n", free_bytes());
    if (!strncmp(line, "count", 5)) { /* does not wait for a lock */
      int count;
      OK(cuDeviceGetCount(&count));
      printf("%d\n", count);
    }
    if (!strncmp(line, "result", 6)) {
      cuGetErrorName(cuCtxSynchronize(), &name);
      puts(name);
    }
    fflush(stdout);
  }
  return 0;
}
