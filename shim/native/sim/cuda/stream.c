/* Streams: handles, default streams, waits and attributes. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/work.h"

/* ---- handles ---- */

/* Returns the hardware queue for a new stream. A context's streams use its queues in rotation. */
static uint8_t next_queue(sim_context *ctx) {
  uint32_t of_context = ctx->next_queue++ % sim_here.connections;
  return (uint8_t)(1 + (ctx->number * sim_here.connections + of_context) % SIM_QUEUES);
}

sim_stream *sim_stream_new(sim_context *ctx, unsigned flags, int priority, uint32_t lane_kind) {
  sim_stream *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->ctx = ctx;
  s->flags = flags;
  s->priority = priority;
  s->lane_kind = lane_kind;
  s->lane = ctx->number << SIM_STREAM_BITS | (++ctx->next_stream & ((1u << SIM_STREAM_BITS) - 1));
  s->queue = next_queue(ctx);
  s->id = sim_next_id();
  s->next = ctx->streams;
  ctx->streams = s;
  sim_handle_add(s, SIM_STREAM);
  return s;
}

/* Frees a stream's handle; its work continues. The caller holds the big lock. */
void sim_stream_drop(sim_stream *stream) {
  sim_capture_stream_gone(stream);
  sim_handle_remove(stream);
  for (sim_stream **link = &stream->ctx->streams; *link; link = &(*link)->next) {
    if (*link != stream) continue;
    *link = stream->next;
    break;
  }
  free(stream->capture_tail);
  free(stream);
}

static sim_stream *thread_stream(sim_context *ctx) {
  int at = -1;
  for (int i = 0; i < 8; i++) {
    if (sim_self.default_streams[i].ctx_id == ctx->id) return sim_self.default_streams[i].stream;
    if (at < 0 && !sim_self.default_streams[i].ctx_id) at = i;
  }
  if (at < 0) at = (int)(ctx->id % 8);
  sim_big_lock();
  sim_stream *s = sim_stream_new(ctx, 0, 0, SIM_LANE_BLOCKING);
  sim_big_unlock();
  if (s) {
    sim_self.default_streams[at].ctx_id = ctx->id;
    sim_self.default_streams[at].stream = s;
  }
  return s;
}

CUresult sim_stream_named(CUstream handle, sim_context *ctx, sim_stream **stream) {
  bool per_thread = handle == CU_STREAM_PER_THREAD || (!handle && sim_self.per_thread);
  if (per_thread) {
    *stream = thread_stream(ctx);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!handle || handle == CU_STREAM_LEGACY) {
    *stream = ctx->legacy;
    return CUDA_SUCCESS;
  }
  if (!sim_handle_is(handle, SIM_STREAM)) return CUDA_ERROR_INVALID_HANDLE;
  *stream = (sim_stream *)handle;
  return CUDA_SUCCESS;
}

CUresult sim_stream_of(CUstream handle, sim_context *ctx, sim_stream **stream) {
  TRY(sim_stream_named(handle, ctx, stream));
  return *stream == ctx->legacy ? sim_capture_forbids_legacy(ctx) : CUDA_SUCCESS;
}

/* ---- work ---- */

CUresult sim_submit_work(sim_stream *stream, sim_op *op, sim_ref *ref) {
  sim_gpu *gpu = stream->ctx->gpu;
  sim_machine *m = sim_here.machine;
  op->stream = stream->lane;
  op->lane_kind = (uint8_t)stream->lane_kind;
  op->queue = stream->queue;
  if (!op->width) op->width = 1;
  if ((op->kind == SIM_KERNEL || op->kind == SIM_COPY) && !op->duration_ns) op->duration_ns = 1;
  for (;;) {
    switch (sim_submit(m, gpu->device, gpu->client, op, ref)) {
      case SIM_SUBMITTED:
        sim_write_values(gpu);
        return CUDA_SUCCESS;
      case SIM_FULL:
        sim_wait_room(m, gpu->device, gpu->client, stream->lane);
        break;
      case SIM_FAILED:
        return sim_context_error(stream->ctx);
      case SIM_GONE:
        __atomic_store_n(&stream->ctx->sticky, CUDA_ERROR_DEVICE_UNAVAILABLE, __ATOMIC_RELAXED);
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
  }
}

CUresult sim_wait_on(sim_stream *lane, const sim_ref *ref) {
  if (sim_done_quick(sim_here.machine, ref)) return CUDA_SUCCESS;
  sim_op op = {.kind = SIM_WAIT,
               .target_device = ref->device,
               .target_client = ref->client,
               .target_slot = ref->slot,
               .target_seq = ref->seq};
  sim_ref ignored;
  return sim_submit_work(lane, &op, &ignored);
}

sim_ref sim_tail_of(const sim_stream *lane) {
  sim_gpu *gpu = lane->ctx->gpu;
  return sim_stream_tail(sim_here.machine, gpu->device, gpu->client, lane->lane);
}

CUresult sim_wait_for(sim_stream *stream) {
  sim_gpu *gpu = stream->ctx->gpu;
  if (stream->lane_kind != SIM_LANE_LEGACY) {
    sim_wait_stream(sim_here.machine, gpu->device, gpu->client, stream->lane);
    sim_write_values(gpu);
    return sim_context_error(stream->ctx);
  }
  /* The legacy stream stands for all blocking streams of its context. */
  sim_big_lock();
  size_t count = 0;
  for (sim_stream *s = stream->ctx->streams; s; s = s->next) count++;
  uint32_t *lanes = malloc(count * sizeof *lanes);
  size_t n = 0;
  for (sim_stream *s = stream->ctx->streams; lanes && s; s = s->next)
    if (s->lane_kind != SIM_LANE_FREE) lanes[n++] = s->lane;
  sim_big_unlock();
  for (size_t i = 0; i < n; i++)
    sim_wait_stream(sim_here.machine, gpu->device, gpu->client, lanes[i]);
  free(lanes);
  sim_write_values(gpu);
  return sim_context_error(stream->ctx);
}

CUresult sim_synchronize_context(sim_context *ctx) {
  sim_wait_all(sim_here.machine, ctx->gpu->device, ctx->gpu->client);
  sim_write_values(ctx->gpu);
  sim_pools_settle(ctx->gpu);
  return sim_context_error(ctx);
}

/* ---- calls ---- */

static CUresult create(CUstream *out, unsigned flags, int priority) {
  ENTER_CONTEXT("cuStreamCreate");
  REQUIRE(out && !(flags & ~1u), CUDA_ERROR_INVALID_VALUE);
  if (priority > 0) priority = 0;
  if (priority < -5) priority = -5;
  sim_big_lock();
  sim_stream *s = sim_stream_new(
      ctx, flags, priority, flags & CU_STREAM_NON_BLOCKING ? SIM_LANE_FREE : SIM_LANE_BLOCKING);
  sim_big_unlock();
  REQUIRE(s, CUDA_ERROR_OUT_OF_MEMORY);
  *out = (CUstream)s;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamCreate(CUstream *out, unsigned int flags) { return create(out, flags, 0); }
CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
  return create(out, flags, priority);
}

static CUresult destroy(CUstream handle) {
  ENTER_CONTEXT("cuStreamDestroy");
  (void)ctx;
  REQUIRE(sim_handle_is(handle, SIM_STREAM), CUDA_ERROR_INVALID_HANDLE);
  sim_big_lock();
  sim_stream_drop((sim_stream *)handle);
  sim_big_unlock();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamDestroy_v2(CUstream handle) { return destroy(handle); }
CUresult CUDAAPI cuStreamDestroy(CUstream handle) { return destroy(handle); }

#define ENTER_STREAM(call) \
  ENTER_CONTEXT(call);     \
  sim_stream *stream;      \
  TRY(sim_stream_of(handle, ctx, &stream))
#define ENTER_NAMED_STREAM(call) \
  ENTER_CONTEXT(call);           \
  sim_stream *stream;            \
  TRY(sim_stream_named(handle, ctx, &stream))

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
  ENTER_STREAM("cuStreamSynchronize");
  TRY(sim_capture_forbids_stream(stream));
  CUresult result = sim_wait_for(stream);
  sim_pools_settle(stream->ctx->gpu);
  return result;
}

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
  ENTER_STREAM("cuStreamQuery");
  TRY(sim_capture_forbids_stream(stream));
  sim_gpu *gpu = stream->ctx->gpu;
  bool idle = true;
  if (stream->lane_kind == SIM_LANE_LEGACY) {
    sim_big_lock();
    for (sim_stream *s = stream->ctx->streams; s && idle; s = s->next)
      if (s->lane_kind != SIM_LANE_FREE)
        idle = sim_stream_idle(sim_here.machine, gpu->device, gpu->client, s->lane);
    sim_big_unlock();
  } else {
    idle = sim_stream_idle(sim_here.machine, gpu->device, gpu->client, stream->lane);
  }
  sim_write_values(gpu);
  sim_spend(gpu->profile->query_ns);
  TRY(sim_context_error(stream->ctx));
  return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int *priority) {
  ENTER_NAMED_STREAM("cuStreamGetPriority");
  REQUIRE(priority, CUDA_ERROR_INVALID_VALUE);
  *priority = stream->priority;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetFlags(CUstream handle, unsigned int *flags) {
  ENTER_NAMED_STREAM("cuStreamGetFlags");
  REQUIRE(flags, CUDA_ERROR_INVALID_VALUE);
  *flags = stream->flags;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetId(CUstream handle, unsigned long long *id) {
  ENTER_NAMED_STREAM("cuStreamGetId");
  REQUIRE(id, CUDA_ERROR_INVALID_VALUE);
  *id = stream->id;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext *out) {
  ENTER_NAMED_STREAM("cuStreamGetCtx");
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(!sim_fault_hits_named(sim_here.machine, ctx->gpu->device, SIM_FAULT_OUT_OF_MEMORY,
                                sim_self.call),
          CUDA_ERROR_OUT_OF_MEMORY);
  *out = (CUcontext)stream->ctx;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetCtx_v2(CUstream handle, CUcontext *out, CUgreenCtx *green) {
  ENTER_NAMED_STREAM("cuStreamGetCtx");
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  bool is_green = stream->ctx->green_of;
  *out = (CUcontext)sim_home(stream->ctx);
  if (green) *green = is_green ? (CUgreenCtx)stream->ctx : NULL;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *green) {
  ENTER_NAMED_STREAM("cuStreamGetGreenCtx");
  REQUIRE(green, CUDA_ERROR_INVALID_VALUE);
  *green = stream->ctx->green_of ? (CUgreenCtx)stream->ctx : NULL;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetDevice(CUstream handle, CUdevice *device) {
  ENTER_NAMED_STREAM("cuStreamGetDevice");
  REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
  *device = stream->ctx->gpu->ordinal;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute,
                                      CUstreamAttrValue *value) {
  ENTER_NAMED_STREAM("cuStreamGetAttribute");
  REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
  memset(value, 0, sizeof *value);
  if (attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)
    value->syncPolicy = CU_SYNC_POLICY_AUTO;
  if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = stream->priority;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute,
                                      const CUstreamAttrValue *value) {
  ENTER_NAMED_STREAM("cuStreamSetAttribute");
  (void)attribute;
  REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
  return CUDA_SUCCESS; /* hints, which nothing in the simulation depends on */
}
CUresult CUDAAPI cuStreamCopyAttributes(CUstream handle, CUstream from) {
  ENTER_NAMED_STREAM("cuStreamCopyAttributes");
  sim_stream *other;
  return sim_stream_named(from, ctx, &other);
}
CUresult CUDAAPI cuStreamAttachMemAsync(CUstream handle, CUdeviceptr pointer, size_t bytes,
                                        unsigned int flags) {
  ENTER_STREAM("cuStreamAttachMemAsync");
  (void)bytes, (void)flags;
  if (stream->capture) return sim_capture_forbids_stream(stream);
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(pointer);
  bool managed = alloc && sim_is_managed(alloc);
  sim_big_unlock();
  return managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void *user_data) {
  ENTER_STREAM("cuLaunchHostFunc");
  REQUIRE(function, CUDA_ERROR_INVALID_VALUE);
  sim_work work = {.type = CU_GRAPH_NODE_TYPE_HOST,
                   .host = {.function = function, .user_data = user_data}};
  return sim_issue(stream, &work);
}
CUresult CUDAAPI cuLaunchHostFunc_v2(CUstream handle, CUhostFn function, void *user_data,
                                     unsigned int sync_mode) {
  ENTER_STREAM("cuLaunchHostFunc");
  REQUIRE(function && sync_mode <= 1, CUDA_ERROR_INVALID_VALUE);
  sim_work work = {.type = CU_GRAPH_NODE_TYPE_HOST,
                   .host = {.function = function, .user_data = user_data}};
  return sim_issue(stream, &work);
}
CUresult CUDAAPI cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *user_data,
                                     unsigned int flags) {
  ENTER_STREAM("cuStreamAddCallback");
  REQUIRE(callback && !flags, CUDA_ERROR_INVALID_VALUE);
  if (stream->capture) return sim_capture_forbids_stream(stream);
  sim_work work = {.type = CU_GRAPH_NODE_TYPE_HOST,
                   .host = {.callback = callback, .user_data = user_data}};
  return sim_run(stream, &work);
}
