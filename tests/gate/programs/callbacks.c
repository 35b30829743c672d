/* Calls that a program makes in callbacks, which the driver runs inside another call, work as
 * usual. */
#include "gate.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define GIB (1ull << 30)

static CUstream stream;
static int times;
static void (*deed)(void);

static void reached(void *data) {
  (void)data;
  times++;
  deed();
}

static void told(void *data, CUlogLevel level, char *message, size_t length) {
  (void)level, (void)message, (void)length;
  reached(data);
}

static CUresult differs(void *data, CUgraphNode node, const CUgraphNodeParams *before,
                        const CUgraphNodeParams *now, CUgraphRecaptureStatus status) {
  (void)node, (void)before, (void)now, (void)status;
  reached(data);
  return CUDA_SUCCESS;
}

static CUgraph captured(uint64_t ns) {
  CUgraph graph;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  busy(stream, ns);
  OK(cuStreamEndCapture(stream, &graph));
  return graph;
}

static CUgraphExec with_object(void) {
  CUgraph graph = captured(MS);
  CUgraphExec exec;
  CUuserObject object;
  OK(cuUserObjectCreate(&object, NULL, reached, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphDestroy(graph));
  return exec;
}

/* Each callback of those that the driver runs in the thread that makes a call. */
static void from_all_callbacks(void (*what)(void)) {
  CUlogsCallbackHandle handle;
  deed = what;
  times = 0;
  OK(cuGraphExecDestroy(with_object()));
  CHECK(times == 1);

  CUgraph graph = captured(MS);
  CUuserObject object;
  OK(cuUserObjectCreate(&object, NULL, reached, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  OK(cuGraphDestroy(graph));
  CHECK(times == 2);

  OK(cuLogsRegisterCallback(told, NULL, &handle));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(12345)); /* hooked, and in error */
  CHECK(times == 3);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch((CUgraphExec)&graph, stream)); /* gated */
  CHECK(times == 4);
  OK(cuLogsUnregisterCallback(handle));

  graph = captured(MS);
  OK(cuStreamBeginRecaptureToGraph(stream, CU_STREAM_CAPTURE_MODE_RELAXED, graph, differs, NULL));
  busy(stream, 2 * MS);
  OK(cuStreamEndCapture(stream, &graph));
  CHECK(times == 5);
  OK(cuGraphDestroy(graph));
}

static void prepare(void) {
  begin();
  stream = new_stream(CU_STREAM_NON_BLOCKING);
  kernel_named("spin");
}

static size_t free_before;
static void allocate(void) {
  CUdeviceptr pointer;
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&pointer, 20 * GIB));
  OK(cuMemAlloc(&pointer, GIB / 4));
  CHECK(free_bytes() <= free_before - GIB / 4);
  OK(cuMemFree(pointer));
  CHECK(free_bytes() == free_before);
}

CASE(memory_that_callbacks_take_is_charged) {
  prepare();
  free_before = free_bytes();
  from_all_callbacks(allocate);
  CHECK(free_bytes() == free_before);
}

static void allocate_from_pool(void) {
  CUdeviceptr pointer;
  CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&pointer, 20 * GIB, other));
  OK(cuMemAllocAsync(&pointer, GIB / 4, other));
  CHECK(free_bytes() <= free_before - GIB / 4);
  OK(cuMemFreeAsync(pointer, other));
  OK(cuStreamSynchronize(other));
}

CASE(pool_memory_that_callbacks_take_is_charged) {
  prepare();
  free_before = free_bytes();
  from_all_callbacks(allocate_from_pool);
}

/* Under a quota of 20 percent, in overdraft: none may go ahead of what is due. */
static uint64_t begun;
static void launch(void) {
  CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
  for (int i = 0; i < 3; i++) busy(other, 10 * MS);
  OK(cuStreamSynchronize(other));
  OK(cuStreamDestroy(other));
}

CASE(launches_of_callbacks_wait_as_any) {
  prepare();
  go_into_overdraft();
  launch();
  begun = now_ns();
  from_all_callbacks(launch);
  CHECK(ms_since(begun) > 5 * 3 * 10 * 3); /* five callbacks of 30 ms, at 20 percent; some slack */
}

static void on_the_very_stream(void) {
  CUstreamCaptureStatus status;
  OK(cuStreamIsCapturing(stream, &status));
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) return;
  busy(stream, MS);
  OK(cuStreamSynchronize(stream));
  OK(cuCtxSynchronize());
}

CASE(callbacks_use_the_stream_that_is_worked_on) {
  prepare();
  go_into_overdraft();
  from_all_callbacks(on_the_very_stream);
}

static void destroy(void) {
  OK(cuStreamDestroy(stream));
  stream = new_stream(CU_STREAM_NON_BLOCKING);
}

CASE(callbacks_destroy_the_stream_that_is_worked_on) {
  prepare();
  CUlogsCallbackHandle handle;
  deed = destroy;
  OK(cuLogsRegisterCallback(told, NULL, &handle));
  for (int i = 0; i < 20; i++) {
    busy(stream, MS);
    int dummy;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch((CUgraphExec)&dummy, stream));
  }
  CHECK(times == 20);
  OK(cuCtxSynchronize());
}

static void reset(void) {
  CUcontext context;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuDevicePrimaryCtxRelease(0));
}

CASE(callbacks_retain_and_release_the_primary_context) {
  prepare();
  busy(stream, MS);
  from_all_callbacks(reset);
}

static void hopeless(void *data) {
  CUdeviceptr pointer;
  (void)data;
  GIVES(CUDA_ERROR_NOT_PERMITTED, cuMemAlloc(&pointer, 100));
  GIVES(CUDA_ERROR_NOT_PERMITTED, cuStreamSynchronize(stream));
  uint64_t ns = MS;
  void *parameters[] = {&ns};
  CUresult result = cuLaunchKernel(data, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
  CHECK(result == CUDA_ERROR_NOT_PERMITTED);
  times++;
}

/* A host function may make no calls; what was charged for them is given back. */
CASE(calls_of_host_functions_are_refused_and_leave_nothing) {
  prepare();
  CUfunction spin = kernel_named("spin");
  size_t before = free_bytes();
  for (int i = 0; i < 10; i++) {
    busy(stream, MS);
    OK(cuLaunchHostFunc(stream, hopeless, spin));
    busy(stream, MS);
    OK(cuStreamSynchronize(stream));
  }
  CHECK(times == 10);
  CHECK(free_bytes() == before);
  puts("idle");
  fflush(stdout);
  getchar();
}

static int launch_ns(CUstream to, uint64_t ns) {
  void *parameters[] = {&ns};
  return cuLaunchKernel(kernel_named("spin"), 1, 1, 1, 32, 1, 1, 0, to, parameters, NULL);
}

static void launch_and_wait(void) {
  OK(launch_ns(stream, MS / 10));
  OK(cuStreamSynchronize(stream));
}

static void do_away(void) {
  if (stream) OK(cuStreamDestroy(stream));
  stream = NULL;
}

/* Events cannot be made, which the driver says while the gate is at work on the stream. */
CASE(callbacks_come_in_between_the_gates_own_calls) {
  CUlogsCallbackHandle handle;
  begin();
  kernel_named("spin");
  OK(cuLogsRegisterCallback(told, NULL, &handle));
  puts("ready");
  fflush(stdout);
  getchar();
  deed = launch_and_wait;
  for (int i = 0; i < 5; i++) {
    stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(launch_ns(stream, MS / 10));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy(stream));
  }
  CHECK(times);
  times = 0;
  deed = do_away;
  for (int i = 0; i < 5; i++) {
    stream = new_stream(CU_STREAM_NON_BLOCKING);
    launch_ns(stream, MS / 10);
    do_away();
  }
  CHECK(times);
  OK(cuCtxSynchronize());
  puts("idle");
  fflush(stdout);
  getchar();
}

/* A recapture that fails ends, as any other capture does. */
CASE(a_recapture_that_fails_is_over) {
  prepare();
  CUgraph graph = captured(MS), out;
  deed = on_the_very_stream;
  OK(cuStreamBeginRecaptureToGraph(stream, CU_STREAM_CAPTURE_MODE_RELAXED, graph, differs, NULL));
  OK(cuMemsetD8Async(new_words(1), 0, 8, stream) == CUDA_ERROR_GRAPH_RECAPTURE_FAILURE
         ? CUDA_SUCCESS
         : CUDA_ERROR_UNKNOWN);
  GIVES(CUDA_ERROR_GRAPH_RECAPTURE_FAILURE, cuStreamEndCapture(stream, &out));
  for (;;) busy(CU_STREAM_LEGACY, 20 * MS);
}
