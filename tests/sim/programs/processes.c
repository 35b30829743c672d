/* Several processes on one device, and what a process may not inherit. */
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* Two processes that pass lines of bytes; the child runs `child` and must end well. */
static int to_child[2], to_parent[2];

static pid_t with_child(void (*child)(void)) {
  CHECK(!pipe(to_child) && !pipe(to_parent));
  pid_t pid = fork();
  if (pid) return pid;
  child();
  _exit(0);
}
static void put(const int *pipe_ends, const void *data, size_t bytes) {
  CHECK(write(pipe_ends[1], data, bytes) == (ssize_t)bytes);
}
static void get(const int *pipe_ends, void *data, size_t bytes) {
  CHECK(read(pipe_ends[0], data, bytes) == (ssize_t)bytes);
}
static void ended_well(pid_t pid) {
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void open_memory(void) {
  CUipcMemHandle handle;
  CUdeviceptr pointer;
  int value = 0;
  get(to_child, &handle, sizeof handle);
  begin();
  size_t before = free_bytes();
  OK(cuIpcOpenMemHandle(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CHECK(free_bytes() == before); /* it is the other's */
  OK(cuMemcpyDtoH(&value, pointer, 4));
  CHECK(value == 77);
  value = 78;
  OK(cuMemcpyHtoD(pointer, &value, 4));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(pointer));
  OK(cuIpcCloseMemHandle(pointer));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(pointer));
}

CASE(memory_of_another_process_is_the_same_memory) {
  pid_t child = with_child(open_memory);
  begin();
  CUdeviceptr small, pointer;
  CUipcMemHandle handle;
  int value = 77;
  OK(cuMemAlloc(&small, 700)); /* so that the next one begins inside a page */
  OK(cuMemAlloc(&pointer, 1000));
  OK(cuMemcpyHtoD(pointer, &value, 4));
  OK(cuIpcGetMemHandle(&handle, pointer));
  GIVES(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle(&small, handle, 0));
  put(to_child, &handle, sizeof handle);
  ended_well(child);
  OK(cuMemcpyDtoH(&value, pointer, 4));
  CHECK(value == 78);
}

static void close_and_reserve(void) {
  CUipcMemHandle handle;
  CUdeviceptr pointer, pages;
  get(to_child, &handle, sizeof handle);
  begin();
  OK(cuIpcOpenMemHandle(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcCloseMemHandle(pointer));
  OK(cuMemAddressReserve(&pages, 2 * MIB, 0, 0, 0));
  CHECK(pages % (2 * MIB) == 0);
}

CASE(what_began_inside_a_page_leaves_whole_pages_when_it_is_closed) {
  pid_t child = with_child(close_and_reserve);
  begin();
  CUdeviceptr small, pointer;
  CUipcMemHandle handle;
  OK(cuMemAlloc(&small, 700));
  OK(cuMemAlloc(&pointer, 1000));
  OK(cuIpcGetMemHandle(&handle, pointer));
  put(to_child, &handle, sizeof handle);
  ended_well(child);
}

static void wait_for_event(void) {
  CUipcEventHandle handle;
  CUevent event;
  get(to_child, &handle, sizeof handle);
  begin();
  OK(cuIpcOpenEventHandle(&event, handle));
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  uint64_t begun = now_ns();
  OK(cuStreamWaitEvent(NULL, event, 0));
  OK(cuStreamSynchronize(NULL));
  OK(cuEventQuery(event));
  CHECK(ms_since(begun) > 50);
}

CASE(a_stream_waits_for_an_event_of_another_process) {
  pid_t child = with_child(wait_for_event);
  begin();
  CUevent event;
  CUipcEventHandle handle;
  OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  spin(NULL, 1000000000, 1);
  OK(cuEventRecord(event, NULL));
  OK(cuIpcGetEventHandle(&handle, event));
  put(to_child, &handle, sizeof handle);
  ended_well(child);
}

static void no_driver_here(void) {
  CUdevice device;
  CUdeviceptr pointer;
  GIVES(CUDA_ERROR_NOT_INITIALIZED, cuInit(0));
  GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGet(&device, 0));
  GIVES(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&pointer, 100));
  GIVES(CUDA_ERROR_NOT_INITIALIZED, cuCtxSynchronize());
}

CASE(the_child_of_a_fork_has_no_driver_and_the_parent_keeps_its_own) {
  begin();
  size_t before = free_bytes();
  ended_well(with_child(no_driver_here));
  CHECK(free_bytes() == before);
}

static void be_locked(void) {
  begin();
  CUdeviceptr pointer;
  OK(cuMemAlloc(&pointer, 500 * MIB));
  put(to_parent, "r", 1);
  char go;
  get(to_child, &go, 1); /* the parent has locked us */
  uint64_t begun = now_ns();
  OK(cuMemFree(pointer)); /* waits until we are unlocked */
  double waited = ms_since(begun);
  put(to_parent, &waited, sizeof waited);
}

CASE(a_checkpoint_gives_another_process_memory_back_and_takes_it_again) {
  pid_t child = with_child(be_locked);
  begin();
  char ready;
  get(to_parent, &ready, 1);
  CUprocessState state;
  size_t before = free_bytes();
  OK(cuCheckpointProcessGetState(child, &state));
  CHECK(state == CU_PROCESS_STATE_RUNNING);
  GIVES(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessCheckpoint(child, NULL));
  OK(cuCheckpointProcessLock(child, NULL));
  put(to_child, "g", 1);
  OK(cuCheckpointProcessCheckpoint(child, NULL));
  CHECK(free_bytes() - before == 700 * MIB); /* its context too */
  CUdeviceptr mine;
  OK(cuMemAlloc(&mine, free_bytes()));
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCheckpointProcessRestore(child, NULL));
  OK(cuMemFree(mine));
  OK(cuCheckpointProcessRestore(child, NULL));
  CHECK(free_bytes() == before);
  usleep(100000); /* how long it has to wait at least */
  OK(cuCheckpointProcessUnlock(child, NULL));
  double waited;
  get(to_parent, &waited, sizeof waited);
  CHECK(waited > 50);
  ended_well(child);
}

CASE(a_lock_waits_for_submitted_work_or_times_out) {
  begin();
  CUcheckpointLockArgs limit = {.timeoutMs = 20};
  CUprocessState state;
  spin(NULL, 100000000, 1);
  GIVES(CUDA_ERROR_NOT_READY, cuCheckpointProcessLock(getpid(), &limit));
  OK(cuCheckpointProcessGetState(getpid(), &state));
  CHECK(state == CU_PROCESS_STATE_RUNNING);
  limit.timeoutMs = 5000;
  OK(cuCheckpointProcessLock(getpid(), &limit));
  OK(cuCheckpointProcessUnlock(getpid(), NULL));
  OK(cuStreamQuery(NULL));
  GIVES(CUDA_ERROR_NOT_INITIALIZED, cuCheckpointProcessLock(1, &limit)); /* it does not use CUDA */
}

static bool over;

static void *work_on(void *context) {
  CUstream stream;
  CUevent event;
  uint32_t there[1024], back[1024];
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, 0));
  for (uint32_t round = 1; !__atomic_load_n(&over, __ATOMIC_RELAXED); round++) {
    CUdeviceptr pointer;
    OK(cuMemAlloc(&pointer, round % 2 ? sizeof there : 3 * MIB));
    for (int i = 0; i < 1024; i++) there[i] = round * 77 + (uint32_t)i;
    OK(cuMemcpyHtoD(pointer, there, sizeof there));
    spin(stream, 50000, 1);
    OK(cuEventRecord(event, stream));
    OK(cuEventSynchronize(event));
    OK(cuMemcpyDtoH(back, pointer, sizeof back));
    CHECK(!memcmp(there, back, sizeof back));
    OK(cuMemFree(pointer));
  }
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(stream));
  return NULL;
}

/* Restores this process, each time onto the other device if the machine has two. */
static void restore(int devices, const CUuuid *ids) {
  CUcheckpointGpuPair pairs[2] = {{ids[0], ids[1]}, {ids[1], ids[0]}};
  CUcheckpointRestoreArgs args = {.gpuPairs = pairs, .gpuPairsCount = 2};
  OK(cuCheckpointProcessRestore(getpid(), devices == 2 ? &args : NULL));
}

CASE(threads_work_on_while_their_process_is_checkpointed_and_moved) {
  CUcontext context = begin();
  pthread_t threads[3];
  CUuuid ids[2] = {0};
  int devices;
  OK(cuDeviceGetCount(&devices));
  for (int i = 0; i < devices && i < 2; i++) OK(cuDeviceGetUuid(&ids[i], i));
  spin_kernel();
  for (int i = 0; i < 3; i++) CHECK(!pthread_create(&threads[i], NULL, work_on, context));
  for (int round = 0; round < 10; round++) {
    OK(cuCheckpointProcessLock(getpid(), NULL));
    OK(cuCheckpointProcessCheckpoint(getpid(), NULL));
    restore(devices, ids);
    OK(cuCheckpointProcessUnlock(getpid(), NULL));
    usleep(5000);
  }
  __atomic_store_n(&over, true, __ATOMIC_RELAXED);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

CASE(memory_exported_by_descriptor_stays_charged_until_nobody_holds_it) {
  begin();
  size_t before = free_bytes();
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemGenericAllocationHandle handle, imported;
  int fd;
  OK(cuMemCreate(&handle, 10 * MIB, &prop, 0));
  OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  OK(cuMemRelease(handle));
  CHECK(before - free_bytes() == 10 * MIB);
  OK(cuMemRelease(imported));
  CHECK(before - free_bytes() == 10 * MIB); /* the descriptor keeps it */
  int copy = dup(fd);
  close(fd);
  CHECK(before - free_bytes() == 10 * MIB);
  close(copy);
  CHECK(free_bytes() == before);
}

/* A number of a terminal is given out again, to memory of another device or machine. */
CASE(a_descriptor_is_not_taken_for_one_of_another_device) {
  begin();
  int devices;
  CUcontext first, second;
  CUmemGenericAllocationHandle here, there;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  int descriptor, other;
  OK(cuDeviceGetCount(&devices));
  if (devices < 2) return;
  OK(cuCtxGetCurrent(&first));
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  size_t before = free_bytes();
  OK(cuMemCreate(&here, 10 * MIB, &prop, 0));
  OK(cuMemExportToShareableHandle(&descriptor, here, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuMemRelease(here));
  OK(cuCtxSetCurrent(second));
  prop.location.id = 1;
  OK(cuMemCreate(&there, 10 * MIB, &prop, 0));
  close(descriptor);
  OK(cuMemExportToShareableHandle(&other, there, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuCtxSetCurrent(first));
  CHECK(free_bytes() == before);
}

CASE(descriptors_of_memory_are_files_of_one_character_device) {
  begin();
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}},
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
  CUmemGenericAllocationHandle handle;
  int first, second;
  struct stat one, two;
  OK(cuMemCreate(&handle, 10 * MIB, &prop, 0));
  OK(cuMemExportToShareableHandle(&first, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuMemExportToShareableHandle(&second, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CHECK(fstat(first, &one) == 0 && fstat(second, &two) == 0);
  CHECK(S_ISCHR(one.st_mode) && one.st_ino == two.st_ino && one.st_rdev == two.st_rdev);
  OK(cuMemRelease(handle));
  close(first);
  close(second);
}
