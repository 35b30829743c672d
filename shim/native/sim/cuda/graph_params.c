/* Conversion between node parameters and work. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/graph.h"

/* ---- parameters to work ---- */

CUresult sim_kernel_params_work(const CUDA_KERNEL_NODE_PARAMS *p, sim_work *work) {
  CUfunction function = p->func ? p->func : (CUfunction)p->kern;
  REQUIRE(sim_handle_is(function, SIM_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
  sim_context *ctx = ((sim_function *)function)->ctx;
  if (!ctx) ctx = p->ctx ? (sim_context *)p->ctx : sim_current();
  REQUIRE(sim_handle_is(ctx, SIM_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
  unsigned grid[3] = {p->gridDimX, p->gridDimY, p->gridDimZ},
           block[3] = {p->blockDimX, p->blockDimY, p->blockDimZ}, none[3] = {0};
  return sim_kernel_work(ctx, function, grid, block, p->sharedMemBytes, none, false,
                         p->kernelParams, p->extra, work);
}

static CUresult context_or_current(CUcontext handle, sim_context **ctx) {
  *ctx = handle ? (sim_context *)handle : sim_current();
  return sim_handle_is(*ctx, SIM_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult event_work(CUgraphNodeType type, CUevent handle, sim_work *work) {
  sim_event *event;
  TRY(sim_event_of(handle, &event));
  *work = (sim_work){.type = type, .event = {event}};
  return CUDA_SUCCESS;
}

static CUresult batch_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 *p, sim_work *work) {
  sim_context *ctx;
  TRY(context_or_current(p->ctx, &ctx));
  REQUIRE(!p->flags, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_check_batch(ctx, p->paramArray, p->count));
  *work = (sim_work){.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                     .batch = {.ops = p->paramArray, .count = p->count, .ctx = ctx}};
  return CUDA_SUCCESS;
}

/* Converts an allocation node. Its address is fixed when the node is made; its memory is taken when
 * the graph is launched. */
static CUresult take_work(CUDA_MEM_ALLOC_NODE_PARAMS *p, sim_work *work) {
  sim_gpu *gpu;
  REQUIRE(p->bytesize && p->poolProps.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
              p->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
              !p->poolProps.handleTypes,
          CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(p->poolProps.location.id, &gpu));
  sim_alloc *alloc = calloc(1, sizeof *alloc);
  REQUIRE(alloc, CUDA_ERROR_OUT_OF_MEMORY);
  uint64_t slab = gpu->profile->slab_bytes;
  *alloc = (sim_alloc){.bytes = p->bytesize,
                       .mapped_bytes = (p->bytesize + slab - 1) / slab * slab,
                       .gpu = gpu,
                       .kind = SIM_GRAPH_MEMORY};
  sim_big_lock();
  alloc->address = sim_pages_take(alloc->mapped_bytes);
  if (alloc->address) sim_alloc_insert(alloc);
  sim_big_unlock();
  if (!alloc->address) {
    free(alloc);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  p->dptr = alloc->address;
  *work = (sim_work){.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                     .take = {.gpu = gpu, .as_given = *p, .alloc = alloc}};
  return CUDA_SUCCESS;
}

static CUresult child_work(CUgraph handle, bool move, sim_work *work) {
  sim_graph *child;
  TRY(sim_graph_of(handle, &child));
  sim_graph *kept = move ? child : sim_graph_clone(child);
  REQUIRE(kept, CUDA_ERROR_OUT_OF_MEMORY);
  kept->owned = true;
  *work = (sim_work){.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = {kept}};
  return CUDA_SUCCESS;
}

CUresult sim_work_from_params(const CUgraphNodeParams *p, sim_work *work) {
  sim_context *ctx;
  switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return sim_kernel_params_work((const CUDA_KERNEL_NODE_PARAMS *)&p->kernel, work);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      TRY(context_or_current(p->memcpy.copyCtx, &ctx));
      return sim_copy_work(ctx, &p->memcpy.copyParams, work);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      TRY(context_or_current(p->memset.ctx, &ctx));
      return sim_set_work(ctx, (const CUDA_MEMSET_NODE_PARAMS *)&p->memset, work);
    case CU_GRAPH_NODE_TYPE_HOST:
      REQUIRE(p->host.fn, CUDA_ERROR_INVALID_VALUE);
      *work = (sim_work){.type = p->type,
                         .host = {.function = p->host.fn, .user_data = p->host.userData}};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return child_work(p->graph.graph, p->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE,
                        work);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      *work = (sim_work){.type = p->type};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return event_work(p->type, p->eventWait.event, work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return event_work(p->type, p->eventRecord.event, work);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return take_work((CUDA_MEM_ALLOC_NODE_PARAMS *)&p->alloc, work);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      *work = (sim_work){.type = p->type, .give = {p->free.dptr}};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return batch_work((const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 *)&p->memOp, work);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return sim_conditional_work((CUDA_CONDITIONAL_NODE_PARAMS *)&p->conditional, work);
    default:
      return CUDA_ERROR_NOT_SUPPORTED; /* external semaphore nodes are not simulated */
  }
}

/* ---- work to parameters ---- */

static void kernel_params(const sim_work *w, CUDA_KERNEL_NODE_PARAMS *p) {
  *p = (CUDA_KERNEL_NODE_PARAMS){
      .func = (CUfunction)w->kernel.function,
      .kern = w->kernel.as_given->library ? (CUkernel)w->kernel.as_given : NULL,
      .ctx = (CUcontext)w->kernel.function->ctx,
      .gridDimX = w->kernel.grid[0],
      .gridDimY = w->kernel.grid[1],
      .gridDimZ = w->kernel.grid[2],
      .blockDimX = w->kernel.block[0],
      .blockDimY = w->kernel.block[1],
      .blockDimZ = w->kernel.block[2],
      .sharedMemBytes = w->kernel.shared_bytes,
      .kernelParams = w->kernel.param_count ? w->kernel.param_list : NULL,
  };
}

CUresult sim_params_from_work(const sim_work *w, CUgraphNodeParams *p) {
  memset(p, 0, sizeof *p);
  p->type = w->type;
  switch (w->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      kernel_params(w, (CUDA_KERNEL_NODE_PARAMS *)&p->kernel);
      break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      p->memcpy.copyCtx = (CUcontext)w->copy.ctx;
      p->memcpy.copyParams = w->copy.as_given;
      break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      memcpy(&p->memset, &w->set.as_given, sizeof w->set.as_given);
      p->memset.ctx = (CUcontext)w->set.ctx;
      break;
    case CU_GRAPH_NODE_TYPE_HOST:
      p->host.fn = w->host.function;
      p->host.userData = w->host.user_data;
      break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      p->graph.graph = (CUgraph)w->child.graph;
      break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      p->eventWait.event = (CUevent)w->event.event;
      break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      p->eventRecord.event = (CUevent)w->event.event;
      break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      memcpy(&p->alloc, &w->take.as_given, sizeof w->take.as_given);
      break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      p->free.dptr = w->give.pointer;
      break;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      p->conditional.handle = w->conditional.handle;
      p->conditional.type = w->conditional.kind;
      p->conditional.size = w->conditional.count;
      p->conditional.phGraph_out = (CUgraph *)w->conditional.bodies;
      p->conditional.ctx = (CUcontext)w->conditional.ctx;
      break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      p->memOp.ctx = (CUcontext)w->batch.ctx;
      p->memOp.count = w->batch.count;
      p->memOp.paramArray = w->batch.ops;
      break;
    default:
      break;
  }
  return CUDA_SUCCESS;
}

/* ---- add, get, set ---- */

CUresult sim_node_add(CUgraphNode *out, CUgraph graph_handle, const CUgraphNode *from, size_t count,
                      CUgraphNodeParams *params) {
  sim_graph *graph;
  sim_work work;
  sim_node *node;
  REQUIRE(out && (from || !count), CUDA_ERROR_INVALID_VALUE);
  TRY(sim_graph_of(graph_handle, &graph));
  if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
    REQUIRE(sim_condition_is_of(params->conditional.handle, graph), CUDA_ERROR_INVALID_VALUE);
  TRY(sim_work_from_params(params, &work));
  TRY(sim_graph_add(graph, (sim_node *const *)from, count, &work, &node));
  *out = (CUgraphNode)node;
  return CUDA_SUCCESS;
}

CUresult sim_node_get(CUgraphNode handle, CUgraphNodeType type, CUgraphNodeParams *params) {
  sim_node *node;
  TRY(sim_node_of(handle, &node));
  REQUIRE(type == CU_GRAPH_NODE_TYPE_EMPTY || node->work.type == type, CUDA_ERROR_INVALID_VALUE);
  return sim_params_from_work(&node->work, params);
}

CUresult sim_node_replace(sim_node *node, const CUgraphNodeParams *params) {
  sim_work work;
  REQUIRE(node->work.type == params->type, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
              params->type != CU_GRAPH_NODE_TYPE_MEM_FREE &&
              params->type != CU_GRAPH_NODE_TYPE_CONDITIONAL,
          CUDA_ERROR_INVALID_VALUE);
  TRY(sim_work_from_params(params, &work));
  REQUIRE(sim_work_keep(&work), CUDA_ERROR_OUT_OF_MEMORY);
  sim_work before = node->work;
  node->work = work;
  if (before.type == CU_GRAPH_NODE_TYPE_GRAPH) sim_graph_free(before.child.graph);
  sim_work_release(&before);
  return CUDA_SUCCESS;
}

CUresult sim_node_set(CUgraphNode handle, const CUgraphNodeParams *params) {
  sim_node *node;
  TRY(sim_node_of(handle, &node));
  return sim_node_replace(node, params);
}

/* Finds the executable's node for `handle`, which is a node of the graph that the executable was
 * made from, or of the executable itself. */
static CUresult exec_node(CUgraphExec exec_handle, CUgraphNode handle, sim_node **out) {
  REQUIRE(sim_handle_is(exec_handle, SIM_EXEC) && handle, CUDA_ERROR_INVALID_VALUE);
  sim_graph *graph = ((sim_exec *)exec_handle)->graph;
  for (size_t i = 0; i < graph->count; i++)
    if (graph->nodes[i]->original == (sim_node *)handle || graph->nodes[i] == (sim_node *)handle) {
      *out = graph->nodes[i];
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_exec_set(CUgraphExec exec, CUgraphNode handle, const CUgraphNodeParams *params) {
  sim_node *node;
  TRY(exec_node(exec, handle, &node));
  return sim_node_replace(node, params);
}

CUresult CUDAAPI cuGraphAddNode(CUgraphNode *out, CUgraph g, const CUgraphNode *from, size_t n,
                                CUgraphNodeParams *params) {
  ENTER("cuGraphAddNode");
  REQUIRE(params, CUDA_ERROR_INVALID_VALUE);
  return sim_node_add(out, g, from, n, params);
}
CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *out, CUgraph g, const CUgraphNode *from,
                                   const CUgraphEdgeData *data, size_t n,
                                   CUgraphNodeParams *params) {
  ENTER("cuGraphAddNode");
  (void)data;
  REQUIRE(params, CUDA_ERROR_INVALID_VALUE);
  return sim_node_add(out, g, from, n, params);
}
CUresult CUDAAPI cuGraphAddNode_v3(CUgraphNode *out, CUgraph g, const CUgraphNode *from,
                                   const CUgraphEdgeData *data, size_t n,
                                   CUgraphNodeParams *params) {
  return cuGraphAddNode_v2(out, g, from, data, n, params);
}
CUresult CUDAAPI cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params) {
  ENTER("cuGraphNodeSetParams");
  REQUIRE(params, CUDA_ERROR_INVALID_VALUE);
  return sim_node_set(node, params);
}
CUresult CUDAAPI cuGraphNodeSetParams_v2(CUgraphNode node, CUgraphNodeParams *params) {
  return cuGraphNodeSetParams(node, params);
}
CUresult CUDAAPI cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams *params) {
  ENTER("cuGraphNodeGetParams");
  REQUIRE(params, CUDA_ERROR_INVALID_VALUE);
  return sim_node_get(node, CU_GRAPH_NODE_TYPE_EMPTY, params);
}
CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                          CUgraphNodeParams *params) {
  ENTER("cuGraphExecNodeSetParams");
  REQUIRE(params, CUDA_ERROR_INVALID_VALUE);
  return sim_exec_set(exec, node, params);
}

CUresult CUDAAPI cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned int enabled) {
  ENTER("cuGraphNodeSetEnabled");
  sim_node *node;
  TRY(exec_node(exec, handle, &node));
  CUgraphNodeType type = node->work.type;
  REQUIRE(type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
              type == CU_GRAPH_NODE_TYPE_MEMSET,
          CUDA_ERROR_INVALID_VALUE);
  node->enabled = enabled != 0;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode handle,
                                       unsigned int *enabled) {
  ENTER("cuGraphNodeGetEnabled");
  sim_node *node;
  REQUIRE(enabled, CUDA_ERROR_INVALID_VALUE);
  TRY(exec_node(exec, handle, &node));
  *enabled = node->enabled;
  return CUDA_SUCCESS;
}
