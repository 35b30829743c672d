/* Exports memory to other processes and imports it from them, by commands on its standard input.
 * Descriptors are sent and received through the socket in its argument; N is an index for memory, 0
 * to 31. Each command prints one line, the result unless stated otherwise.
 *
 *   export-ipc BYTES     cuMemAlloc and its IPC handle: prints the handle
 *   open-ipc HANDLE, close-ipc, free-ipc
 *   make N BYTES         cuMemCreate, mapped
 *   alloc N BYTES        cuMemAlloc
 *   pool N BYTES         an exportable pool with this much of it in use
 *   export N             makes a descriptor of it, sends and closes it
 *   keep N               makes a descriptor of it and keeps that
 *   dma-buf N            as `export`, of the address range
 *   take N               receives a descriptor, imports, maps and closes it
 *   take-pool N          receives a descriptor, imports and closes it
 *   hold                 receives a descriptor and keeps it
 *   drop                 closes the descriptors that were kept
 *   release N            unmaps, releases, frees or destroys it
 *   fork, end-child      a child that keeps what it inherits until it is killed
 *   free                 prints the free bytes of cuMemGetInfo
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

typedef struct place {
  CUmemGenericAllocationHandle physical;
  CUmemoryPool pool;
  CUdeviceptr pointer;
  size_t bytes;
} place;

static place places[32];
static CUdeviceptr allocated, opened;
static int line, kept[64], kept_count;
static pid_t child;

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

static union {
  char bytes[CMSG_SPACE(sizeof(int))];
  struct cmsghdr aligned;
} control;

static struct msghdr message(struct iovec *byte) {
  return (struct msghdr){.msg_iov = byte,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
}

static int receive(void) {
  char byte;
  int descriptor;
  struct msghdr m = message(&(struct iovec){&byte, 1});
  if (recvmsg(line, &m, MSG_CMSG_CLOEXEC) != 1) return -1;
  memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof descriptor);
  return descriptor;
}

static CUresult send_and_close(int descriptor) {
  char byte = 'x';
  struct msghdr m = message(&(struct iovec){&byte, 1});
  struct cmsghdr *header = CMSG_FIRSTHDR(&m);
  *header = (struct cmsghdr){CMSG_LEN(sizeof descriptor), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  if (sendmsg(line, &m, 0) != 1) return CUDA_ERROR_OPERATING_SYSTEM;
  close(descriptor);
  return CUDA_SUCCESS;
}

static CUresult map(place *p) {
  CUresult result = cuMemAddressReserve(&p->pointer, p->bytes, 0, 0, 0);
  return result == CUDA_SUCCESS ? cuMemMap(p->pointer, p->bytes, 0, p->physical, 0) : result;
}

static CUresult make(place *p) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                    .requestedHandleTypes = FD};
  CUresult result = cuMemCreate(&p->physical, p->bytes, &properties, 0);
  if (result == CUDA_SUCCESS) return map(p);
  p->physical = 0;
  return result;
}

static CUresult make_pool(place *p) {
  CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                               .handleTypes = FD};
  cuuint64_t all = UINT64_MAX;
  CUresult result = cuMemPoolCreate(&p->pool, &properties);
  if (result == CUDA_SUCCESS) {
    result = cuMemPoolSetAttribute(p->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
  }
  if (result == CUDA_SUCCESS) {
    result = cuMemAllocFromPoolAsync(&p->pointer, p->bytes, p->pool, NULL);
  }
  return result == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : result;
}

static CUresult export(place *p, int *descriptor) {
  return p->pool ? cuMemPoolExportToShareableHandle(descriptor, p->pool, FD, 0)
                 : cuMemExportToShareableHandle(descriptor, p->physical, FD, 0);
}

static CUresult take(place *p, bool pool) {
  int descriptor = receive();
  void *handle = (void *)(intptr_t)descriptor;
  CUresult result = pool ? cuMemPoolImportFromShareableHandle(&p->pool, handle, FD, 0)
                         : cuMemImportFromShareableHandle(&p->physical, handle, FD);
  close(descriptor);
  return result == CUDA_SUCCESS && !pool ? map(p) : result;
}

static CUresult release(place *p) {
  CUresult result = CUDA_SUCCESS;
  if (p->physical) {
    result = cuMemUnmap(p->pointer, p->bytes);
    if (result == CUDA_SUCCESS) result = cuMemAddressFree(p->pointer, p->bytes);
    if (result == CUDA_SUCCESS) result = cuMemRelease(p->physical);
  } else if (p->pool) {
    if (p->pointer) result = cuMemFreeAsync(p->pointer, NULL);
    if (result == CUDA_SUCCESS) result = cuStreamSynchronize(NULL);
    if (result == CUDA_SUCCESS) result = cuMemPoolDestroy(p->pool);
  } else {
    result = cuMemFree(p->pointer);
  }
  *p = (place){0};
  return result;
}

static void fork_child(void) {
  fflush(stdout);
  child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  say(child < 0);
}

static void end_child(void) {
  kill(child, SIGKILL);
  say(waitpid(child, NULL, 0) != child);
}

static void obey(const char *what, char *argument) {
  unsigned long long number = 0, bytes = 0;
  int descriptor = -1;
  if (argument) sscanf(argument, "%llu %llu", &number, &bytes);
  place *p = &places[number % 32];
  if (bytes) p->bytes = bytes;
  if (!strcmp(what, "export-ipc")) export_ipc(argument);
  if (!strcmp(what, "open-ipc")) open_ipc(argument);
  if (!strcmp(what, "close-ipc")) say(cuIpcCloseMemHandle(opened));
  if (!strcmp(what, "free-ipc")) say(cuMemFree(allocated));
  if (!strcmp(what, "make")) say(make(p));
  if (!strcmp(what, "alloc")) say(cuMemAlloc(&p->pointer, p->bytes));
  if (!strcmp(what, "pool")) say(make_pool(p));
  if (!strcmp(what, "export")) {
    CUresult result = export(p, &descriptor);
    say(result == CUDA_SUCCESS ? send_and_close(descriptor) : result);
  }
  if (!strcmp(what, "keep")) say(export(p, &kept[kept_count++]));
  if (!strcmp(what, "dma-buf")) {
    CUresult result = cuMemGetHandleForAddressRange(&descriptor, p->pointer, p->bytes,
                                                    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    say(result == CUDA_SUCCESS ? send_and_close(descriptor) : result);
  }
  if (!strcmp(what, "take")) say(take(p, false));
  if (!strcmp(what, "take-pool")) say(take(p, true));
  if (!strcmp(what, "hold")) say((kept[kept_count++] = receive()) < 0);
  if (!strcmp(what, "drop")) {
    while (kept_count) close(kept[--kept_count]);
    say(CUDA_SUCCESS);
  }
  if (!strcmp(what, "release")) say(release(p));
  if (!strcmp(what, "fork")) fork_child();
  if (!strcmp(what, "end-child")) end_child();
  if (!strcmp(what, "free")) {
    size_t free_bytes = 0, total = 0;
    cuMemGetInfo(&free_bytes, &total);
    printf("%zu\n", free_bytes);
  }
}

int main(int count, char **arguments) {
  CUcontext context;
  line = count > 1 ? atoi(arguments[1]) : -1;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
  puts("ready");
  fflush(stdout);
  char order[512];
  while (fgets(order, sizeof order, stdin)) {
    order[strcspn(order, "\n")] = 0;
    char *argument = strchr(order, ' ');
    if (argument) *argument++ = 0;
    obey(order, argument);
    fflush(stdout);
  }
  return 0;
}
