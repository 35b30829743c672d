/* Conditional nodes: a value that kernels of the graph may set decides which body runs.
 *
 * Simulated kernels compute nothing, so the value is known when the graph is launched: it is the
 * default, or the value that a kernel with a `sets` rule stored. A while node decrements the value
 * in each round, so that its body runs as many times as the value says, unless a kernel in the body
 * sets a new value.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/graph.h"

#define MOST_ROUNDS 65536

typedef struct condition {
  uint64_t handle;
  const sim_graph *graph; /* NULL if the graph was destroyed */
  unsigned initial, value;
  /* `resets`: the value is set to the initial one at each launch. `used`: a node uses the
   * condition. */
  bool resets, used;
  struct condition *next;
} condition;
static condition *conditions; /* guarded by the big lock */

static condition *find(uint64_t handle) {
  sim_big_lock();
  condition *c = conditions;
  while (c && c->handle != handle) c = c->next;
  sim_big_unlock();
  return c;
}

void sim_condition_set(uint64_t handle, uint64_t value) {
  condition *c = find(handle);
  if (c) c->value = (unsigned)value;
}

bool sim_conditions_all_used(const sim_graph *graph) {
  bool fine = true;
  sim_big_lock();
  for (condition *c = conditions; c; c = c->next) fine &= c->graph != graph || c->used;
  sim_big_unlock();
  return fine;
}

void sim_conditions_forget(const sim_graph *graph) {
  for (condition *c = conditions; c; c = c->next)
    if (c->graph == graph) c->graph = NULL;
}

CUresult CUDAAPI cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph handle,
                                                CUcontext ctx, unsigned int initial,
                                                unsigned int flags) {
  ENTER("cuGraphConditionalHandleCreate");
  sim_graph *graph;
  REQUIRE(out && !(flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT), CUDA_ERROR_INVALID_VALUE);
  TRY(sim_graph_of(handle, &graph));
  REQUIRE(sim_handle_is(ctx ? (void *)ctx : (void *)sim_current(), SIM_CONTEXT),
          CUDA_ERROR_INVALID_CONTEXT);
  condition *c = calloc(1, sizeof *c);
  REQUIRE(c, CUDA_ERROR_OUT_OF_MEMORY);
  *c = (condition){.handle = sim_next_id(),
                   .graph = graph,
                   .initial = initial,
                   .value = initial,
                   .resets = flags & CU_GRAPH_COND_ASSIGN_DEFAULT};
  sim_big_lock();
  c->next = conditions;
  conditions = c;
  sim_big_unlock();
  *out = c->handle;
  return CUDA_SUCCESS;
}

/* ---- nodes ---- */

CUresult sim_conditional_work(CUDA_CONDITIONAL_NODE_PARAMS *p, sim_work *work) {
  condition *c = find(p->handle);
  REQUIRE(c && c->graph && !c->used, CUDA_ERROR_INVALID_VALUE);
  bool fits = p->type == CU_GRAPH_COND_TYPE_SWITCH  ? p->size > 0
              : p->type == CU_GRAPH_COND_TYPE_IF    ? p->size == 1 || p->size == 2
              : p->type == CU_GRAPH_COND_TYPE_WHILE ? p->size == 1
                                                    : false;
  REQUIRE(fits, CUDA_ERROR_INVALID_VALUE);
  sim_graph **bodies = calloc(p->size, sizeof *bodies);
  REQUIRE(bodies, CUDA_ERROR_OUT_OF_MEMORY);
  for (unsigned i = 0; i < p->size; i++) {
    bodies[i] = sim_graph_new();
    if (!bodies[i]) abort();
    bodies[i]->owned = true;
  }
  c->used = true;
  p->phGraph_out = (CUgraph *)bodies;
  *work = (sim_work){.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                     .conditional = {.handle = p->handle,
                                     .kind = p->type,
                                     .count = p->size,
                                     .bodies = bodies,
                                     .ctx = p->ctx ? (sim_context *)p->ctx : sim_current()}};
  return CUDA_SUCCESS;
}

/* Returns whether a condition belongs to the graph, as the condition of a node must. */
bool sim_condition_is_of(uint64_t handle, const sim_graph *graph) {
  condition *c = find(handle);
  return c && c->graph == graph;
}

bool sim_conditional_clone(sim_work *work) {
  sim_graph **copies = calloc(work->conditional.count, sizeof *copies);
  for (unsigned i = 0; copies && i < work->conditional.count; i++) {
    copies[i] = sim_graph_clone(work->conditional.bodies[i]);
    if (!copies[i]) return false;
    copies[i]->owned = true;
  }
  work->conditional.bodies = copies;
  return copies != NULL;
}

void sim_conditional_release(sim_work *work) {
  for (unsigned i = 0; i < work->conditional.count; i++)
    sim_graph_free(work->conditional.bodies[i]);
  free(work->conditional.bodies);
}

/* Returns whether a body, including bodies inside it, has only nodes that are allowed there. */
bool sim_conditional_fits(const sim_graph *graph, bool inside) {
  for (size_t i = 0; i < graph->count; i++) {
    const sim_work *w = &graph->nodes[i]->work;
    switch (w->type) {
      case CU_GRAPH_NODE_TYPE_KERNEL:
      case CU_GRAPH_NODE_TYPE_EMPTY:
      case CU_GRAPH_NODE_TYPE_MEMSET:
      case CU_GRAPH_NODE_TYPE_MEMCPY:
        break;
      case CU_GRAPH_NODE_TYPE_GRAPH:
        if (!sim_conditional_fits(w->child.graph, inside)) return false;
        break;
      case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        for (unsigned k = 0; k < w->conditional.count; k++)
          if (!sim_conditional_fits(w->conditional.bodies[k], true)) return false;
        break;
      default:
        if (inside) return false;
    }
  }
  return true;
}

/* ---- launch ---- */

void sim_conditions_reset(const sim_graph *graph) {
  for (size_t i = 0; i < graph->count; i++) {
    const sim_work *w = &graph->nodes[i]->work;
    if (w->type == CU_GRAPH_NODE_TYPE_GRAPH) sim_conditions_reset(w->child.graph);
    if (w->type != CU_GRAPH_NODE_TYPE_CONDITIONAL) continue;
    condition *c = find(w->conditional.handle);
    if (c && c->resets) c->value = c->initial;
    for (unsigned k = 0; k < w->conditional.count; k++)
      sim_conditions_reset(w->conditional.bodies[k]);
  }
}

/* Combines a body into one operation if it is a chain of kernels that only take time. Returns false
 * if it is not. */
static bool chain(sim_graph *body, sim_op *sum) {
  memset(sum, 0, sizeof *sum);
  for (size_t i = 0; i < body->count; i++) {
    sim_node *node = body->nodes[i];
    sim_op op;
    bool plain = node->enabled && node->work.type == CU_GRAPH_NODE_TYPE_KERNEL &&
                 node->from_count == (i > 0) && (!i || node->from[0] == body->nodes[i - 1]) &&
                 sim_kernel_act_of(&node->work).what == SIM_LASTS;
    if (!plain || !sim_work_op(&node->work, &op)) return false;
    sum->kind = op.kind;
    sum->duration_ns += op.duration_ns;
    sum->launches += op.launches;
    sum->flags |= op.flags;
    if (op.width > sum->width) sum->width = op.width;
  }
  return body->count > 0;
}

static CUresult run_rounds(condition *c, sim_graph *body, sim_stream *lane) {
  sim_op op;
  sim_ref ref;
  if (c->value && chain(body, &op)) {
    uint64_t rounds = c->value < MOST_ROUNDS ? c->value : MOST_ROUNDS;
    op.duration_ns *= rounds;
    op.launches *= (uint32_t)rounds;
    c->value = 0;
    return sim_submit_work(lane, &op, &ref);
  }
  for (unsigned round = 0; c->value && round < MOST_ROUNDS; round++) {
    c->value--;
    TRY(sim_graph_run(body, lane));
  }
  return CUDA_SUCCESS;
}

CUresult sim_conditional_run(const sim_work *work, sim_stream *lane) {
  condition *c = find(work->conditional.handle);
  REQUIRE(c, CUDA_ERROR_INVALID_VALUE);
  sim_graph **bodies = work->conditional.bodies;
  unsigned which = c->value;
  if (work->conditional.kind == CU_GRAPH_COND_TYPE_WHILE) return run_rounds(c, bodies[0], lane);
  if (work->conditional.kind == CU_GRAPH_COND_TYPE_IF) which = c->value ? 0 : 1;
  return which < work->conditional.count ? sim_graph_run(bodies[which], lane) : CUDA_SUCCESS;
}
