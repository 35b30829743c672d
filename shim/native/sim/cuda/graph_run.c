/* Launch of a graph. Each branch has its own lane. The first lane is the stream of the launch; the
 * others start when the stream reaches the launch, and the stream continues when all of them have
 * ended. A chain of kernels becomes one operation that lasts as long as the chain, so that a graph
 * of a thousand kernels takes one place in the queue. The device's record still counts each
 * kernel. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/graph.h"

typedef struct run {
  sim_stream **lanes; /* lanes[0] is the stream of the launch */
  sim_node **tails;   /* newest node on each lane */
  size_t lane_count;
  size_t *lane_of; /* by position of the node in its graph */
  sim_ref *refs;   /* work to wait for, by position of the node in its graph */
  sim_ref fork;    /* the point at which the stream reaches the launch */
  bool pending;    /* true while a chain is being combined */
  sim_op op;
  size_t op_lane;
} run;

static CUresult flush(run *r) {
  if (!r->pending) return CUDA_SUCCESS;
  r->pending = false;
  sim_ref ref;
  TRY(sim_submit_work(r->lanes[r->op_lane], &r->op, &ref));
  return CUDA_SUCCESS;
}

/* Makes a further lane: a stream without a handle, freed after the launch. */
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

/* Chooses the lane of a predecessor that has no successor yet, or else a new lane. */
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
  return node->from_count ? CUDA_SUCCESS : sim_wait_on(made, &r->fork);
}

static bool folds(const run *r, const sim_node *node, size_t lane, const sim_op *op) {
  return r->pending && r->op_lane == lane && op->kind == SIM_KERNEL && r->op.kind == SIM_KERNEL &&
         !((r->op.flags | op->flags) & SIM_OP_AWAITS) && node->from_count == 1 &&
         r->tails[lane] == node->from[0] && node->from[0]->to_count == 1;
}

/* Simulates a graph launch by a kernel on the device. The launched graph runs after that kernel and
 * before the stream continues. A graph that is not a device graph or was not uploaded is silently
 * not launched, because only the kernel would see the error. */
static CUresult run_from_device(run *r, const sim_work *work, size_t lane) {
  enum { DEEPEST = 8, MOST = 4096 };
  static __thread int depth;
  sim_kernel_act act = sim_kernel_act_of(work);
  if (act.what != SIM_LAUNCHES_GRAPH || depth == DEEPEST) return CUDA_SUCCESS;
  const sim_exec *exec = (const sim_exec *)act.words[0];
  if (!sim_handle_is(exec, SIM_EXEC) || !exec->uploaded ||
      !(exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH))
    return CUDA_SUCCESS;
  TRY(flush(r));
  CUresult result = CUDA_SUCCESS;
  depth++;
  for (uint64_t i = 0; i < act.words[1] && i < MOST && result == CUDA_SUCCESS; i++)
    result = sim_graph_run(exec->graph, r->lanes[lane]);
  depth--;
  return result;
}

static CUresult run_work(run *r, const sim_node *node, size_t lane) {
  sim_op op;
  sim_self.call = "cuGraphLaunch";
  if (!node->enabled) return CUDA_SUCCESS;
  if (!sim_work_op(&node->work, &op)) {
    TRY(flush(r));
    if (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH)
      return sim_graph_run(node->work.child.graph, r->lanes[lane]);
    if (node->work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
      return sim_conditional_run(&node->work, r->lanes[lane]);
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
  if (node->work.type == CU_GRAPH_NODE_TYPE_KERNEL && sim_kernels_launch_graphs())
    return run_from_device(r, &node->work, lane);
  return CUDA_SUCCESS;
}

static CUresult run_node(run *r, sim_node *node, bool branched) {
  size_t lane;
  TRY(choose_lane(r, node, &lane));
  for (size_t i = 0; i < node->from_count; i++) {
    sim_node *before = node->from[i];
    if (r->lane_of[before->order] == lane) continue;
    TRY(flush(r));
    TRY(sim_wait_on(r->lanes[lane], &r->refs[before->order]));
  }
  TRY(run_work(r, node, lane));
  r->lane_of[node->order] = lane;
  r->tails[lane] = node;
  bool needed = node->to_count != 1; /* true if a node on another lane may wait for this one */
  for (size_t i = 0; i < node->to_count; i++) needed |= node->to[i]->from_count != 1;
  if (branched && needed) {
    TRY(flush(r));
    r->refs[node->order] = sim_tail_of(r->lanes[lane]);
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
      /* a wait without a target, which only marks a position in the stream */
      sim_gpu *gpu = stream->ctx->gpu;
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
      sim_ref tail = sim_tail_of(r.lanes[lane]);
      if (result == CUDA_SUCCESS) result = sim_wait_on(stream, &tail);
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
