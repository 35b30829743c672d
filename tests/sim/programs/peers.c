/* Kernels that wait for each other, on several devices and in several processes. The environment
 * has RANK, RANKS, ROUNDS, and SHARED, a file that all of them map. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "check.h"

static const char image[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry meet(.param .u64 word, .param .u64 count)\n{ ret; }\n";

static int number(const char *name) {
  const char *text = getenv(name);
  CHECK(text);
  return atoi(text);
}

static CUdeviceptr shared_words(void) {
  int fd = open(getenv("SHARED"), O_RDWR);
  CHECK(fd >= 0);
  void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  CUdeviceptr pointer;
  OK(cuMemHostRegister(at, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&pointer, at, 0));
  return pointer;
}

static void meet(CUstream stream, CUdeviceptr word, uint64_t count) {
  static CUfunction function;
  CUmodule module;
  if (!function) {
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, "meet"));
  }
  void *parameters[] = {&word, &count};
  OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static double processor_ms(void) { return (double)clock() * 1e3 / CLOCKS_PER_SEC; }

/* Steps of a millisecond of work and a meeting of all. */
CASE(rank_of_a_collective) {
  begin();
  CUdeviceptr word = shared_words();
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  uint64_t ranks = (uint64_t)number("RANKS"), rounds = (uint64_t)number("ROUNDS");
  for (uint64_t round = 1; round <= rounds; round++) {
    spin(stream, 1000000, 1);
    meet(stream, word, ranks * round);
    OK(cuStreamSynchronize(stream));
    uint64_t came = __atomic_load_n((volatile uint64_t *)word, __ATOMIC_ACQUIRE);
    CHECK(came >= ranks * round && came < ranks * (round + 1));
  }
}

/* The awaited peer does not come, or has been killed. */
CASE(rank_that_waits_for_one_that_does_not_come) {
  begin();
  CUdeviceptr word = shared_words();
  meet(NULL, word, (uint64_t)number("RANKS"));
  usleep(500000);
  double before = processor_ms();
  printf("waiting\n");
  fflush(stdout);
  usleep(1000000);
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
  printf("%.1f\n", processor_ms() - before);
  fflush(stdout);
  OK(cuCtxSynchronize());
}

CASE(kernel_of_some_milliseconds) {
  begin();
  spin(NULL, 1000, 1);
  OK(cuCtxSynchronize());
  uint64_t begun = now_ns();
  spin(NULL, 60000000, 1);
  OK(cuCtxSynchronize());
  printf("%.1f\n", ms_since(begun));
}

CASE(a_kernel_that_waits_leaves_the_rest_of_the_device_to_its_own_process) {
  begin();
  CUdeviceptr word = shared_words();
  CUstream waits, works;
  OK(cuStreamCreate(&waits, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&works, CU_STREAM_NON_BLOCKING));
  spin_kernel();
  meet(waits, word, 2);
  uint64_t begun = now_ns();
  spin(works, 60000000, 100); /* half of the device */
  OK(cuStreamSynchronize(works));
  CHECK(ms_since(begun) > 59.9 && ms_since(begun) < 90);
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(waits));
  meet(works, word, 2);
  OK(cuCtxSynchronize());
}

CASE(kernels_of_two_devices_of_one_process_wait_for_each_other) {
  CUcontext contexts[2];
  CUstream streams[2];
  CUdeviceptr word;
  OK(cuInit(0));
  for (int i = 0; i < 2; i++) {
    OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
    OK(cuCtxSetCurrent(contexts[i]));
    OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    if (!i) OK(cuMemAlloc(&word, 8));
    if (!i) OK(cuMemsetD8(word, 0, 8));
    OK(cuCtxSynchronize());
  }
  for (int i = 0; i < 2; i++) {
    CUmodule module;
    CUfunction function;
    uint64_t count = 2;
    void *parameters[] = {&word, &count};
    OK(cuCtxSetCurrent(contexts[i]));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, "meet"));
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, streams[i], parameters, NULL));
    if (!i) usleep(50000);
    if (!i) GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(streams[i]));
  }
  for (int i = 0; i < 2; i++) OK(cuStreamSynchronize(streams[i]));
}

static int pipe_ends[2];

static void open_and_meet(void) {
  CUipcMemHandle handle;
  CUdeviceptr word;
  CHECK(read(pipe_ends[0], &handle, sizeof handle) == sizeof handle);
  begin();
  OK(cuIpcOpenMemHandle(&word, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  for (uint64_t round = 1; round <= 3; round++) meet(NULL, word, 2 * round);
  OK(cuCtxSynchronize());
}

CASE(a_word_of_device_memory_that_another_process_opened_counts_both) {
  CHECK(!pipe(pipe_ends));
  pid_t child = fork();
  if (!child) {
    open_and_meet();
    _exit(0);
  }
  begin();
  CUipcMemHandle handle;
  CUdeviceptr word;
  uint64_t came;
  int status;
  OK(cuMemAlloc(&word, 8));
  OK(cuMemsetD8(word, 0, 8));
  OK(cuCtxSynchronize());
  OK(cuIpcGetMemHandle(&handle, word));
  CHECK(write(pipe_ends[1], &handle, sizeof handle) == sizeof handle);
  for (uint64_t round = 1; round <= 3; round++) meet(NULL, word, 2 * round);
  OK(cuCtxSynchronize());
  OK(cuMemcpyDtoH(&came, word, 8));
  CHECK(came == 6);
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
}

CASE(a_kernel_without_a_word_fails) {
  begin();
  meet(NULL, 0x10, 1);
  GIVES(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
}
