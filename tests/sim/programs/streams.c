/* Order of work: streams, default streams, events, host functions, values; and how long it takes.
 */
#include <pthread.h>

#include "check.h"

/* Simulated times are exact; the host adds its own to what it measures. */
#define ABOUT(ms, expected) ((ms) > (expected) - 0.1 && (ms) < (expected) + 15)

CASE(kernels_of_one_stream_add_up) {
  begin();
  CUevent first, last;
  CUstream stream;
  float ms;
  OK(cuEventCreate(&first, 0));
  OK(cuEventCreate(&last, 0));
  OK(cuStreamCreate(&stream, 0));
  spin_kernel();
  OK(cuEventRecord(first, stream));
  for (int i = 0; i < 20; i++) spin(stream, 1000000, 200);
  OK(cuEventRecord(last, stream));
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(last));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  GIVES(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, first, last));
  OK(cuEventSynchronize(last));
  OK(cuEventElapsedTime(&ms, first, last));
  CHECK(ms >= 20.0f && ms < 20.2f); /* the first launch begins after its call was made */
  float ticks = ms / 0.0005f;
  CHECK(ticks - (float)(int)(ticks + 0.5f) < 0.01f);
}

/* What is added between two lines of "step" on the standard input is in the elapsed time. */
CASE(events_are_timed_by_the_device_clock) {
  begin();
  CUevent first, last;
  char line[16];
  float ms;
  OK(cuEventCreate(&first, 0));
  OK(cuEventCreate(&last, 0));
  uint64_t begun = now_ns();
  OK(cuEventRecord(first, NULL));
  OK(cuEventSynchronize(first));
  printf("recorded\n");
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) usleep(100000);
  OK(cuEventRecord(last, NULL));
  OK(cuEventSynchronize(last));
  OK(cuEventElapsedTime(&ms, first, last));
  printf("%.6f %.6f\n", (double)ms, ms_since(begun));
}

CASE(small_kernels_of_different_streams_overlap_and_large_ones_do_not) {
  begin();
  CUstream streams[4];
  for (int i = 0; i < 4; i++) OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  spin_kernel();
  uint64_t begun = now_ns();
  for (int i = 0; i < 4; i++) spin(streams[i], 20000000, 10);
  OK(cuCtxSynchronize());
  CHECK(ABOUT(ms_since(begun), 20));
  begun = now_ns();
  for (int i = 0; i < 4; i++) spin(streams[i], 20000000, 200);
  OK(cuCtxSynchronize());
  CHECK(ABOUT(ms_since(begun), 80));
}

/* Streams made so that two of them share a queue where a context has eight, its legacy stream in
 * the first. */
static CUstream made_after(int others) {
  CUstream stream;
  for (int i = 0; i < others; i++) OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

/* A long kernel and a marker behind it, then a kernel of another stream: how long that one takes.
 */
static double ms_behind_a_marker(CUstream first, CUstream second) {
  CUevent marker;
  OK(cuEventCreate(&marker, 0));
  OK(cuCtxSynchronize());
  uint64_t begun = now_ns();
  spin(first, 60000000, 1);
  OK(cuEventRecord(marker, first));
  spin(second, 1000000, 1);
  OK(cuStreamSynchronize(second));
  double ms = ms_since(begun);
  OK(cuCtxSynchronize());
  return ms;
}

CASE(a_marker_holds_back_the_streams_that_share_its_hardware_queue_and_no_others) {
  begin();
  spin_kernel();
  CUstream first = made_after(0), next = made_after(0), same = made_after(6);
  CHECK(ms_behind_a_marker(first, next) < 45);
  CHECK(ms_behind_a_marker(first, same) > 60);
  CHECK(ms_behind_a_marker(same, first) > 60);
}

/* Run with one connection. */
CASE(with_one_connection_all_streams_share_a_hardware_queue) {
  begin();
  spin_kernel();
  CUstream first = made_after(0), next = made_after(0);
  uint64_t begun = now_ns();
  spin(first, 60000000, 1);
  spin(next, 60000000, 1); /* right behind a kernel that runs: both run */
  OK(cuCtxSynchronize());
  CHECK(ABOUT(ms_since(begun), 60));
  bool one = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  CHECK((ms_behind_a_marker(first, next) > 60) == one);
  begun = now_ns();
  spin(first, 30000000, 1);
  spin(first, 30000000, 1); /* waits for its stream, and those behind it for it */
  spin(next, 30000000, 1);
  OK(cuStreamSynchronize(next));
  CHECK(one ? ms_since(begun) > 59 : ABOUT(ms_since(begun), 30));
  OK(cuCtxSynchronize());
}

CASE(a_value_that_does_not_come_holds_back_its_hardware_queue_but_no_copy) {
  begin();
  spin_kernel();
  CUstream first = made_after(0), same = made_after(7), copies = made_after(7);
  volatile uint32_t *words;
  CUdeviceptr device;
  OK(cuMemHostAlloc((void **)&words, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemAlloc(&device, 4096));
  words[0] = 0;
  OK(cuStreamWaitValue32(first, (CUdeviceptr)words, 1, CU_STREAM_WAIT_VALUE_GEQ));
  spin(same, 1000, 1);
  OK(cuMemcpyHtoDAsync(device, (void *)(words + 1), 64, copies));
  OK(cuStreamSynchronize(copies));
  clock_t before = clock();
  usleep(300000);
  CHECK((double)(clock() - before) / CLOCKS_PER_SEC < 0.1);
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(same));
  __atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
  OK(cuStreamSynchronize(same));
}

CASE(a_stream_that_is_held_back_is_waited_for_without_processor_time) {
  begin();
  spin_kernel();
  CUstream first = made_after(0), same = made_after(7);
  CUevent marker;
  OK(cuEventCreate(&marker, 0));
  spin(first, 300000000, 1);
  OK(cuEventRecord(marker, first));
  spin(same, 2000, 1);
  OK(cuEventRecord(marker, same));
  clock_t before = clock();
  OK(cuStreamSynchronize(same));
  CHECK((double)(clock() - before) / CLOCKS_PER_SEC < 0.03);
}

CASE(waiting_for_streams_that_wait_for_each_other_many_times_takes_their_time_alone) {
  begin();
  CUevent event;
  CUstream streams[4];
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (int i = 0; i < 4; i++) OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  spin_kernel();
  spin(streams[0], 50000000, 200); /* until all is queued */
  for (int i = 0; i < 400; i++) {
    CUstream from = streams[i % 4], to = streams[(i + 1) % 4];
    spin(from, 100000, 200);
    OK(cuEventRecord(event, from));
    OK(cuStreamWaitEvent(to, event, 0));
    OK(cuStreamWaitEvent(streams[(i + 2) % 4], event, 0));
  }
  uint64_t begun = now_ns();
  OK(cuCtxSynchronize());
  CHECK(ms_since(begun) < 200); /* 90 ms of kernels at most */
}

CASE(the_legacy_stream_waits_for_blocking_streams_and_they_for_it) {
  begin();
  CUstream blocking, other, free_one;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuStreamCreate(&other, CU_STREAM_DEFAULT));
  OK(cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING));
  spin_kernel();
  uint64_t begun = now_ns();
  spin(blocking, 20000000, 1);
  spin(NULL, 20000000, 1);
  spin(other, 20000000, 1);
  spin(free_one, 20000000, 1);
  OK(cuStreamSynchronize(free_one));
  CHECK(ABOUT(ms_since(begun), 20));
  OK(cuStreamSynchronize(blocking));
  CHECK(ABOUT(ms_since(begun), 20));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
  OK(cuStreamSynchronize(CU_STREAM_LEGACY));
  CHECK(ABOUT(ms_since(begun), 60)); /* it stands for all blocking streams */
}

CASE(the_per_thread_stream_is_a_stream_of_its_own) {
  begin();
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     unsigned, CUstream, void **, void **);
  OK(cuGetProcAddress("cuLaunchKernel", (void **)&launch, 13000,
                      CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
  CHECK((void *)launch != (void *)cuLaunchKernel);
  uint64_t ns = 20000000;
  void *parameters[] = {&ns};
  CUstream free_one;
  OK(cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING));
  OK(launch(spin_kernel(), 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
  OK(cuStreamQuery(free_one));
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  OK(cuStreamQuery(CU_STREAM_PER_THREAD));
  OK(launch(spin_kernel(), 1, 1, 1, 32, 1, 1, 0, CU_STREAM_LEGACY, parameters, NULL));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
}

CASE(a_stream_waits_for_an_event_of_another) {
  begin();
  CUstream first, second;
  CUevent event;
  OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuStreamWaitEvent(second, event, 0)); /* never recorded: nothing to wait for */
  OK(cuStreamQuery(second));
  spin_kernel();
  uint64_t begun = now_ns();
  spin(first, 20000000, 1);
  OK(cuEventRecord(event, first));
  spin(first, 20000000, 1); /* after the event: not waited for */
  OK(cuStreamWaitEvent(second, event, 0));
  spin(second, 20000000, 1);
  OK(cuStreamSynchronize(second));
  CHECK(ABOUT(ms_since(begun), 40));
  float ms;
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, event, event)); /* it keeps no time */
}

static volatile int called;
static void call(void *order) { called = called * 10 + *(int *)order; }

CASE(host_functions_run_in_stream_order) {
  begin();
  int one = 1, two = 2;
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  spin(stream, 200000000, 1); /* long enough for a busy machine to come to the check */
  OK(cuLaunchHostFunc(stream, call, &one));
  spin(stream, 10000000, 1);
  OK(cuLaunchHostFunc(stream, call, &two));
  CHECK(called == 0);
  OK(cuStreamSynchronize(stream));
  CHECK(called == 12);
}

CASE(values_are_written_and_waited_for_in_stream_order) {
  begin();
  volatile uint64_t *words;
  CUstream stream, other;
  OK(cuMemHostAlloc((void **)&words, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  words[0] = words[1] = 0;
  spin(stream, 20000000, 1);
  OK(cuStreamWriteValue64(stream, (CUdeviceptr)&words[0], 99, 0));
  CHECK(__atomic_load_n(&words[0], __ATOMIC_ACQUIRE) == 0);
  uint64_t begun = now_ns(); /* the value comes without any call */
  while (__atomic_load_n(&words[0], __ATOMIC_ACQUIRE) != 99 && ms_since(begun) < 2000) usleep(500);
  CHECK(words[0] == 99 && ms_since(begun) > 15);
  OK(cuStreamWaitValue32(stream, (CUdeviceptr)&words[1], 5, CU_STREAM_WAIT_VALUE_GEQ));
  spin(stream, 1000000, 1);
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  OK(cuStreamWriteValue32(other, (CUdeviceptr)&words[1], 6, 0));
  OK(cuStreamSynchronize(stream));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(stream, (CUdeviceptr)&begun, 6, 0));
}

CASE(a_launch_blocks_when_the_queue_is_full) {
  begin();
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  spin_kernel();
  uint64_t begun = now_ns();
  for (int i = 0; i < 1024; i++) spin(stream, 100000, 200);
  CHECK(ms_since(begun) < 60);
  for (int i = 0; i < 1024; i++) spin(stream, 100000, 200); /* half of 204.8 ms must have passed */
  CHECK(ms_since(begun) > 95);
  OK(cuCtxSynchronize());
  CHECK(ABOUT(ms_since(begun), 204.8));
}

CASE(waiting_burns_no_processor_time) {
  begin();
  spin(NULL, 300000000, 200);
  clock_t before = clock();
  OK(cuCtxSynchronize());
  CHECK((double)(clock() - before) / CLOCKS_PER_SEC < 0.03);
}

CASE(copies_take_their_bandwidth_and_run_beside_kernels) {
  begin();
  enum { BYTES = 400000000 }; /* 40 ms on a link of 10 GB/s */
  void *host;
  CUdeviceptr device;
  CUstream copies, kernels;
  OK(cuMemHostAlloc(&host, BYTES, 0));
  OK(cuMemAlloc(&device, BYTES));
  OK(cuStreamCreate(&copies, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&kernels, CU_STREAM_NON_BLOCKING));
  OK(cuMemcpyHtoDAsync(device, host, BYTES, copies)); /* touches its pages once */
  OK(cuCtxSynchronize());
  CUevent first, last;
  float ms;
  OK(cuEventCreate(&first, 0));
  OK(cuEventCreate(&last, 0));
  spin(kernels, 200000000, 200);
  OK(cuEventRecord(first, copies));
  OK(cuMemcpyHtoDAsync(device, host, BYTES, copies));
  OK(cuEventRecord(last, copies));
  OK(cuStreamSynchronize(copies));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(kernels));
  OK(cuEventElapsedTime(&ms, first, last));
  CHECK(ms > 39.99f && ms < 40.2f);
}

static CUcontext shared_context;

static void *use_everything(void *unused) {
  (void)unused;
  CUstream stream;
  CUevent event;
  CUdeviceptr pointer;
  OK(cuCtxSetCurrent(shared_context));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, 0));
  for (size_t i = 0; i < 200; i++) {
    OK(cuMemAlloc(&pointer, 100 + 1000 * i));
    spin(stream, 2000, 1);
    OK(cuEventRecord(event, stream));
    spin(CU_STREAM_PER_THREAD, 2000, 1);
    OK(cuStreamWaitEvent(CU_STREAM_PER_THREAD, event, 0));
    if (i % 10 == 0) OK(cuStreamSynchronize(stream));
    OK(cuMemFree(pointer));
  }
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(stream));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(stream));
  return NULL;
}

CASE(many_threads_may_use_one_context_at_once) {
  pthread_t threads[8];
  shared_context = begin();
  spin_kernel();
  size_t before = free_bytes();
  for (int i = 0; i < 8; i++) CHECK(!pthread_create(&threads[i], NULL, use_everything, NULL));
  for (int i = 0; i < 8; i++) CHECK(!pthread_join(threads[i], NULL));
  CHECK(free_bytes() == before);
}
