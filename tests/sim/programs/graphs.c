/* Capture and graphs. */
#include <pthread.h>

#include "check.h"

#define ABOUT(ms, expected) ((ms) > (expected) - 0.1 && (ms) < (expected) + 15)

static CUstream stream, other;
static CUevent fork_event, join_event;

static void prepare(void) {
  begin();
  spin_kernel();
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
}

CASE(captured_work_runs_when_the_graph_is_launched_and_as_often) {
  prepare();
  CUgraph graph;
  CUgraphExec exec;
  size_t count;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  spin(stream, 10000000, 200);
  OK(cuEventRecord(fork_event, stream));
  OK(cuStreamWaitEvent(other, fork_event, 0));
  spin(stream, 10000000, 10);
  spin(other, 10000000, 10);
  OK(cuEventRecord(join_event, other));
  OK(cuStreamWaitEvent(stream, join_event, 0));
  spin(stream, 10000000, 200);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuStreamQuery(stream)); /* nothing ran */
  OK(cuGraphGetNodes(graph, NULL, &count));
  CHECK(count == 4);
  OK(cuGraphGetEdges_v2(graph, NULL, NULL, NULL, &count));
  CHECK(count == 4);
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphDestroy(graph));
  uint64_t begun = now_ns();
  OK(cuGraphLaunch(exec, stream));
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(ABOUT(ms_since(begun), 60)); /* the branches overlap */
  OK(cuGraphExecDestroy(exec));
}

CASE(a_graph_of_a_thousand_kernels_takes_their_time_and_one_place_in_the_queue) {
  prepare();
  CUgraph graph;
  CUgraphExec exec;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  for (int i = 0; i < 1000; i++) spin(stream, 50000, 200);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiate(&exec, graph, 0));
  uint64_t begun = now_ns();
  for (int i = 0; i < 4; i++) OK(cuGraphLaunch(exec, stream));
  CHECK(ms_since(begun) < 40);
  OK(cuStreamSynchronize(stream));
  CHECK(ABOUT(ms_since(begun), 200));
}

CASE(an_unsafe_call_spoils_a_capture_in_global_mode) {
  prepare();
  CUgraph graph;
  CUdeviceptr pointer;
  CUstreamCaptureStatus status;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&pointer, 100));
  OK(cuStreamIsCapturing(stream, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  uint64_t ns = 1000;
  void *parameters[] = {&ns};
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        cuLaunchKernel(spin_kernel(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
  OK(cuMemAlloc(&pointer, 100));
}

static void *query_elsewhere(void *mode) {
  CUcontext context;
  CUevent event;
  CUstreamCaptureMode own = *(CUstreamCaptureMode *)mode;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuEventCreate(&event, 0));
  OK(cuThreadExchangeStreamCaptureMode(&own));
  CHECK(own == CU_STREAM_CAPTURE_MODE_GLOBAL);
  return (void *)(intptr_t)cuEventQuery(event);
}

static CUresult query_in_a_thread(CUstreamCaptureMode mode) {
  pthread_t thread;
  void *answer;
  CHECK(!pthread_create(&thread, NULL, query_elsewhere, &mode));
  CHECK(!pthread_join(thread, &answer));
  return (CUresult)(intptr_t)answer;
}

CASE(another_threads_query_kills_a_global_capture_unless_it_is_relaxed) {
  prepare();
  CUgraph graph;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(query_in_a_thread(CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(query_in_a_thread(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, query_in_a_thread(CU_STREAM_CAPTURE_MODE_GLOBAL));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(query_in_a_thread(CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuStreamEndCapture(stream, &graph));
}

CASE(captures_that_cannot_be_are_refused_with_the_drivers_errors) {
  prepare();
  CUgraph graph;
  CUstream blocking;
  CUstreamCaptureStatus status;
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
  GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  spin(stream, 1000, 1);
  OK(cuEventRecord(fork_event, stream));
  OK(cuStreamWaitEvent(other, fork_event, 0));
  spin(other, 1000, 1);
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
  OK(cuStreamIsCapturing(other, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuEventRecord(join_event, other)); /* outside any capture */
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(stream, join_event, 0));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  uint64_t ns = 1000;
  void *parameters[] = {&ns};
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        cuLaunchKernel(spin_kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
}

/* Captures into `captured`, then lets `spoil` do what no capture of that kind survives. */
static void spoils(CUstream captured, CUresult expected, CUresult (*spoil)(void)) {
  CUgraph graph;
  OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  GIVES(expected, spoil());
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(captured, &graph));
}

static CUevent passed;
static CUdeviceptr block;
static char bytes[8];
static CUresult launch_legacy(void) {
  uint64_t ns = 1000;
  void *parameters[] = {&ns};
  return cuLaunchKernel(spin_kernel(), 1, 1, 1, 1, 1, 1, 0, CU_STREAM_LEGACY, parameters, NULL);
}
static CUresult record_legacy(void) { return cuEventRecord(passed, NULL); }
static CUresult wait_passed_legacy(void) { return cuStreamWaitEvent(NULL, passed, 0); }
static CUresult query_legacy(void) { return cuStreamQuery(NULL); }
static CUresult synchronize_legacy(void) { return cuStreamSynchronize(NULL); }
static CUresult copy_synchronously(void) { return cuMemcpyHtoD(block, bytes, sizeof bytes); }
static CUresult set_synchronously(void) { return cuMemsetD8(block, 0, sizeof bytes); }
static CUresult take_legacy(void) {
  CUdeviceptr pointer;
  return cuMemAllocAsync(&pointer, 100, NULL);
}
static CUresult call_legacy(void) { return cuLaunchHostFunc(NULL, (CUhostFn)free, NULL); }
static CUresult write_legacy(void) { return cuStreamWriteValue32(NULL, block, 1, 0); }
static CUresult synchronize_context(void) { return cuCtxSynchronize(); }
static CUresult record_context(void) {
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  return cuCtxRecordEvent(context, passed);
}

static CUresult (*const legacy_uses[])(void) = {
    launch_legacy,      record_legacy,     wait_passed_legacy, query_legacy, synchronize_legacy,
    copy_synchronously, set_synchronously, take_legacy,        call_legacy,  write_legacy};

static void prepare_legacy(CUstream *blocking) {
  prepare();
  OK(cuStreamCreate(blocking, CU_STREAM_DEFAULT));
  OK(cuEventCreate(&passed, 0));
  OK(cuMemAlloc(&block, 100));
  OK(cuEventRecord(passed, NULL));
  OK(cuCtxSynchronize());
}

CASE(any_use_of_the_legacy_stream_spoils_the_capture_of_a_blocking_stream) {
  CUstream blocking;
  prepare_legacy(&blocking);
  for (size_t i = 0; i < sizeof legacy_uses / sizeof *legacy_uses; i++) {
    spoils(blocking, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, legacy_uses[i]);
    spoils(CU_STREAM_PER_THREAD, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, legacy_uses[i]);
  }
}

CASE(no_use_of_the_legacy_stream_spoils_the_relaxed_capture_of_another_stream) {
  CUstream blocking;
  CUgraph graph;
  prepare_legacy(&blocking);
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (size_t i = 0; i < sizeof legacy_uses / sizeof *legacy_uses; i++) {
    CUresult result = legacy_uses[i]();
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
  }
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuCtxSynchronize()); /* what is queued when a program ends looks like a leak */
}

CASE(the_legacy_stream_tells_whether_a_capture_would_draw_it_in) {
  CUstream blocking;
  CUgraph graph;
  CUstreamCaptureStatus status;
  prepare_legacy(&blocking);
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuStreamIsCapturing(CU_STREAM_LEGACY, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        cuStreamGetCaptureInfo(NULL, &status, NULL, NULL, NULL, NULL, NULL));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, launch_legacy());
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, launch_legacy()); /* until the capture has ended */
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
  OK(cuStreamIsCapturing(NULL, &status));
  OK(launch_legacy());
  OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
  OK(cuStreamEndCapture(blocking, &graph)); /* the question spoilt nothing */
  OK(cuStreamEndCapture(stream, &graph));
}

CASE(a_blocking_stream_that_joined_a_capture_draws_the_legacy_stream_in) {
  CUstream blocking;
  CUgraph graph;
  CUstreamCaptureStatus status;
  prepare_legacy(&blocking);
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(fork_event, stream));
  OK(launch_legacy());
  OK(cuStreamWaitEvent(blocking, fork_event, 0));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
  OK(cuEventRecord(join_event, blocking));
  OK(cuStreamWaitEvent(stream, join_event, 0));
  OK(cuStreamEndCapture(stream, &graph));
  OK(launch_legacy());
}

/* Run on two devices. */
CASE(a_capture_that_reached_another_device_ends_there_too) {
  prepare();
  CUgraph graph;
  CUcontext first, second;
  CUstream there;
  CUevent back;
  CUstreamCaptureStatus status;
  int devices;
  OK(cuDeviceGetCount(&devices));
  if (devices < 2) return;
  OK(cuCtxGetCurrent(&first));
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  OK(cuCtxSetCurrent(second));
  OK(cuStreamCreate(&there, CU_STREAM_DEFAULT));
  OK(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
  OK(cuCtxSetCurrent(first));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(fork_event, stream));
  OK(cuStreamWaitEvent(there, fork_event, 0));
  OK(cuStreamIsCapturing(NULL, &status)); /* that stream is of the other device's context */
  OK(cuCtxSetCurrent(second));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
  OK(cuEventRecord(back, there));
  OK(cuCtxSetCurrent(first));
  OK(cuStreamWaitEvent(stream, back, 0));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuCtxSetCurrent(second));
  OK(cuStreamIsCapturing(there, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuStreamIsCapturing(NULL, &status));
  OK(cuStreamSynchronize(there));
}

CASE(no_mode_lets_a_context_be_waited_for_while_it_captures) {
  prepare();
  OK(cuEventCreate(&passed, 0));
  spoils(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, synchronize_context);
  spoils(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, record_context);
  OK(cuCtxSynchronize());
}

CASE(an_event_last_recorded_in_a_capture_cannot_be_asked_after) {
  prepare();
  CUgraph graph;
  CUevent before;
  float ms;
  OK(cuEventCreate(&before, 0));
  OK(cuEventCreate(&passed, 0));
  OK(cuEventRecord(before, other));
  OK(cuStreamSynchronize(other));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventQuery(before));
  OK(cuEventRecord(passed, stream));
  GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventElapsedTime(&ms, before, passed));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamQuery(stream));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
  GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(passed)); /* it has not been recorded since */
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(passed));
  OK(cuStreamEndCapture(stream, &graph)); /* it was of another capture */
  OK(cuEventRecord(passed, stream));
  OK(cuEventSynchronize(passed));
  OK(cuEventElapsedTime(&ms, before, passed));
}

CASE(updating_an_executable_changes_what_it_runs_and_refuses_another_shape) {
  prepare();
  CUgraph graph, longer;
  CUgraphExec exec;
  CUgraphExecUpdateResultInfo info;
  for (int i = 0; i < 2; i++) {
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    spin(stream, i ? 30000000 : 1000000, 200);
    OK(cuStreamEndCapture(stream, i ? &longer : &graph));
  }
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphExecUpdate(exec, longer, &info));
  uint64_t begun = now_ns();
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(ABOUT(ms_since(begun), 30));
  CUgraphNode added;
  OK(cuGraphAddEmptyNode(&added, longer, NULL, 0));
  GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, longer, &info));
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

CASE(a_cycle_cannot_be_instantiated) {
  prepare();
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode a, b;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddEmptyNode(&a, graph, NULL, 0));
  OK(cuGraphAddEmptyNode(&b, graph, &a, 1));
  OK(cuGraphAddDependencies_v2(graph, &b, &a, NULL, 1));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph, 0));
}

/* ---- callbacks of the driver ---- */

static int told;
static void tell(void *data, CUlogLevel level, char *message, size_t length) {
  CUdeviceptr pointer;
  (void)data;
  CHECK(level == CU_LOG_LEVEL_ERROR && strlen(message) == length);
  OK(cuMemAlloc(&pointer, 100));                           /* calls are allowed */
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(pointer + 1)); /* and told of to nobody */
  OK(cuMemFree(pointer));
  told++;
}

CASE(errors_are_told_before_the_call_returns) {
  prepare();
  CUlogsCallbackHandle handle;
  OK(cuLogsRegisterCallback(tell, NULL, &handle));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(12345));
  CHECK(told == 1);
  OK(cuStreamSynchronize(stream));
  spin(stream, 10000000, 1);
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  CHECK(told == 1);
  OK(cuLogsUnregisterCallback(handle));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(12345));
  CHECK(told == 1);
}

static int asked;
static CUresult ask(void *data, CUgraphNode node, const CUgraphNodeParams *before,
                    const CUgraphNodeParams *now, CUgraphRecaptureStatus status) {
  CHECK(node && status == CU_GRAPH_RECAPTURE_ELIGIBLE_FOR_UPDATE);
  CHECK(before->type == CU_GRAPH_NODE_TYPE_KERNEL && now->type == CU_GRAPH_NODE_TYPE_KERNEL);
  asked++;
  return data ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CASE(a_recapture_asks_about_nodes_that_differ) {
  prepare();
  CUgraph graph, again;
  CUgraphExec exec;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  spin(stream, 1000, 1);
  spin(stream, 1000, 1);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuStreamBeginRecaptureToGraph(stream, CU_STREAM_CAPTURE_MODE_RELAXED, graph, ask, NULL));
  spin(stream, 1000, 1);
  CHECK(asked == 0);
  spin(stream, 20000000, 1);
  CHECK(asked == 1);
  OK(cuStreamEndCapture(stream, &again));
  CHECK(again == graph);
  OK(cuGraphInstantiate(&exec, graph, 0));
  uint64_t begun = now_ns();
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(ms_since(begun) > 19);
  uint64_t ns = 1;
  void *parameters[] = {&ns};
  OK(cuStreamBeginRecaptureToGraph(stream, CU_STREAM_CAPTURE_MODE_RELAXED, graph, ask, &ns));
  GIVES(CUDA_ERROR_GRAPH_RECAPTURE_FAILURE,
        cuLaunchKernel(spin_kernel(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
  GIVES(CUDA_ERROR_GRAPH_RECAPTURE_FAILURE, cuStreamEndCapture(stream, &again));
}
