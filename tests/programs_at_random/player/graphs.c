/* Captures and graphs: made node by node or from a stream, instantiated, updated, launched. */
#include "player.h"

static CUgraph graph_of(const thing *t) { return (CUgraph)t->handle; }
static CUgraphExec exec_of(const thing *t) { return (CUgraphExec)t->handle; }

static CUresult begin(call *c) {
  return cuStreamBeginCapture((CUstream)c->t[0]->handle, (CUstreamCaptureMode)c->n[1]);
}

static CUresult end(call *c) {
  CUgraph graph = NULL;
  CUresult result = cuStreamEndCapture((CUstream)c->t[1]->handle, &graph);
  *c->t[0] = (thing){.context = c->t[1]->context, .handle = (uint64_t)graph};
  return result;
}

static CUresult make(call *c) {
  CUgraph graph = NULL;
  CUresult result = cuGraphCreate(&graph, 0);
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = (uint64_t)graph};
  return result;
}

static CUresult destroy(call *c) { return cuGraphDestroy(graph_of(c->t[0])); }

/* A node comes behind the one before it, unless it is to be free of it. */
static const CUgraphNode *before(const thing *graph, long free_of_it) {
  return graph->host && !free_of_it ? (const CUgraphNode *)&graph->host : NULL;
}

static CUresult added(thing *graph, CUresult result, const CUgraphNode *node) {
  if (result == CUDA_SUCCESS) graph->host = *node;
  return result;
}

/* graph, microseconds, blocks, kind, free of the node before */
static CUresult add_kernel(call *c) {
  thing *graph = c->t[0];
  CUgraphNode node = NULL;
  uint64_t ns = 1000 * (uint64_t)c->n[1];
  void *parameters[] = {&ns};
  CUDA_KERNEL_NODE_PARAMS kernel = {.func = spin_of(graph->context, c->n[3]),
                                    .gridDimX = (unsigned)c->n[2],
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 64,
                                    .blockDimY = 1,
                                    .blockDimZ = 1,
                                    .kernelParams = parameters};
  const CUgraphNode *from = before(graph, c->n[4]);
  if (!kernel.func) return skip(c);
  CUresult result = cuGraphAddKernelNode(&node, graph_of(graph), from, from != NULL, &kernel);
  if (result == CUDA_SUCCESS) graph->bytes = (uint64_t)node; /* the newest kernel node */
  return added(graph, result, &node);
}

static CUresult add_fill(call *c) {
  thing *graph = c->t[0], *buffer = c->t[1];
  CUgraphNode node = NULL;
  CUDA_MEMSET_NODE_PARAMS fill = {
      .dst = buffer->handle,
      .value = (unsigned)c->n[2] & 255,
      .elementSize = 1,
      .width = buffer->bytes < CONTENT_BYTES ? buffer->bytes : CONTENT_BYTES,
      .height = 1};
  const CUgraphNode *from = before(graph, 0);
  if (graph->context != buffer->context) return skip(c);
  return added(graph,
               cuGraphAddMemsetNode(&node, graph_of(graph), from, from != NULL, &fill,
                                    (CUcontext)thing_at('c', graph->context)->handle),
               &node);
}

static CUresult add_host(call *c) {
  thing *graph = c->t[0];
  CUgraphNode node = NULL;
  CUDA_HOST_NODE_PARAMS host = {.fn = append_to_order, .userData = order_entry(c->n[1], c->n[2])};
  const CUgraphNode *from = before(graph, 0);
  return added(graph, cuGraphAddHostNode(&node, graph_of(graph), from, from != NULL, &host), &node);
}

static CUresult add_child(call *c) {
  CUgraphNode node = NULL;
  const CUgraphNode *from = before(c->t[0], 0);
  return added(
      c->t[0],
      cuGraphAddChildGraphNode(&node, graph_of(c->t[0]), from, from != NULL, graph_of(c->t[1])),
      &node);
}

/* Takes MiB, runs a kernel, gives it back (or not, 1: then the launch's end leaves it taken). */
static CUresult add_memory(call *c) {
  thing *graph = c->t[0];
  CUgraphNode taken = NULL, given = NULL;
  CUDA_MEM_ALLOC_NODE_PARAMS wanted = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                 .id = thing_at('c', graph->context)->device}},
      .bytesize = (size_t)c->n[1] << 20};
  const CUgraphNode *from = before(graph, 0);
  CUresult result = cuGraphAddMemAllocNode(&taken, graph_of(graph), from, from != NULL, &wanted);
  if (result == CUDA_SUCCESS)
    result = cuGraphAddMemFreeNode(&given, graph_of(graph), &taken, 1, wanted.dptr);
  return added(graph, result, &given);
}

static CUresult instantiate(call *c) {
  CUgraphExec exec = NULL;
  CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {.flags = (cuuint64_t)c->n[2]};
  if (c->n[2] & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) parameters.hUploadStream = CU_STREAM_PER_THREAD;
  CUresult result = cuGraphInstantiateWithParams(&exec, graph_of(c->t[1]), &parameters);
  *c->t[0] = (thing){.context = c->t[1]->context, .handle = (uint64_t)exec};
  return result;
}

static CUresult launch(call *c) {
  return cuGraphLaunch(exec_of(c->t[1]), (CUstream)c->t[0]->handle);
}
static CUresult upload(call *c) {
  return cuGraphUpload(exec_of(c->t[1]), (CUstream)c->t[0]->handle);
}
static CUresult destroy_exec(call *c) { return cuGraphExecDestroy(exec_of(c->t[0])); }

static CUresult update(call *c) {
  CUgraphExecUpdateResultInfo info = {0};
  CUresult result = cuGraphExecUpdate(exec_of(c->t[0]), graph_of(c->t[1]), &info);
  snprintf(c->note, sizeof c->note, "update %d", (int)info.result);
  return result;
}

/* The graph's newest kernel node lasts so long in the executable. */
static CUresult set_kernel(call *c) {
  const thing *graph = c->t[1];
  uint64_t ns = 1000 * (uint64_t)c->n[2];
  void *parameters[] = {&ns};
  if (!graph->bytes) return skip(c);
  CUDA_KERNEL_NODE_PARAMS kernel;
  CUresult result = cuGraphKernelNodeGetParams((CUgraphNode)graph->bytes, &kernel);
  kernel.kernelParams = parameters;
  kernel.extra = NULL;
  if (result != CUDA_SUCCESS) return result;
  return cuGraphExecKernelNodeSetParams(exec_of(c->t[0]), (CUgraphNode)graph->bytes, &kernel);
}

static CUresult clone(call *c) {
  CUgraph graph = NULL;
  CUresult result = cuGraphClone(&graph, graph_of(c->t[1]));
  *c->t[0] = (thing){.context = c->t[1]->context, .handle = (uint64_t)graph};
  return result;
}

static CUresult trim(call *c) { return cuDeviceGraphMemTrim(c->t[0]->device); }

const operation graph_operations[] = {{"begin", "sn", begin},
                                      {"end", "Gs", end},
                                      {"graph", "Gc", make},
                                      {"gdestroy", "!g", destroy},
                                      {"gkernel", "gnnnn", add_kernel},
                                      {"gfill", "gbn", add_fill},
                                      {"ghost", "gnn", add_host},
                                      {"gchild", "gg", add_child},
                                      {"gmemory", "gn", add_memory},
                                      {"inst", "Xgn", instantiate},
                                      {"launch", "sx", launch},
                                      {"upload", "sx", upload},
                                      {"xdestroy", "!x", destroy_exec},
                                      {"update", "xg", update},
                                      {"setkernel", "xgn", set_kernel},
                                      {"clone", "Gg", clone},
                                      {"gtrim", "c", trim},
                                      {0}};
