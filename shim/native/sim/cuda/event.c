/* Events are recorded in streams. Their times are in ticks of the device's clock. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/work.h"

CUresult sim_event_of(CUevent handle, sim_event **event) {
  if (!sim_handle_is(handle, SIM_EVENT)) return CUDA_ERROR_INVALID_HANDLE;
  *event = (sim_event *)handle;
  return CUDA_SUCCESS;
}

static sim_cell *cell_of(const sim_event *e) {
  return &sim_area_of(sim_here.machine, e->device, e->client)->cells[e->cell];
}

CUresult CUDAAPI cuEventCreate(CUevent *out, unsigned int flags) {
  ENTER_CONTEXT("cuEventCreate");
  REQUIRE(out && !(flags & ~7u), CUDA_ERROR_INVALID_VALUE);
  REQUIRE(!(flags & CU_EVENT_INTERPROCESS) || flags & CU_EVENT_DISABLE_TIMING,
          CUDA_ERROR_INVALID_VALUE);
  REQUIRE(!sim_fault_hits_named(sim_here.machine, ctx->gpu->device, SIM_FAULT_OUT_OF_MEMORY,
                                sim_self.call),
          CUDA_ERROR_OUT_OF_MEMORY);
  sim_event *e = calloc(1, sizeof *e);
  REQUIRE(e, CUDA_ERROR_OUT_OF_MEMORY);
  *e = (sim_event){.ctx = ctx,
                   .gpu = ctx->gpu,
                   .flags = flags,
                   .device = ctx->gpu->device,
                   .client = ctx->gpu->client};
  e->cell = sim_cell_allocate(sim_here.machine, e->device, e->client);
  if (e->cell == UINT32_MAX) {
    free(e);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_handle_add(e, SIM_EVENT);
  *out = (CUevent)e;
  return CUDA_SUCCESS;
}

static CUresult destroy(CUevent handle) {
  ENTER("cuEventDestroy");
  sim_event *e;
  TRY(sim_event_of(handle, &e));
  sim_handle_remove(e);
  if (!e->imported) sim_cell_release(sim_here.machine, e->device, e->client, e->cell);
  free(e->capture_nodes);
  free(e);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventDestroy_v2(CUevent handle) { return destroy(handle); }
CUresult CUDAAPI cuEventDestroy(CUevent handle) { return destroy(handle); }

CUresult sim_event_record_on(sim_event *e, sim_stream *stream) {
  REQUIRE(e->gpu == stream->ctx->gpu && !e->imported, CUDA_ERROR_INVALID_HANDLE);
  sim_op op = {.kind = SIM_MARK, .cell = e->cell};
  sim_ref ref;
  TRY(sim_submit_work(stream, &op, &ref));
  e->recorded = true;
  e->capture_id = 0;
  return CUDA_SUCCESS;
}

CUresult sim_event_wait_on(sim_event *e, sim_stream *stream) {
  const sim_cell *cell = cell_of(e);
  sim_op op = {
      .kind = SIM_WAIT, .target_device = (uint16_t)e->device, .target_client = (uint16_t)e->client};
  op.target_seq = __atomic_load_n(&cell->seq, __ATOMIC_ACQUIRE);
  op.target_slot = (uint16_t)cell->slot;
  if (!op.target_seq || __atomic_load_n(&cell->done_seq, __ATOMIC_ACQUIRE) == op.target_seq)
    return CUDA_SUCCESS;
  sim_ref ref;
  return sim_submit_work(stream, &op, &ref);
}

static CUresult record(CUevent handle, CUstream stream_handle, unsigned flags) {
  ENTER_CONTEXT("cuEventRecord");
  sim_event *e;
  sim_stream *stream;
  REQUIRE(!(flags & ~1u), CUDA_ERROR_INVALID_VALUE);
  TRY(sim_event_of(handle, &e));
  TRY(sim_stream_of(stream_handle, ctx, &stream));
  CUresult result;
  if (stream->capture && flags & CU_EVENT_RECORD_EXTERNAL) {
    sim_work work = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = {e}};
    result = sim_capture_add(stream, &work);
  } else if (stream->capture) {
    result = sim_capture_record(e, stream);
  } else {
    result = sim_event_record_on(e, stream);
  }
  sim_spend(ctx->gpu->profile->event_record_ns);
  return result;
}
CUresult CUDAAPI cuEventRecord(CUevent handle, CUstream stream) {
  return record(handle, stream, 0);
}
CUresult CUDAAPI cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned int flags) {
  return record(handle, stream, flags);
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
  ENTER_CONTEXT("cuStreamWaitEvent");
  sim_event *e;
  sim_stream *stream;
  REQUIRE(!(flags & ~1u), CUDA_ERROR_INVALID_VALUE);
  TRY(sim_event_of(handle, &e));
  TRY(sim_stream_of(stream_handle, ctx, &stream));
  CUresult result;
  if (stream->capture && flags & CU_EVENT_WAIT_EXTERNAL) {
    sim_work work = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = {e}};
    result = sim_capture_add(stream, &work);
  } else if (stream->capture || e->capture_id) {
    result = sim_capture_wait(e, stream);
  } else {
    result = sim_event_wait_on(e, stream);
  }
  sim_spend(ctx->gpu->profile->stream_op_ns);
  return result;
}

static bool complete(const sim_event *e) {
  const sim_cell *cell = cell_of(e);
  uint64_t seq = __atomic_load_n(&cell->seq, __ATOMIC_ACQUIRE);
  if (!seq || __atomic_load_n(&cell->done_seq, __ATOMIC_ACQUIRE) == seq) return true;
  sim_ref ref = {seq, (uint16_t)e->device, (uint16_t)e->client, (uint16_t)cell->slot};
  return sim_done(sim_here.machine, &ref);
}

static CUresult event_error(const sim_event *e) {
  return e->ctx->alive ? sim_context_error(e->ctx) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult CUDAAPI cuEventQuery(CUevent handle) {
  ENTER("cuEventQuery");
  sim_event *e;
  TRY(sim_event_of(handle, &e));
  TRY(sim_capture_forbids_event(e));
  bool done = complete(e);
  sim_write_values(e->gpu);
  sim_spend(e->gpu->profile->query_ns);
  TRY(event_error(e));
  return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
  ENTER("cuEventSynchronize");
  sim_event *e;
  TRY(sim_event_of(handle, &e));
  TRY(sim_capture_forbids_event(e));
  const sim_cell *cell = cell_of(e);
  sim_ref ref = {__atomic_load_n(&cell->seq, __ATOMIC_ACQUIRE), (uint16_t)e->device,
                 (uint16_t)e->client, (uint16_t)cell->slot};
  if (ref.seq && !complete(e)) sim_wait(sim_here.machine, &ref);
  sim_write_values(e->gpu);
  sim_pools_settle(e->gpu);
  return event_error(e);
}

/* Returns the event's time in ticks of the device's clock, which has its own zero. */
static uint64_t ticks(const sim_event *e) {
  return cell_of(e)->time_ns / e->gpu->profile->event_tick_ns;
}

static CUresult elapsed(float *milliseconds, CUevent from_handle, CUevent to_handle) {
  ENTER("cuEventElapsedTime");
  sim_event *from, *to;
  REQUIRE(milliseconds, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_event_of(from_handle, &from));
  TRY(sim_event_of(to_handle, &to));
  TRY(sim_capture_forbids_event(from));
  TRY(sim_capture_forbids_event(to));
  REQUIRE(from->recorded && to->recorded && from->gpu == to->gpu, CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(!((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE);
  TRY(event_error(to));
  bool done = complete(from) && complete(to);
  sim_spend(from->gpu->profile->query_ns);
  if (!done) return CUDA_ERROR_NOT_READY;
  *milliseconds = (float)((double)(int64_t)(ticks(to) - ticks(from)) *
                          (double)from->gpu->profile->event_tick_ns / 1e6);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
  return elapsed(ms, from, to);
}
CUresult CUDAAPI cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to) {
  return elapsed(ms, from, to);
}
