/* Executable graphs: instantiation, update and launch. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/graph.h"

/* ---- executables ---- */

static CUresult exec_of(CUgraphExec handle, sim_exec **exec) {
  if (!sim_handle_is(handle, SIM_EXEC)) return CUDA_ERROR_INVALID_VALUE;
  *exec = (sim_exec *)handle;
  return CUDA_SUCCESS;
}

static const sim_context *context_of(const sim_work *work) {
  if (work->type == CU_GRAPH_NODE_TYPE_KERNEL) return work->kernel.function->ctx;
  return work->type == CU_GRAPH_NODE_TYPE_MEMCPY ? work->copy.ctx : work->set.ctx;
}

/* Checks whether a graph can be launched from the device. *ctx receives the context of all its
 * nodes. */
static CUgraphInstantiateResult fits_device(const sim_graph *graph, const sim_context **ctx) {
  CUgraphInstantiateResult how = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  for (size_t i = 0; i < graph->count && how == CUDA_GRAPH_INSTANTIATE_SUCCESS; i++) {
    const sim_work *w = &graph->nodes[i]->work;
    if (w->type == CU_GRAPH_NODE_TYPE_GRAPH) {
      how = fits_device(w->child.graph, ctx);
      continue;
    }
    bool known = w->type == CU_GRAPH_NODE_TYPE_KERNEL || w->type == CU_GRAPH_NODE_TYPE_MEMSET ||
                 w->type == CU_GRAPH_NODE_TYPE_MEMCPY;
    bool array = w->type == CU_GRAPH_NODE_TYPE_MEMCPY &&
                 (w->copy.as_given.srcMemoryType == CU_MEMORYTYPE_ARRAY ||
                  w->copy.as_given.dstMemoryType == CU_MEMORYTYPE_ARRAY);
    if (!known || array) return CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
    if (*ctx && *ctx != context_of(w)) return CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED;
    *ctx = context_of(w);
  }
  return how;
}

static CUgraphInstantiateResult check(const sim_graph *graph, uint64_t flags) {
  const sim_context *ctx = NULL;
  sim_node **order = calloc(graph->count + 1, sizeof *order);
  bool sorted = order && sim_graph_sort(graph, order);
  free(order);
  if (!sorted) return CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
  if (!sim_conditions_all_used(graph)) return CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
  if (!sim_conditional_fits(graph, false)) return CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
  if (!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)) return CUDA_GRAPH_INSTANTIATE_SUCCESS;
  CUgraphInstantiateResult how = fits_device(graph, &ctx);
  return how == CUDA_GRAPH_INSTANTIATE_SUCCESS && !ctx ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                                       : how;
}

/* Prepares all kernels of the graph before the first one runs. */
static CUresult prepare(const sim_graph *graph) {
  for (size_t i = 0; i < graph->count; i++) {
    const sim_work *work = &graph->nodes[i]->work;
    if (work->type == CU_GRAPH_NODE_TYPE_KERNEL)
      TRY(sim_work_prepare(work, work->kernel.function->ctx));
    if (work->type == CU_GRAPH_NODE_TYPE_GRAPH) TRY(prepare(work->child.graph));
    if (work->type != CU_GRAPH_NODE_TYPE_CONDITIONAL) continue;
    for (unsigned k = 0; k < work->conditional.count; k++)
      if (work->conditional.bodies[k]) TRY(prepare(work->conditional.bodies[k]));
  }
  return CUDA_SUCCESS;
}

static CUresult upload(sim_exec *exec, const sim_stream *stream) {
  TRY(prepare(exec->graph));
  sim_big_lock();
  CUresult result = sim_exec_take_memory(exec, stream, true);
  sim_big_unlock();
  if (result == CUDA_SUCCESS) exec->uploaded = true;
  return result;
}

static void exec_free(sim_exec *exec) {
  sim_big_lock();
  sim_exec_memory_forget(exec);
  sim_big_unlock();
  sim_graph_free(exec->graph);
  free(exec);
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, uint64_t flags,
                            CUstream stream_handle, CUgraphInstantiateResult *how) {
  enum {
    ON_DEVICE = CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
  };
  sim_graph *graph;
  sim_stream *stream = NULL;
  *how = CUDA_GRAPH_INSTANTIATE_ERROR;
  REQUIRE(out && !(flags & ~15ull) && (flags & ON_DEVICE) != ON_DEVICE, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_graph_of(handle, &graph));
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {
    REQUIRE(sim_current(), CUDA_ERROR_INVALID_CONTEXT);
    TRY(sim_stream_of(stream_handle, sim_current(), &stream));
  }
  *how = check(graph, flags);
  REQUIRE(*how == CUDA_GRAPH_INSTANTIATE_SUCCESS, CUDA_ERROR_INVALID_VALUE);
  sim_exec *exec = calloc(1, sizeof *exec);
  REQUIRE(exec, CUDA_ERROR_OUT_OF_MEMORY);
  exec->graph = sim_graph_clone(graph);
  if (!exec->graph) {
    free(exec);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  exec->graph->owned = true;
  exec->flags = flags & ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  exec->id = exec->graph->id;
  CUresult result = stream ? upload(exec, stream) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) {
    *how = CUDA_GRAPH_INSTANTIATE_ERROR;
    exec_free(exec);
    return result;
  }
  sim_handle_add(exec, SIM_EXEC);
  *out = (CUgraphExec)exec;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph,
                                             unsigned long long flags) {
  ENTER("cuGraphInstantiateWithFlags");
  CUgraphInstantiateResult how;
  return instantiate(out, graph, flags, NULL, &how);
}
CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log,
                                    size_t bytes) {
  ENTER("cuGraphInstantiate");
  if (error) *error = NULL;
  if (log && bytes) *log = 0;
  CUgraphInstantiateResult how;
  return instantiate(out, graph, 0, NULL, &how);
}
CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error,
                                       char *log, size_t bytes) {
  ENTER("cuGraphInstantiate");
  if (error) *error = NULL;
  if (log && bytes) *log = 0;
  CUgraphInstantiateResult how;
  return instantiate(out, graph, 0, NULL, &how);
}
CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  ENTER("cuGraphInstantiateWithParams");
  REQUIRE(params, CUDA_ERROR_INVALID_VALUE);
  params->hErrNode_out = NULL;
  return instantiate(out, graph, params->flags, params->hUploadStream, &params->result_out);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle) {
  ENTER("cuGraphExecDestroy");
  sim_exec *exec;
  TRY(exec_of(handle, &exec));
  sim_handle_remove(exec);
  exec_free(exec);
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
  TRY(prepare(exec->graph));
  sim_big_lock();
  CUresult result = sim_exec_take_memory(exec, stream, false);
  sim_big_unlock();
  if (result != CUDA_SUCCESS) return result;
  if (exec->last_end.seq)
    result = sim_wait_on(stream, &exec->last_end); /* launches of an executable do not overlap */
  sim_conditions_reset(exec->graph);
  if (result == CUDA_SUCCESS) result = sim_graph_run(exec->graph, stream);
  sim_ref end = sim_tail_of(stream);
  sim_big_lock();
  sim_exec_memory_ends(exec, &end);
  sim_big_unlock();
  if (result != CUDA_SUCCESS) return result;
  exec->uploaded = true;
  exec->last_end = end;
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
  TRY(sim_stream_of(stream_handle, ctx, &stream));
  return upload(exec, stream);
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
    if (a->work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
      size_t inner;
      if (a->work.conditional.kind != b->work.conditional.kind ||
          a->work.conditional.count != b->work.conditional.count)
        return false;
      for (unsigned k = 0; k < a->work.conditional.count; k++)
        if (!same_shape(a->work.conditional.bodies[k], b->work.conditional.bodies[k], &inner, why))
          return false;
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
  /* nodes keep their identity and their enabled state */
  for (size_t i = 0; i < fresh->count; i++) {
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
