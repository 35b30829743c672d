/* Stream captures of every kind. What they print must be the same with the shim and without. */
#include "gate.h"

static CUcontext context;
static CUstream stream, other;
static CUevent fork_event, join_event;
static pthread_barrier_t turn;

#define SHOW(call) printf("%s: %d\n", #call, (int)(call))

static void prepare(void) {
  context = begin();
  stream = new_stream(CU_STREAM_NON_BLOCKING);
  other = new_stream(CU_STREAM_NON_BLOCKING);
  OK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
  for (int i = 0; i < 5; i++) busy(stream, MS); /* windows are open when captures begin */
}

static CUresult try_launch(CUstream to) {
  uint64_t ns = MS / 2;
  void *parameters[] = {&ns};
  return cuLaunchKernel(kernel_named("spin"), 1, 1, 1, 32, 1, 1, 0, to, parameters, NULL);
}

static void show_graph(CUgraph graph) {
  CUgraphNode nodes[64], from[64], to[64];
  CUgraphEdgeData data[64];
  size_t count = 64, edges = 64;
  OK(cuGraphGetNodes(graph, nodes, &count));
  OK(cuGraphGetEdges_v2(graph, from, to, data, &edges));
  printf("%zu nodes, %zu edges:", count, edges);
  for (size_t i = 0; i < count; i++) {
    CUgraphNodeType type;
    OK(cuGraphNodeGetType(nodes[i], &type));
    printf(" %d", (int)type);
  }
  for (size_t i = 0; i < edges; i++) {
    size_t a = 0, b = 0;
    while (nodes[a] != from[i]) a++;
    while (nodes[b] != to[i]) b++;
    printf(" %zu>%zu", a, b);
  }
  puts("");
}

static void show_status(CUstream of) {
  CUstreamCaptureStatus status = 77;
  CUresult result = cuStreamIsCapturing(of, &status);
  printf("capturing: %d %d\n", (int)result, result ? 0 : (int)status);
}

static void run_graph(CUgraph graph) {
  CUgraphExec exec;
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphLaunch(exec, stream));
  OK(cuGraphLaunch(exec, other));
  OK(cuStreamSynchronize(other));
  OK(cuGraphExecDestroy(exec));
}

/* Another thread goes through the gate on streams of its own, known and new, while one captures. */
static void *launch_elsewhere(void *argument) {
  CUstreamCaptureMode mode = *(CUstreamCaptureMode *)argument, seen = CU_STREAM_CAPTURE_MODE_GLOBAL;
  OK(cuCtxSetCurrent(context));
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  kernel_named("spin");
  CUstream known = new_stream(CU_STREAM_NON_BLOCKING), fresh = new_stream(CU_STREAM_NON_BLOCKING);
  for (int i = 0; i < 4; i++) OK(try_launch(known));
  pthread_barrier_wait(&turn);
  pthread_barrier_wait(&turn);
  for (int i = 0; i < 20; i++) OK(try_launch(known));
  for (int i = 0; i < 20; i++) OK(try_launch(fresh));
  OK(cuThreadExchangeStreamCaptureMode(&seen)); /* still what this thread had set */
  CHECK(seen == *(CUstreamCaptureMode *)argument);
  pthread_barrier_wait(&turn);
  return NULL;
}

static void beside_another_thread(CUstreamCaptureMode mode, CUstreamCaptureMode others) {
  prepare();
  CUgraph graph;
  pthread_t thread;
  CHECK(!pthread_barrier_init(&turn, NULL, 2));
  CHECK(!pthread_create(&thread, NULL, launch_elsewhere, &others));
  pthread_barrier_wait(&turn);
  OK(cuStreamBeginCapture(stream, mode));
  for (int i = 0; i < 5; i++) SHOW(try_launch(stream));
  pthread_barrier_wait(&turn);
  for (int i = 0; i < 5; i++) SHOW(try_launch(stream));
  pthread_barrier_wait(&turn);
  show_status(stream);
  OK(cuStreamEndCapture(stream, &graph));
  CHECK(!pthread_join(thread, NULL));
  show_graph(graph);
  run_graph(graph);
}

#define GLOBAL CU_STREAM_CAPTURE_MODE_GLOBAL
#define LOCAL CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED
CASE(a_global_capture_beside_another_threads_launches) { beside_another_thread(GLOBAL, GLOBAL); }
CASE(a_local_capture_beside_another_threads_launches) { beside_another_thread(LOCAL, GLOBAL); }
CASE(a_relaxed_capture_beside_another_threads_launches) { beside_another_thread(RELAXED, RELAXED); }
CASE(a_global_capture_beside_a_relaxed_thread) { beside_another_thread(GLOBAL, RELAXED); }

CASE(a_capture_into_a_graph_that_has_nodes) {
  prepare();
  CUgraph graph, same;
  CUgraphNode first;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddEmptyNode(&first, graph, NULL, 0));
  SHOW(cuStreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, GLOBAL));
  for (int i = 0; i < 3; i++) SHOW(try_launch(stream));
  SHOW(cuStreamEndCapture(stream, &same));
  CHECK(same == graph);
  show_graph(graph);
  SHOW(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, RELAXED));
  SHOW(try_launch(stream));
  SHOW(cuStreamEndCapture(stream, &same));
  show_graph(graph);
  run_graph(graph);
}

CASE(streams_fork_from_a_capture_and_join_it) {
  prepare();
  CUgraph graph;
  for (int i = 0; i < 3; i++) OK(try_launch(other));
  OK(cuStreamBeginCapture(stream, GLOBAL));
  SHOW(try_launch(stream));
  SHOW(cuEventRecord(fork_event, stream));
  SHOW(cuStreamWaitEvent(other, fork_event, 0));
  show_status(other);
  for (int i = 0; i < 3; i++) SHOW(try_launch(other));
  SHOW(try_launch(stream));
  SHOW(cuEventRecord(join_event, other));
  SHOW(cuStreamWaitEvent(stream, join_event, 0));
  SHOW(try_launch(stream));
  SHOW(cuEventQuery(join_event));
  show_status(stream);
  SHOW(cuStreamEndCapture(stream, &graph));
  show_status(other);
  OK(cuStreamBeginCapture(stream, RELAXED));
  SHOW(try_launch(stream));
  SHOW(cuEventRecord(fork_event, stream));
  SHOW(cuStreamWaitEvent(other, fork_event, 0));
  for (int i = 0; i < 3; i++) SHOW(try_launch(other));
  SHOW(cuEventRecord(join_event, other));
  SHOW(cuStreamWaitEvent(stream, join_event, 0));
  SHOW(cuStreamEndCapture(stream, &graph));
  show_graph(graph);
  run_graph(graph);
  SHOW(try_launch(other));
}

CASE(a_fork_that_does_not_join) {
  prepare();
  CUgraph graph = NULL;
  OK(cuStreamBeginCapture(stream, LOCAL));
  SHOW(try_launch(stream));
  SHOW(cuEventRecord(fork_event, stream));
  SHOW(cuStreamWaitEvent(other, fork_event, 0));
  SHOW(try_launch(other));
  SHOW(cuStreamEndCapture(other, &graph));
  SHOW(cuStreamEndCapture(stream, &graph));
  show_status(stream);
  show_status(other);
  SHOW(try_launch(other));
  SHOW(cuStreamSynchronize(other));
}

CASE(dependencies_are_changed_by_hand) {
  prepare();
  CUgraph graph, made;
  const CUgraphNode *from;
  CUgraphNode mine;
  CUstreamCaptureStatus status;
  cuuint64_t id;
  size_t count;
  OK(cuStreamBeginCapture(stream, GLOBAL));
  SHOW(try_launch(stream));
  OK(cuStreamGetCaptureInfo(stream, &status, &id, &graph, &from, NULL, &count));
  OK(cuGraphAddEmptyNode(&mine, graph, from, count));
  SHOW(cuStreamUpdateCaptureDependencies(stream, &mine, NULL, 1,
                                         CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  SHOW(try_launch(stream));
  SHOW(cuStreamUpdateCaptureDependencies(stream, &mine, NULL, 1,
                                         CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  SHOW(try_launch(stream));
  SHOW(cuStreamEndCapture(stream, &made));
  show_graph(made);
}

CASE(a_capture_that_is_spoilt) {
  prepare();
  CUgraph graph;
  CUdeviceptr memory;
  OK(cuStreamBeginCapture(stream, GLOBAL));
  SHOW(try_launch(stream));
  SHOW(cuMemAlloc(&memory, 4096));
  show_status(stream);
  SHOW(try_launch(stream));
  SHOW(try_launch(other));
  SHOW(cuStreamEndCapture(stream, &graph));
  SHOW(try_launch(stream));
  OK(cuStreamBeginCapture(stream, LOCAL));
  SHOW(cuStreamSynchronize(stream));
  SHOW(cuCtxSynchronize());
  SHOW(cuStreamEndCapture(stream, &graph));
  SHOW(cuStreamSynchronize(stream));
}

CASE(the_legacy_stream_during_captures) {
  prepare();
  CUgraph graph;
  CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  for (int i = 0; i < 3; i++) OK(try_launch(NULL));
  OK(cuStreamBeginCapture(stream, RELAXED)); /* non-blocking: they do not meet */
  SHOW(try_launch(NULL));
  SHOW(try_launch(stream));
  SHOW(cuStreamEndCapture(stream, &graph));
  show_graph(graph);
  OK(cuStreamBeginCapture(blocking, RELAXED));
  SHOW(try_launch(blocking));
  show_status(NULL);
  show_status(blocking);
  SHOW(try_launch(NULL));
  show_status(blocking);
  SHOW(cuStreamEndCapture(blocking, &graph));
  SHOW(try_launch(NULL));
  SHOW(cuStreamSynchronize(NULL));
}

CASE(a_stream_goes_while_it_captures) {
  prepare();
  CUgraph graph;
  CUstream gone = new_stream(CU_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture(gone, GLOBAL));
  SHOW(try_launch(gone));
  SHOW(cuStreamDestroy(gone));
  for (int i = 0; i < 5; i++) SHOW(try_launch(stream));
  SHOW(cuStreamSynchronize(stream));
  OK(cuStreamBeginCapture(stream, GLOBAL));
  SHOW(try_launch(stream));
  SHOW(cuStreamEndCapture(stream, &graph));
  show_graph(graph);
}

static void CUDA_CB nothing(void *data) { (void)data; }

CASE(everything_that_can_be_captured) {
  prepare();
  CUgraph graph, child;
  CUgraphExec exec;
  CUdeviceptr memory, word, second; /* what the simulated device copies is moved at once: no value
                                       may be written there meanwhile */
  char bytes[64];
  OK(cuMemAlloc(&memory, 1 << 20));
  OK(cuMemAlloc(&word, 4));
  OK(cuStreamBeginCapture(stream, RELAXED));
  SHOW(try_launch(stream));
  OK(cuStreamEndCapture(stream, &child));
  OK(cuGraphInstantiate(&exec, child, 0));
  OK(cuStreamBeginCapture(stream, GLOBAL));
  SHOW(try_launch(stream));
  SHOW(cuMemsetD8Async(memory, 1, 1 << 20, stream));
  SHOW(cuMemcpyDtoDAsync(memory, memory + 4096, 4096, stream));
  SHOW(cuMemcpyDtoHAsync(bytes, memory, sizeof bytes, stream));
  SHOW(cuMemcpyHtoDAsync(memory, bytes, sizeof bytes, stream));
  SHOW(cuLaunchHostFunc(stream, nothing, NULL));
  SHOW(cuStreamWriteValue32(stream, word, 1, 0));
  SHOW(cuStreamWaitValue32(stream, word, 1, 0));
  SHOW(cuGraphLaunch(exec, stream));
  SHOW(cuMemAllocAsync(&second, 1 << 20, stream));
  SHOW(cuMemFreeAsync(second, stream));
  SHOW(cuStreamAddCallback(other, NULL, NULL, 0));
  show_status(stream);
  SHOW(cuStreamEndCapture(stream, &graph));
  show_graph(graph);
  run_graph(graph);
}

CASE(ends_that_are_wrong) {
  prepare();
  CUgraph graph;
  SHOW(cuStreamEndCapture(stream, &graph));
  SHOW(cuStreamBeginCapture(NULL, GLOBAL));
  OK(cuStreamBeginCapture(stream, GLOBAL));
  SHOW(cuStreamBeginCapture(stream, GLOBAL));
  SHOW(cuStreamEndCapture(other, &graph));
  show_status(stream);
  SHOW(cuStreamEndCapture(stream, &graph));
  for (int i = 0; i < 3; i++) SHOW(try_launch(stream));
  SHOW(cuStreamSynchronize(stream));
}

CASE(captured_launches_do_not_wait_at_the_gate) {
  prepare();
  go_into_overdraft();
  CUgraph graph;
  uint64_t begun = now_ns();
  OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, GLOBAL));
  for (int i = 0; i < 2000; i++) OK(try_launch(CU_STREAM_PER_THREAD));
  OK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
  size_t count;
  OK(cuGraphGetNodes(graph, NULL, &count));
  printf("%zu nodes\n", count);
  CHECK(ms_since(begun) < 1500); /* a second of work at 20 percent would be five */
}
