/* Executables: instantiation, update, launch.
 *
 * A launch puts the graph's branches on lanes of their own: the first one is the stream that it was
 * launched into, the others begin when that stream comes to the launch, and the stream goes on when
 * all have ended. A chain of kernels becomes one operation as long as the chain, so that a graph of
 * a thousand kernels takes one place in the queue; the device's record counts each of its kernels.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/graph.h"

/* ---- launch ---- */

typedef struct run {
  sim_stream **lanes; /* [0]: the stream launched into */
  sim_node **tails;   /* newest node on each lane */
  size_t lane_count;
  size_t *lane_of; /* by position of the node in its graph */
  sim_ref *refs;   /* likewise: what to wait for */
  sim_ref fork;    /* the stream has come to the launch */
  bool pending;    /* a chain is being folded */
  sim_op op;
  size_t op_lane;
} run;

static CUresult wait_for(sim_stream *lane, const sim_ref *ref) {
  if (sim_done_quick(sim_here.machine, ref)) return CUDA_SUCCESS;
  sim_op op = {.kind = SIM_WAIT,
               .target_device = ref->device,
               .target_client = ref->client,
               .target_slot = ref->slot,
               .target_seq = ref->seq};
  sim_ref ignored;
  return sim_submit_work(lane, &op, &ignored);
}

static sim_ref tail_of(const sim_stream *lane) {
  sim_gpu *gpu = lane->ctx->gpu;
  return sim_stream_tail(sim_here.machine, gpu->device, gpu->client, lane->lane);
}

static CUresult flush(run *r) {
  if (!r->pending) return CUDA_SUCCESS;
  r->pending = false;
  sim_ref ref;
  TRY(sim_submit_work(r->lanes[r->op_lane], &r->op, &ref));
  return CUDA_SUCCESS;
}

/* A lane besides the stream: not a handle, freed after the launch. */
static sim_stream *new_lane(sim_context *ctx) {
  sim_stream *lane = calloc(1, sizeof *lane);
  if (!lane) return NULL;
  sim_big_lock();
  lane->ctx = ctx;
  lane->lane =
      ctx->number << SIM_STREAM_BITS | (++ctx->next_stream & ((1u << SIM_STREAM_BITS) - 1));
  lane->lane_kind = SIM_LANE_FREE;
  sim_big_unlock();
  return lane;
}

/* The lane of one of its predecessors that nothing followed yet, else a new one. */
static CUresult choose_lane(run *r, const sim_node *node, size_t *lane) {
  for (size_t i = 0; i < node->from_count; i++) {
    size_t at = r->lane_of[node->from[i]->order];
    if (r->tails[at] != node->from[i]) continue;
    *lane = at;
    return CUDA_SUCCESS;
  }
  if (!r->tails[0]) {
    *lane = 0;
    return CUDA_SUCCESS;
  }
  TRY(flush(r));
  sim_stream *made = new_lane(r->lanes[0]->ctx);
  REQUIRE(made, CUDA_ERROR_OUT_OF_MEMORY);
  r->lanes[r->lane_count] = made;
  *lane = r->lane_count++;
  return node->from_count ? CUDA_SUCCESS : wait_for(made, &r->fork);
}

static bool folds(const run *r, const sim_node *node, size_t lane, const sim_op *op) {
  return r->pending && r->op_lane == lane && op->kind == SIM_KERNEL && r->op.kind == SIM_KERNEL &&
         node->from_count == 1 && r->tails[lane] == node->from[0] && node->from[0]->to_count == 1;
}

static CUresult run_work(run *r, const sim_node *node, size_t lane) {
  sim_op op;
  sim_self.call = "cuGraphLaunch";
  if (!node->enabled) return CUDA_SUCCESS;
  if (!sim_work_op(&node->work, &op)) {
    TRY(flush(r));
    if (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH)
      return sim_graph_run(node->work.child.graph, r->lanes[lane]);
    return sim_run(r->lanes[lane], &node->work);
  }
  sim_work_contents(&node->work);
  if (folds(r, node, lane, &op)) {
    r->op.duration_ns += op.duration_ns;
    r->op.launches += op.launches;
    r->op.bytes += op.bytes;
    r->op.flags |= op.flags;
    if (op.width > r->op.width) r->op.width = op.width;
    return CUDA_SUCCESS;
  }
  TRY(flush(r));
  r->pending = true;
  r->op = op;
  r->op_lane = lane;
  return CUDA_SUCCESS;
}

static CUresult run_node(run *r, sim_node *node, bool branched) {
  size_t lane;
  TRY(choose_lane(r, node, &lane));
  for (size_t i = 0; i < node->from_count; i++) {
    sim_node *before = node->from[i];
    if (r->lane_of[before->order] == lane) continue;
    TRY(flush(r));
    TRY(wait_for(r->lanes[lane], &r->refs[before->order]));
  }
  TRY(run_work(r, node, lane));
  r->lane_of[node->order] = lane;
  r->tails[lane] = node;
  bool needed = node->to_count != 1; /* somebody on another lane may wait for it */
  for (size_t i = 0; i < node->to_count; i++) needed |= node->to[i]->from_count != 1;
  if (branched && needed) {
    TRY(flush(r));
    r->refs[node->order] = tail_of(r->lanes[lane]);
  }
  return CUDA_SUCCESS;
}

CUresult sim_graph_run(sim_graph *graph, sim_stream *stream) {
  size_t n = graph->count;
  if (!n) return CUDA_SUCCESS;
  sim_node **order = calloc(n, sizeof *order);
  run r = {.lanes = calloc(n + 1, sizeof *r.lanes),
           .tails = calloc(n + 1, sizeof *r.tails),
           .lane_of = calloc(n, sizeof *r.lane_of),
           .refs = calloc(n, sizeof *r.refs),
           .lane_count = 1};
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  if (order && r.lanes && r.tails && r.lane_of && r.refs && sim_graph_sort(graph, order)) {
    bool branched = false;
    size_t roots = 0;
    for (size_t i = 0; i < n; i++) {
      branched |= graph->nodes[i]->to_count > 1 || graph->nodes[i]->from_count > 1;
      roots += !graph->nodes[i]->from_count;
    }
    branched |= roots > 1;
    r.lanes[0] = stream;
    result = CUDA_SUCCESS;
    if (branched) {
      sim_gpu *gpu = stream->ctx->gpu; /* waits for nothing: passes when its turn comes */
      sim_op noop = {.kind = SIM_WAIT,
                     .target_seq = UINT64_MAX,
                     .target_device = (uint16_t)gpu->device,
                     .target_client = (uint16_t)gpu->client};
      result = sim_submit_work(stream, &noop, &r.fork);
    }
    for (size_t i = 0; i < n && result == CUDA_SUCCESS; i++)
      result = run_node(&r, order[i], branched);
    if (result == CUDA_SUCCESS) result = flush(&r);
    for (size_t lane = 1; lane < r.lane_count; lane++) {
      sim_ref tail = tail_of(r.lanes[lane]);
      if (result == CUDA_SUCCESS) result = wait_for(stream, &tail);
      free(r.lanes[lane]);
    }
  }
  free(order);
  free(r.lanes);
  free(r.tails);
  free(r.lane_of);
  free(r.refs);
  return result;
}

/* ---- executables ---- */

static CUresult exec_of(CUgraphExec handle, sim_exec **exec) {
  if (!sim_handle_is(handle, SIM_EXEC)) return CUDA_ERROR_INVALID_VALUE;
  *exec = (sim_exec *)handle;
  return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, uint64_t flags) {
  sim_graph *graph;
  REQUIRE(out && !(flags & ~15ull), CUDA_ERROR_INVALID_VALUE);
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  TRY(sim_graph_of(handle, &graph));
  sim_node **order = calloc(graph->count + 1, sizeof *order);
  bool sorted = order && sim_graph_sort(graph, order);
  free(order);
  REQUIRE(sorted, CUDA_ERROR_INVALID_VALUE);
  sim_exec *exec = calloc(1, sizeof *exec);
  REQUIRE(exec, CUDA_ERROR_OUT_OF_MEMORY);
  exec->graph = sim_graph_clone(graph);
  if (!exec->graph) {
    free(exec);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  exec->graph->owned = true;
  exec->flags = flags;
  exec->id = exec->graph->id;
  sim_handle_add(exec, SIM_EXEC);
  *out = (CUgraphExec)exec;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph,
                                             unsigned long long flags) {
  ENTER("cuGraphInstantiateWithFlags");
  return instantiate(out, graph, flags);
}
CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log,
                                    size_t bytes) {
  ENTER("cuGraphInstantiate");
  if (error) *error = NULL;
  if (log && bytes) *log = 0;
  return instantiate(out, graph, 0);
}
CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error,
                                       char *log, size_t bytes) {
  ENTER("cuGraphInstantiate");
  if (error) *error = NULL;
  if (log && bytes) *log = 0;
  return instantiate(out, graph, 0);
}
CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  ENTER("cuGraphInstantiateWithParams");
  REQUIRE(params, CUDA_ERROR_INVALID_VALUE);
  CUresult result = instantiate(out, graph, params->flags);
  params->hErrNode_out = NULL;
  params->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle) {
  ENTER("cuGraphExecDestroy");
  sim_exec *exec;
  TRY(exec_of(handle, &exec));
  sim_handle_remove(exec);
  sim_graph_free(exec->graph);
  free(exec);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags) {
  ENTER("cuGraphExecGetFlags");
  sim_exec *exec;
  REQUIRE(flags, CUDA_ERROR_INVALID_VALUE);
  TRY(exec_of(handle, &exec));
  *flags = exec->flags;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphExecGetId(CUgraphExec handle, unsigned int *id) {
  ENTER("cuGraphExecGetId");
  sim_exec *exec;
  REQUIRE(id, CUDA_ERROR_INVALID_VALUE);
  TRY(exec_of(handle, &exec));
  *id = exec->id;
  return CUDA_SUCCESS;
}

CUresult sim_exec_run(sim_exec *exec, sim_stream *stream) {
  sim_big_lock();
  CUresult result = sim_exec_take_memory(exec, stream->ctx->gpu);
  sim_big_unlock();
  if (result != CUDA_SUCCESS) return result;
  if (exec->last_end.seq) TRY(wait_for(stream, &exec->last_end)); /* one launch of it at a time */
  TRY(sim_graph_run(exec->graph, stream));
  exec->last_end = tail_of(stream);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  ENTER_CONTEXT("cuGraphLaunch");
  sim_exec *exec;
  sim_stream *stream;
  TRY(exec_of(handle, &exec));
  TRY(sim_stream_of(stream_handle, ctx, &stream));
  if (stream->capture) return sim_capture_launch(stream, exec->graph);
  TRY(sim_exec_run(exec, stream));
  sim_spend(ctx->gpu->profile->launch_ns);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
  ENTER_CONTEXT("cuGraphUpload");
  sim_exec *exec;
  sim_stream *stream;
  TRY(exec_of(handle, &exec));
  return sim_stream_of(stream_handle, ctx, &stream);
}

/* ---- update ---- */

static bool same_shape(const sim_graph *exec, const sim_graph *graph, size_t *at,
                       CUgraphExecUpdateResult *why) {
  *why = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  *at = 0;
  if (exec->count != graph->count) return false;
  for (size_t i = 0; i < graph->count; i++) graph->nodes[i]->order = exec->nodes[i]->order = i;
  for (*at = 0; *at < graph->count; ++*at) {
    const sim_node *a = exec->nodes[*at], *b = graph->nodes[*at];
    if (a->from_count != b->from_count) return false;
    for (size_t k = 0; k < a->from_count; k++)
      if (a->from[k]->order != b->from[k]->order) return false;
    if (a->work.type != b->work.type) {
      *why = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
      return false;
    }
    if (a->work.type == CU_GRAPH_NODE_TYPE_GRAPH) {
      size_t inner;
      if (!same_shape(a->work.child.graph, b->work.child.graph, &inner, why)) return false;
    }
  }
  return true;
}

static CUresult update(sim_exec *exec, sim_graph *graph, CUgraphExecUpdateResult *why,
                       sim_node **error) {
  size_t at;
  *error = NULL;
  if (!same_shape(exec->graph, graph, &at, why)) {
    if (at < graph->count) *error = graph->nodes[at];
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  sim_graph *fresh = sim_graph_clone(graph);
  REQUIRE(fresh, CUDA_ERROR_OUT_OF_MEMORY);
  for (size_t i = 0; i < fresh->count;
       i++) { /* nodes keep their identity and whether they are enabled */
    sim_work work = exec->graph->nodes[i]->work;
    exec->graph->nodes[i]->work = fresh->nodes[i]->work;
    fresh->nodes[i]->work = work;
  }
  sim_graph_free(fresh);
  *why = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle,
                                      CUgraphExecUpdateResultInfo *info) {
  ENTER("cuGraphExecUpdate");
  sim_exec *exec;
  sim_graph *graph;
  sim_node *error;
  REQUIRE(info, CUDA_ERROR_INVALID_VALUE);
  TRY(exec_of(handle, &exec));
  TRY(sim_graph_of(graph_handle, &graph));
  memset(info, 0, sizeof *info);
  CUresult result = update(exec, graph, &info->result, &error);
  info->errorNode = (CUgraphNode)error;
  return result;
}
CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec handle, CUgraph graph_handle, CUgraphNode *error_out,
                                   CUgraphExecUpdateResult *why) {
  ENTER("cuGraphExecUpdate");
  sim_exec *exec;
  sim_graph *graph;
  sim_node *error;
  REQUIRE(why, CUDA_ERROR_INVALID_VALUE);
  TRY(exec_of(handle, &exec));
  TRY(sim_graph_of(graph_handle, &graph));
  CUresult result = update(exec, graph, why, &error);
  if (error_out) *error_out = (CUgraphNode)error;
  return result;
}
