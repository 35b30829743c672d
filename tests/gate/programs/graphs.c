/* Graphs of every kind. Results must be the same with the shim and without, and the device's record
 * says what ran. */
#include <signal.h>

#include "gate.h"

#define SHOW(call) printf("%s: %d\n", #call, (int)(call))

static CUstream stream;

static void prepare(void) {
  begin();
  stream = new_stream(CU_STREAM_NON_BLOCKING);
}

static CUDA_KERNEL_NODE_PARAMS kernel(const char *name, void **parameters) {
  return (CUDA_KERNEL_NODE_PARAMS){.func = kernel_named(name),
                                   .gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 32,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .kernelParams = parameters};
}

static CUgraphNode add(CUgraph graph, CUgraphNode after, const char *name, uint64_t a, uint64_t b) {
  void *parameters[] = {&a, &b};
  CUDA_KERNEL_NODE_PARAMS params = kernel(name, parameters);
  CUgraphNode node;
  OK(cuGraphAddKernelNode(&node, graph, after ? &after : NULL, after != NULL, &params));
  return node;
}

static CUresult set(CUgraphExec exec, CUgraphNode node, uint64_t ns) {
  void *parameters[] = {&ns};
  CUDA_KERNEL_NODE_PARAMS params = kernel("spin", parameters);
  return cuGraphExecKernelNodeSetParams(exec, node, &params);
}

static CUgraph new_graph(void) {
  CUgraph graph;
  OK(cuGraphCreate(&graph, 0));
  return graph;
}

static CUgraphExec make(CUgraph graph, unsigned long long flags) {
  CUgraphExec exec;
  OK(cuGraphInstantiateWithFlags(&exec, graph, flags));
  return exec;
}

static void run(CUgraphExec exec) {
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
}

/* ---- conditional nodes ---- */

static CUgraphNode conditional(CUgraph graph, CUgraphNode after, CUgraphConditionalHandle handle,
                               CUgraphConditionalNodeType type, unsigned size, CUgraph *bodies) {
  CUgraphNode node;
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
  params.conditional.handle = handle;
  params.conditional.type = type;
  params.conditional.size = size;
  CUresult result =
      cuGraphAddNode(&node, graph, after ? &after : NULL, NULL, after != NULL, &params);
  printf("conditional %d of %u: %d\n", (int)type, size, (int)result);
  if (result != CUDA_SUCCESS) return NULL;
  for (unsigned i = 0; i < size; i++) bodies[i] = params.conditional.phGraph_out[i];
  return node;
}

static CUgraphConditionalHandle condition(CUgraph graph, unsigned value) {
  CUgraphConditionalHandle handle;
  OK(cuGraphConditionalHandleCreate(&handle, graph, NULL, value, CU_GRAPH_COND_ASSIGN_DEFAULT));
  return handle;
}

CASE(a_while_node_runs_its_body_as_often_as_its_condition_says) {
  prepare();
  CUgraph graph = new_graph(), body;
  conditional(graph, NULL, condition(graph, 20), CU_GRAPH_COND_TYPE_WHILE, 1, &body);
  add(body, NULL, "spin", 5 * MS, 0);
  CUgraphExec exec = make(graph, 0);
  for (int i = 0; i < 2; i++) run(exec); /* 200 ms */
}

CASE(a_switch_and_an_if_run_what_a_kernel_chose) {
  prepare();
  CUgraph graph = new_graph(), bodies[4], branches[2];
  CUgraphConditionalHandle which = condition(graph, 0), whether = condition(graph, 1);
  CUgraphNode decide = add(graph, NULL, "decide", which, 2);
  CUgraphNode chosen = conditional(graph, decide, which, CU_GRAPH_COND_TYPE_SWITCH, 4, bodies);
  for (unsigned i = 0; i < 4; i++) add(bodies[i], NULL, "spin", (i + 1) * 20 * MS, 0);
  decide = add(graph, chosen, "decide", whether, 0);
  conditional(graph, decide, whether, CU_GRAPH_COND_TYPE_IF, 2, branches);
  add(branches[0], NULL, "spin", 500 * MS, 0);
  add(branches[1], NULL, "spin", 40 * MS, 0);
  run(make(graph, 0)); /* 60 + 40 ms */
}

CASE(conditional_nodes_that_cannot_be) {
  prepare();
  CUgraph graph = new_graph(), other = new_graph(), body;
  CUgraphExec exec;
  CUgraphConditionalHandle handle = condition(graph, 1);
  SHOW(cuGraphConditionalHandleCreate(&handle, graph, NULL, 1, 8));
  SHOW(cuGraphInstantiateWithFlags(&exec, graph, 0));
  conditional(graph, NULL, 12345, CU_GRAPH_COND_TYPE_IF, 1, &body);
  conditional(other, NULL, handle, CU_GRAPH_COND_TYPE_IF, 1, &body);
  conditional(graph, NULL, handle, CU_GRAPH_COND_TYPE_WHILE, 2, &body);
  conditional(graph, NULL, handle, CU_GRAPH_COND_TYPE_IF, 1, &body);
  conditional(graph, NULL, handle, CU_GRAPH_COND_TYPE_IF, 1, &body);
  SHOW(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CUgraphNode node;
  CUDA_HOST_NODE_PARAMS host = {.fn = (CUhostFn)prepare};
  SHOW(cuGraphAddHostNode(&node, body, NULL, 0, &host));
  SHOW(cuGraphInstantiateWithFlags(&exec, graph, 0));
  SHOW(cuGraphDestroy(body));
  SHOW(cuGraphDestroy(graph));
}

/* ---- launches from the device ---- */

CASE(a_kernel_launches_a_graph_from_the_device) {
  prepare();
  CUgraph inner = new_graph(), outer = new_graph();
  add(inner, NULL, "spin", 10 * MS, 0);
  CUgraphExec on_device = make(inner, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
  add(outer, NULL, "relay", (uint64_t)(uintptr_t)on_device, 10);
  CUgraphExec exec = make(outer, 0);
  run(exec); /* not uploaded yet: nothing */
  SHOW(cuGraphUpload(on_device, stream));
  run(exec); /* 100 ms */
}

CASE(graphs_that_the_device_cannot_launch) {
  prepare();
  CUgraph graph = new_graph();
  CUgraphNode node;
  CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH};
  CUgraphExec exec;
  SHOW(cuGraphInstantiateWithParams(&exec, graph, &params));
  printf("empty: %d\n", (int)params.result_out);
  OK(cuGraphAddEmptyNode(&node, graph, NULL, 0));
  add(graph, node, "plain", 0, 0);
  SHOW(cuGraphInstantiateWithParams(&exec, graph, &params));
  printf("with an empty node: %d\n", (int)params.result_out);
  SHOW(cuGraphInstantiateWithFlags(&exec, new_graph(), 5));
}

/* ---- executables that change ---- */

CASE(changes_of_an_executable) {
  prepare();
  CUgraph graph = new_graph(), child = new_graph(), longer = new_graph();
  CUgraphNode first = add(graph, NULL, "spin", 2 * MS, 0), second, nested;
  second = add(graph, first, "spin", 2 * MS, 0);
  nested = add(child, NULL, "spin", 2 * MS, 0);
  CUgraphNode holder;
  OK(cuGraphAddChildGraphNode(&holder, graph, &second, 1, child));
  CUgraphExec exec = make(graph, 0), twin = make(graph, 0);
  for (int i = 0; i < 3; i++) run(exec); /* 18 ms */
  run(twin);                             /* 6 */
  SHOW(set(exec, first, 20 * MS));
  run(exec); /* 24 */
  run(twin); /* 6 */
  SHOW(cuGraphNodeSetEnabled(exec, first, 0));
  run(exec); /* 4 */
  SHOW(cuGraphNodeSetEnabled(exec, nested, 0));
  SHOW(cuGraphNodeSetEnabled(exec, first, 1));
  add(longer, NULL, "spin", 40 * MS, 0);
  SHOW(cuGraphExecChildGraphNodeSetParams(exec, holder, longer));
  run(exec); /* 62 */
  CUgraphExecUpdateResultInfo how;
  SHOW(cuGraphExecUpdate(exec, graph, &how));
  printf("updated: %d\n", (int)how.result);
  run(exec); /* 6: 126 ms in all */
  SHOW(cuGraphExecUpdate(exec, longer, &how));
  printf("not updated: %d\n", (int)how.result);
  SHOW(set(exec, nested, MS));
  SHOW(cuGraphExecDestroy(exec));
  SHOW(cuGraphExecDestroy(exec));
}

CASE(uploads_do_not_wait) {
  prepare();
  go_into_overdraft();
  CUgraph graph = new_graph();
  add(graph, NULL, "spin", 5 * MS, 0);
  CUgraphExec exec = make(graph, 0);
  uint64_t begun = now_ns();
  for (int i = 0; i < 200; i++) OK(cuGraphUpload(exec, stream));
  CHECK(ms_since(begun) < 100); /* the overdraft lasts for 200 */
}

/* A hundred times longer than it was: what is let through before that is known is bounded. */
CASE(a_graph_that_became_longer_cannot_flood_the_device) {
  prepare();
  CUgraph graph = new_graph();
  CUgraphNode node = add(graph, NULL, "spin", MS / 5, 0);
  CUgraphExec exec = make(graph, 0);
  for (int i = 0; i < 100; i++) {
    OK(cuGraphLaunch(exec, stream));
    if (i % 10 == 9) OK(cuStreamSynchronize(stream));
  }
  OK(cuStreamSynchronize(stream));
  usleep(150000); /* the credit is full again: by the old cost all of the launches fit into it */
  OK(set(exec, node, 20 * MS));
  uint64_t begun = now_ns();
  for (int i = 0; i < 20; i++) OK(cuGraphLaunch(exec, stream));
  printf("%.0f\n", ms_since(begun));
  OK(cuStreamSynchronize(stream));
}

CASE(a_graph_that_changes_with_every_launch_without_end) {
  prepare();
  CUgraph graph = new_graph();
  CUgraphNode node = add(graph, NULL, "spin", MS, 0);
  CUgraphExec exec = make(graph, 0);
  for (uint64_t i = 0;; i++) {
    OK(set(exec, node, (1 + i % 2) * MS));
    OK(cuGraphLaunch(exec, stream));
    if (i % 64 == 63) OK(cuStreamSynchronize(stream));
  }
}

/* ---- programmatic dependent launch ---- */

CASE(a_chain_of_kernels_that_overlap) {
  prepare();
  uint64_t ns = 20000;
  void *parameters[] = {&ns};
  CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                             .value = {.programmaticStreamSerializationAllowed = 1}};
  CUlaunchConfig config = {.gridDimX = 1,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = 32,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .hStream = stream,
                           .attrs = &early,
                           .numAttrs = 1};
  CUfunction spin = kernel_named("spin");
  for (int i = 0; i < 3000; i++) OK(cuLaunchKernelEx(&config, spin, parameters, NULL));
  OK(cuStreamSynchronize(stream));
}

/* ---- peers ---- */

CASE(work_that_nobody_settles) {
  prepare();
  for (int i = 0; i < 3; i++) busy(stream, 5 * MS);
  while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) continue;
  /* The process must not be stopped while it holds the lock of the simulated device. */
  usleep(50000);
  puts("done");
  fflush(stdout);
  raise(SIGSTOP);
}

CASE(some_launches) {
  prepare();
  for (int i = 0; i < 10; i++) {
    busy(stream, 2 * MS);
    OK(cuStreamSynchronize(stream));
  }
}
