/* Stream capture: calls become nodes of a graph, and some calls are forbidden until the capture
 * ends. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/cuda/graph.h"

struct sim_capture {
  sim_graph *graph;
  sim_stream *origin;
  sim_stream *streams; /* list of the streams that take part */
  CUstreamCaptureMode mode;
  pid_t thread;
  uint64_t id;
  bool invalid;
  bool into_given_graph;
  /* called for nodes that differ from those of the given graph */
  CUgraphRecaptureCallback callback;
  void *data;
  bool again;   /* true for a recapture, where the graph already has its nodes */
  size_t place; /* index of the next node in a recapture */
  sim_capture *next;
};

static uint64_t last_id;
static sim_capture *captures; /* list of live captures, guarded by the big lock */
static unsigned live_count;

static pid_t this_thread(void) {
  static __thread pid_t tid;
  if (!tid) tid = gettid();
  return tid;
}

/* ---- what captures forbid ---- */

/* Invalidates a capture. Any thread that makes a forbidden call does this. */
static void invalidate(sim_capture *capture) {
  __atomic_store_n(&capture->invalid, true, __ATOMIC_RELEASE);
}
static bool is_invalid(const sim_capture *capture) {
  return __atomic_load_n(&capture->invalid, __ATOMIC_ACQUIRE);
}

/* Fails a call that may wait for other streams, or that a replay would not repeat, if a capture
 * forbids it. The modes of the captures and of this thread decide which captures forbid it; these
 * are invalidated. */
CUresult sim_capture_forbids(sim_context *ctx) {
  (void)ctx;
  if (sim_self.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  if (!__atomic_load_n(&live_count, __ATOMIC_ACQUIRE)) return CUDA_SUCCESS;
  bool forbidden = false;
  sim_big_lock();
  for (sim_capture *c = captures; c; c = c->next) {
    bool own = c->thread == this_thread() && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool others =
        sim_self.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !others) continue;
    invalidate(c);
    forbidden = true;
  }
  sim_big_unlock();
  return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* Invalidates the captures in which streams of a context take part, in any mode. */

static void invalidate_in(sim_context *ctx, bool blocking_alone) {
  sim_big_lock();
  for (sim_stream *s = ctx->streams; s; s = s->next)
    if (s->capture && (!blocking_alone || s->lane_kind == SIM_LANE_BLOCKING))
      invalidate(s->capture);
  sim_big_unlock();
}

CUresult sim_capture_forbids_stream(sim_stream *stream) {
  if (!stream->capture) return sim_capture_forbids(stream->ctx);
  if (is_invalid(stream->capture)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  invalidate(stream->capture);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sim_capture_forbids_context(sim_context *ctx) {
  if (!__atomic_load_n(&ctx->capturing, __ATOMIC_ACQUIRE)) return sim_capture_forbids(ctx);
  invalidate_in(ctx, false);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static bool draws_legacy(const sim_context *ctx) {
  return __atomic_load_n(&ctx->capturing_blocking, __ATOMIC_ACQUIRE);
}

CUresult sim_capture_forbids_legacy(sim_context *ctx) {
  if (!draws_legacy(ctx)) return CUDA_SUCCESS;
  invalidate_in(ctx, true);
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

/* Returns the capture in which the event was last recorded, or NULL if there was none or it has
 * ended. The caller holds the big lock. */
static sim_capture *capture_of(const sim_event *event) {
  sim_capture *c = captures;
  while (c && c->id != event->capture_id) c = c->next;
  return c;
}

CUresult sim_capture_forbids_event(const sim_event *event) {
  if (!event->capture_id) return sim_capture_forbids(event->ctx);
  sim_big_lock();
  sim_capture *c = capture_of(event);
  if (c) invalidate(c);
  sim_big_unlock();
  return CUDA_ERROR_CAPTURED_EVENT;
}

/* Adds a stream to a capture. The caller holds the big lock. */
static void join(sim_stream *stream, sim_capture *c) {
  stream->capture = c;
  stream->capture_next = c->streams;
  c->streams = stream;
  __atomic_add_fetch(&stream->ctx->capturing, 1, __ATOMIC_RELEASE);
  if (stream->lane_kind == SIM_LANE_BLOCKING)
    __atomic_add_fetch(&stream->ctx->capturing_blocking, 1, __ATOMIC_RELEASE);
}

static void leave(sim_stream *stream) {
  sim_stream **link = &stream->capture->streams;
  while (*link != stream) link = &(*link)->capture_next;
  *link = stream->capture_next;
  stream->capture = NULL;
  __atomic_sub_fetch(&stream->ctx->capturing, 1, __ATOMIC_RELEASE);
  if (stream->lane_kind == SIM_LANE_BLOCKING)
    __atomic_sub_fetch(&stream->ctx->capturing_blocking, 1, __ATOMIC_RELEASE);
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  ENTER("cuThreadExchangeStreamCaptureMode");
  REQUIRE(mode && (unsigned)*mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
  CUstreamCaptureMode before = sim_self.mode;
  sim_self.mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

/* ---- nodes ---- */

static CUresult set_tail(sim_stream *stream, sim_node *const *nodes, size_t count) {
  sim_node **copy = malloc((count ? count : 1) * sizeof *copy);
  REQUIRE(copy, CUDA_ERROR_OUT_OF_MEMORY);
  if (count) memcpy(copy, nodes, count * sizeof *copy);
  free(stream->capture_tail);
  stream->capture_tail = copy;
  stream->capture_tail_count = count;
  return CUDA_SUCCESS;
}

static CUresult add_to_tail(sim_stream *stream, sim_node *const *nodes, size_t count) {
  sim_node **all = malloc((stream->capture_tail_count + count + 1) * sizeof *all);
  REQUIRE(all, CUDA_ERROR_OUT_OF_MEMORY);
  size_t n = 0;
  for (size_t i = 0; i < stream->capture_tail_count; i++) all[n++] = stream->capture_tail[i];
  for (size_t i = 0; i < count; i++) {
    bool there = false;
    for (size_t k = 0; k < n; k++) there |= all[k] == nodes[i];
    if (!there) all[n++] = nodes[i];
  }
  free(stream->capture_tail);
  stream->capture_tail = all;
  stream->capture_tail_count = n;
  return CUDA_SUCCESS;
}

static bool same_tail(const sim_node *node, const sim_stream *stream) {
  bool same = node->from_count == stream->capture_tail_count;
  for (size_t i = 0; i < node->from_count && same; i++) {
    bool found = false;
    for (size_t k = 0; k < stream->capture_tail_count; k++)
      found |= stream->capture_tail[k] == node->from[i];
    same = found;
  }
  return same;
}

/* Returns whether two nodes have the same work. Kernels are compared in detail; other work counts
 * as the same. */
static bool same_work(const sim_work *a, const sim_work *b) {
  if (a->type != CU_GRAPH_NODE_TYPE_KERNEL) return true;
  return a->kernel.function == b->kernel.function &&
         !memcmp(a->kernel.grid, b->kernel.grid, sizeof a->kernel.grid) &&
         !memcmp(a->kernel.block, b->kernel.block, sizeof a->kernel.block) &&
         a->kernel.shared_bytes == b->kernel.shared_bytes &&
         a->kernel.param_bytes == b->kernel.param_bytes &&
         (!a->kernel.param_bytes ||
          !memcmp(a->kernel.params, b->kernel.params, a->kernel.param_bytes));
}

/* Lets the program's callback decide about a node that differs. The callback may call the
 * driver. */
static CUresult ask_about(sim_capture *c, sim_node *node, sim_work *kept) {
  CUresult answer = CUDA_SUCCESS;
  if (c->callback && !same_work(&node->work, kept)) {
    CUgraphNodeParams before = {.type = node->work.type}, now = before;
    sim_params_from_work(&node->work, &before);
    sim_params_from_work(kept, &now);
    SIM_CALL_BACK(answer = c->callback(c->data, (CUgraphNode)node, &before, &now,
                                       CU_GRAPH_RECAPTURE_ELIGIBLE_FOR_UPDATE));
  }
  return answer;
}

static CUresult capture_again(sim_stream *stream, const sim_work *work) {
  sim_capture *c = stream->capture;
  sim_node *node = c->place < c->graph->count ? c->graph->nodes[c->place] : NULL;
  bool fits = node && node->work.type == work->type && same_tail(node, stream) &&
              work->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
              work->type != CU_GRAPH_NODE_TYPE_MEM_FREE;
  sim_work kept = *work;
  bool owned = fits && sim_work_keep(&kept);
  if (!owned || ask_about(c, node, &kept) != CUDA_SUCCESS) {
    if (owned) sim_work_release(&kept);
    invalidate(c);
    return sim_fail(CUDA_ERROR_GRAPH_RECAPTURE_FAILURE);
  }
  c->place++;
  sim_work before = node->work;
  node->work = kept;
  sim_work_release(&before);
  return set_tail(stream, &node, 1);
}

CUresult sim_capture_add(sim_stream *stream, const sim_work *work) {
  sim_capture *c = stream->capture;
  sim_node *node;
  if (is_invalid(c)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (c->again) return capture_again(stream, work);
  TRY(sim_graph_add(c->graph, stream->capture_tail, stream->capture_tail_count, work, &node));
  return set_tail(stream, &node, 1);
}

CUresult sim_capture_launch(sim_stream *stream, sim_graph *graph) {
  sim_graph *child = sim_graph_clone(graph);
  REQUIRE(child, CUDA_ERROR_OUT_OF_MEMORY);
  child->owned = true;
  sim_work work = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = {child}};
  return sim_capture_add(stream, &work);
}

CUresult sim_capture_record(sim_event *event, sim_stream *stream) {
  sim_capture *c = stream->capture;
  if (is_invalid(c)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  size_t count = stream->capture_tail_count;
  sim_node **nodes = malloc((count ? count : 1) * sizeof *nodes);
  REQUIRE(nodes, CUDA_ERROR_OUT_OF_MEMORY);
  if (count) memcpy(nodes, stream->capture_tail, count * sizeof *nodes);
  free(event->capture_nodes);
  event->capture_id = c->id;
  event->capture_nodes = nodes;
  event->capture_node_count = count;
  event->recorded = false;
  return CUDA_SUCCESS;
}

CUresult sim_capture_wait(sim_event *event, sim_stream *stream) {
  sim_big_lock();
  sim_capture *from = capture_of(event);
  sim_big_unlock();
  if (!from) {
    if (!stream->capture) return sim_event_wait_on(event, stream);
    if (is_invalid(stream->capture)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!event->recorded) return CUDA_SUCCESS;
    invalidate(stream->capture); /* a replay could not wait for earlier work */
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (is_invalid(from)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!stream->capture) {
    if (stream->lane_kind == SIM_LANE_LEGACY) {
      invalidate(from);
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    sim_big_lock();
    join(stream, from);
    sim_big_unlock();
    return set_tail(stream, event->capture_nodes, event->capture_node_count);
  }
  if (stream->capture != from) {
    invalidate(stream->capture);
    invalidate(from);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  return add_to_tail(stream, event->capture_nodes, event->capture_node_count);
}

/* ---- begin and end ---- */

static CUresult begin(CUstream handle, CUgraph graph_handle, const CUgraphNode *from, size_t count,
                      CUstreamCaptureMode mode) {
  sim_context *ctx = sim_current();
  sim_stream *stream;
  sim_graph *graph = NULL;
  REQUIRE((unsigned)mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_stream_named(handle, ctx, &stream));
  if (stream->lane_kind == SIM_LANE_LEGACY) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (graph_handle) TRY(sim_graph_of(graph_handle, &graph));
  sim_capture *c = calloc(1, sizeof *c);
  REQUIRE(c, CUDA_ERROR_OUT_OF_MEMORY);
  *c = (sim_capture){.graph = graph ? graph : sim_graph_new(),
                     .origin = stream,
                     .mode = mode,
                     .thread = this_thread(),
                     .id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED),
                     .into_given_graph = graph != NULL};
  sim_big_lock();
  c->next = captures;
  captures = c;
  __atomic_add_fetch(&live_count, 1, __ATOMIC_RELEASE);
  join(stream, c);
  sim_big_unlock();
  return set_tail(stream, (sim_node *const *)from, count);
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  ENTER_CONTEXT("cuStreamBeginCapture");
  (void)ctx;
  return begin(handle, NULL, NULL, 0, mode);
}
CUresult CUDAAPI cuStreamBeginCapture(CUstream handle) {
  ENTER_CONTEXT("cuStreamBeginCapture");
  (void)ctx;
  return begin(handle, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph,
                                             const CUgraphNode *from, const CUgraphEdgeData *data,
                                             size_t count, CUstreamCaptureMode mode) {
  ENTER_CONTEXT("cuStreamBeginCaptureToGraph");
  (void)ctx, (void)data;
  REQUIRE(graph, CUDA_ERROR_INVALID_VALUE);
  return begin(handle, graph, from, count, mode);
}

CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream handle, CUstreamCaptureMode mode,
                                               CUgraph graph_handle,
                                               CUgraphRecaptureCallback callback, void *data) {
  ENTER_CONTEXT("cuStreamBeginRecaptureToGraph");
  sim_stream *stream;
  sim_graph *graph;
  TRY(sim_graph_of(graph_handle, &graph));
  TRY(begin(handle, graph_handle, NULL, 0, mode));
  TRY(sim_stream_of(handle, ctx, &stream));
  stream->capture->again = true;
  stream->capture->callback = callback;
  stream->capture->data = data;
  sim_objects_drop(graph);
  return CUDA_SUCCESS;
}

/* Removes all streams from the capture. Returns true if all of them had been joined to the origin
 * stream. */
static bool leave_streams(sim_capture *c) {
  bool joined = true;
  for (sim_stream *s = c->streams; s; s = s->capture_next)
    for (size_t i = 0; s != c->origin && i < s->capture_tail_count; i++)
      joined &= sim_graph_leads(c->origin->capture_tail, c->origin->capture_tail_count,
                                s->capture_tail[i]);
  while (c->streams) leave(c->streams);
  return joined;
}

static void forget(sim_capture *c) {
  for (sim_capture **link = &captures; *link; link = &(*link)->next) {
    if (*link != c) continue;
    *link = c->next;
    break;
  }
  __atomic_sub_fetch(&live_count, 1, __ATOMIC_RELEASE);
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph *out) {
  ENTER_CONTEXT("cuStreamEndCapture");
  sim_stream *stream;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_stream_named(handle, ctx, &stream));
  sim_capture *c = stream->capture;
  REQUIRE(c, CUDA_ERROR_ILLEGAL_STATE);
  if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != this_thread())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  if (c->origin != stream) {
    invalidate(c);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  sim_big_lock();
  bool joined = leave_streams(c);
  forget(c);
  sim_big_unlock();
  bool short_of = c->again && c->place < c->graph->count;
  CUresult result = c->again && (is_invalid(c) || short_of) ? CUDA_ERROR_GRAPH_RECAPTURE_FAILURE
                    : is_invalid(c)                         ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                    : joined                                ? CUDA_SUCCESS
                                                            : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *out = result == CUDA_SUCCESS ? (CUgraph)c->graph : NULL;
  if (result != CUDA_SUCCESS && !c->into_given_graph) sim_graph_free(c->graph);
  free(c);
  return result;
}

/* Invalidates the capture of a stream that is destroyed while it captures. The caller holds the big
 * lock. */
void sim_capture_stream_gone(sim_stream *stream) {
  sim_capture *c = stream->capture;
  if (!c) return;
  invalidate(c);
  if (c->origin != stream) {
    leave(stream);
    return;
  }
  leave_streams(c);
  forget(c);
  if (!c->into_given_graph) sim_graph_free(c->graph);
  free(c);
}

/* ---- queries ---- */

static CUresult status_of(CUstream handle, sim_context *ctx, sim_stream **stream,
                          CUstreamCaptureStatus *status) {
  TRY(sim_stream_named(handle, ctx, stream));
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if ((*stream)->lane_kind == SIM_LANE_LEGACY) {
    if (draws_legacy((*stream)->ctx)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  } else if ((*stream)->capture) {
    *status = is_invalid((*stream)->capture) ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
  ENTER_CONTEXT("cuStreamIsCapturing");
  sim_stream *stream;
  REQUIRE(status, CUDA_ERROR_INVALID_VALUE);
  return status_of(handle, ctx, &stream, status);
}

static CUresult info(sim_context *ctx, CUstream handle, CUstreamCaptureStatus *status,
                     cuuint64_t *id, CUgraph *graph, const CUgraphNode **from,
                     const CUgraphEdgeData **data, size_t *count) {
  static const CUgraphEdgeData plain[64];
  sim_stream *stream;
  REQUIRE(status, CUDA_ERROR_INVALID_VALUE);
  TRY(status_of(handle, ctx, &stream, status));
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = stream->capture->id;
  if (graph) *graph = (CUgraph)stream->capture->graph;
  if (from) *from = (const CUgraphNode *)stream->capture_tail;
  if (data) *data = stream->capture_tail_count <= 64 ? plain : NULL;
  if (count) *count = stream->capture_tail_count;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status,
                                        cuuint64_t *id) {
  ENTER_CONTEXT("cuStreamGetCaptureInfo");
  return info(ctx, handle, status, id, NULL, NULL, NULL, NULL);
}
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status,
                                           cuuint64_t *id, CUgraph *graph, const CUgraphNode **from,
                                           size_t *count) {
  ENTER_CONTEXT("cuStreamGetCaptureInfo");
  return info(ctx, handle, status, id, graph, from, NULL, count);
}
CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status,
                                           cuuint64_t *id, CUgraph *graph, const CUgraphNode **from,
                                           const CUgraphEdgeData **data, size_t *count) {
  ENTER_CONTEXT("cuStreamGetCaptureInfo");
  return info(ctx, handle, status, id, graph, from, data, count);
}

static CUresult update(sim_context *ctx, CUstream handle, CUgraphNode *from, size_t count,
                       unsigned flags) {
  sim_stream *stream;
  REQUIRE(flags <= CU_STREAM_SET_CAPTURE_DEPENDENCIES && (from || !count),
          CUDA_ERROR_INVALID_VALUE);
  TRY(sim_stream_named(handle, ctx, &stream));
  REQUIRE(stream->capture, CUDA_ERROR_ILLEGAL_STATE);
  if (is_invalid(stream->capture)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  sim_node *const *nodes = (sim_node *const *)from;
  for (size_t i = 0; i < count; i++)
    REQUIRE(sim_handle_is(nodes[i], SIM_NODE) && nodes[i]->graph == stream->capture->graph,
            CUDA_ERROR_INVALID_VALUE);
  return flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES ? set_tail(stream, nodes, count)
                                                     : add_to_tail(stream, nodes, count);
}
CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *from, size_t count,
                                                   unsigned int flags) {
  ENTER_CONTEXT("cuStreamUpdateCaptureDependencies");
  return update(ctx, handle, from, count, flags);
}
CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *from,
                                                      const CUgraphEdgeData *data, size_t count,
                                                      unsigned int flags) {
  ENTER_CONTEXT("cuStreamUpdateCaptureDependencies");
  (void)data;
  return update(ctx, handle, from, count, flags);
}
