/* Green contexts: parts of a device's multiprocessors. Each is a context of its own that uses the
 * functions of the device's primary context. Kernels that would fill the device take only the green
 * context's multiprocessors and run longer in proportion, unless a rule says how long they take.
 * Memory allocated in a green context is freed with it. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/core.h"

/* Descriptor made by cuDevResourceGenerateDesc. */
typedef struct description {
  const sim_gpu *gpu;
  unsigned sms;
  struct description *next;
} description;
/* guarded by the big lock; never freed, because there is no call for it */
static description *descriptions;

/* The device of a resource, with a magic number that identifies it, stored in bytes that programs
 * do not use. */
typedef struct origin {
  uint32_t magic, ordinal;
} origin;
#define MAGIC 0x6e657267u

static unsigned least_part(const sim_gpu *gpu) { return gpu->profile->compute_major >= 9 ? 8 : 2; }

static void fill(const sim_gpu *gpu, unsigned sms, CUdevResource *out) {
  origin of = {MAGIC, (uint32_t)gpu->ordinal};
  memset(out, 0, sizeof *out);
  out->type = CU_DEV_RESOURCE_TYPE_SM;
  memcpy(out->_internal_padding, &of, sizeof of);
  out->sm.smCount = sms;
  out->sm.minSmPartitionSize = least_part(gpu);
  out->sm.smCoscheduledAlignment = least_part(gpu);
}

static CUresult gpu_of(const CUdevResource *resource, sim_gpu **gpu) {
  origin of;
  memcpy(&of, resource->_internal_padding, sizeof of);
  REQUIRE(resource->type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
  REQUIRE(of.magic == MAGIC, CUDA_ERROR_INVALID_VALUE);
  return sim_gpu_of((CUdevice)of.ordinal, gpu);
}

static CUresult give(const sim_gpu *gpu, unsigned sms, CUdevResource *out, CUdevResourceType type) {
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
  fill(gpu, sms ? sms : gpu->profile->sm_count, out);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetDevResource(CUdevice device, CUdevResource *out,
                                        CUdevResourceType type) {
  ENTER("cuDeviceGetDevResource");
  sim_gpu *gpu;
  TRY(sim_gpu_of(device, &gpu));
  return give(gpu, 0, out, type);
}

static CUresult green_of(CUgreenCtx handle, sim_context **ctx) {
  *ctx = (sim_context *)handle;
  return sim_handle_is(*ctx, SIM_CONTEXT) && (*ctx)->green_of ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult CUDAAPI cuCtxGetDevResource(CUcontext handle, CUdevResource *out, CUdevResourceType type) {
  ENTER("cuCtxGetDevResource");
  const sim_context *ctx = handle ? (sim_context *)handle : sim_current();
  REQUIRE(sim_handle_is(ctx, SIM_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
  return give(ctx->gpu, ctx->sms, out, type);
}
CUresult CUDAAPI cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource *out,
                                          CUdevResourceType type) {
  ENTER("cuGreenCtxGetDevResource");
  sim_context *ctx;
  TRY(green_of(handle, &ctx));
  return give(ctx->gpu, ctx->sms, out, type);
}

CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource *out, unsigned int *count,
                                             const CUdevResource *input, CUdevResource *rest,
                                             unsigned int flags, unsigned int least) {
  ENTER("cuDevSmResourceSplitByCount");
  sim_gpu *gpu;
  REQUIRE(count && input && flags <= 3, CUDA_ERROR_INVALID_VALUE);
  TRY(gpu_of(input, &gpu));
  REQUIRE(least <= input->sm.smCount, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  unsigned step = flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING ? 2 : least_part(gpu);
  unsigned each = least < step ? step : (least + step - 1) / step * step;
  unsigned most = input->sm.smCount / each;
  if (!out) {
    *count = most;
    return CUDA_SUCCESS;
  }
  if (*count > most) *count = most;
  for (unsigned i = 0; i < *count; i++) fill(gpu, each, &out[i]);
  unsigned left = input->sm.smCount - *count * each;
  if (rest && left) fill(gpu, left, rest);
  if (rest && !left) memset(rest, 0, sizeof *rest);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources,
                                           unsigned int count) {
  ENTER("cuDevResourceGenerateDesc");
  sim_gpu *gpu = NULL;
  unsigned sms = 0;
  REQUIRE(out && resources && count, CUDA_ERROR_INVALID_VALUE);
  for (unsigned i = 0; i < count; i++) {
    sim_gpu *before = gpu;
    TRY(gpu_of(&resources[i], &gpu));
    REQUIRE(!before || before == gpu, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    sms += resources[i].sm.smCount;
  }
  REQUIRE(sms && sms <= gpu->profile->sm_count, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  description *d = calloc(1, sizeof *d);
  REQUIRE(d, CUDA_ERROR_OUT_OF_MEMORY);
  *d = (description){.gpu = gpu, .sms = sms};
  sim_big_lock();
  d->next = descriptions;
  descriptions = d;
  sim_big_unlock();
  *out = (CUdevResourceDesc)d;
  return CUDA_SUCCESS;
}

static const description *described(CUdevResourceDesc handle) {
  sim_big_lock();
  const description *d = descriptions;
  while (d && (CUdevResourceDesc)d != handle) d = d->next;
  sim_big_unlock();
  return d;
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc handle, CUdevice device,
                                  unsigned int flags) {
  ENTER("cuGreenCtxCreate");
  sim_gpu *gpu;
  CUcontext primary;
  sim_context *ctx;
  const description *d = described(handle);
  REQUIRE(out && d && flags <= CU_GREEN_CTX_DEFAULT_STREAM, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  REQUIRE(d->gpu == gpu, CUDA_ERROR_INVALID_VALUE);
  TRY(cuDevicePrimaryCtxRetain(&primary, device));
  sim_big_lock();
  CUresult result = sim_context_make(gpu, gpu->primary_flags, false, &ctx);
  if (result == CUDA_SUCCESS) {
    ctx->green_of = (sim_context *)primary;
    ctx->sms = d->sms;
  }
  sim_big_unlock();
  if (result != CUDA_SUCCESS) {
    cuDevicePrimaryCtxRelease(device);
    return result;
  }
  *out = (CUgreenCtx)ctx;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx handle) {
  ENTER("cuGreenCtxDestroy");
  sim_context *ctx;
  TRY(green_of(handle, &ctx));
  if (sim_current() == ctx) sim_self.depth--;
  sim_context_destroy(ctx);
  return cuDevicePrimaryCtxRelease(ctx->gpu->ordinal);
}

CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx handle) {
  ENTER("cuCtxFromGreenCtx");
  sim_context *ctx;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(green_of(handle, &ctx));
  *out = (CUcontext)ctx;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxGetId(CUgreenCtx handle, unsigned long long *id) {
  ENTER("cuGreenCtxGetId");
  sim_context *ctx;
  REQUIRE(id, CUDA_ERROR_INVALID_VALUE);
  TRY(green_of(handle, &ctx));
  *id = ctx->id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx handle, unsigned int flags,
                                        int priority) {
  ENTER("cuGreenCtxStreamCreate");
  sim_context *ctx;
  REQUIRE(out && flags == CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
  TRY(green_of(handle, &ctx));
  sim_big_lock();
  sim_stream *stream = sim_stream_new(ctx, flags, priority > 0 ? 0 : priority, SIM_LANE_FREE);
  sim_big_unlock();
  REQUIRE(stream, CUDA_ERROR_OUT_OF_MEMORY);
  *out = (CUstream)stream;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetDevResource(CUstream handle, CUdevResource *out,
                                        CUdevResourceType type) {
  ENTER_CONTEXT("cuStreamGetDevResource");
  sim_stream *stream;
  TRY(sim_stream_named(handle, ctx, &stream));
  return give(stream->ctx->gpu, stream->ctx->sms, out, type);
}

/* ---- events of whole contexts ---- */

/* Records an event after all work of the context's streams, using a new stream that waits for
 * them. */
static CUresult record(sim_context *ctx, CUevent handle) {
  sim_event *event;
  TRY(sim_event_of(handle, &event));
  TRY(sim_capture_forbids_context(ctx));
  sim_big_lock();
  sim_stream *all = sim_stream_new(ctx, CU_STREAM_NON_BLOCKING, 0, SIM_LANE_FREE);
  size_t count = 0;
  for (sim_stream *s = ctx->streams; s; s = s->next) count++;
  sim_ref *tails = all ? calloc(count, sizeof *tails) : NULL;
  count = 0;
  for (sim_stream *s = ctx->streams; tails && s; s = s->next)
    if (s != all) tails[count++] = sim_tail_of(s);
  sim_big_unlock();
  CUresult result = tails ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  for (size_t i = 0; tails && i < count && result == CUDA_SUCCESS; i++)
    if (tails[i].seq) result = sim_wait_on(all, &tails[i]);
  if (result == CUDA_SUCCESS) result = sim_event_record_on(event, all);
  free(tails);
  sim_big_lock();
  if (all) sim_stream_drop(all); /* the dropped stream still finishes its work */
  sim_big_unlock();
  return result;
}

/* Makes all existing streams of the context wait for an event. Streams created later do not
 * wait. */
static CUresult wait(sim_context *ctx, CUevent handle) {
  sim_event *event;
  TRY(sim_event_of(handle, &event));
  TRY(sim_capture_forbids_context(ctx));
  if (event->capture_id) TRY(sim_capture_forbids_event(event));
  sim_stream *streams[256];
  size_t count = 0;
  sim_big_lock();
  for (sim_stream *s = ctx->streams; s && count < 256; s = s->next) streams[count++] = s;
  sim_big_unlock();
  for (size_t i = 0; i < count; i++) TRY(sim_event_wait_on(event, streams[i]));
  return CUDA_SUCCESS;
}

#define CONTEXT_EVENTS(Verb, act)                                              \
  CUresult CUDAAPI cuCtx##Verb##Event(CUcontext handle, CUevent event) {       \
    ENTER("cuCtx" #Verb "Event");                                              \
    REQUIRE(sim_handle_is(handle, SIM_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);   \
    return act((sim_context *)handle, event);                                  \
  }                                                                            \
  CUresult CUDAAPI cuGreenCtx##Verb##Event(CUgreenCtx handle, CUevent event) { \
    ENTER("cuGreenCtx" #Verb "Event");                                         \
    sim_context *ctx;                                                          \
    TRY(green_of(handle, &ctx));                                               \
    return act(ctx, event);                                                    \
  }
CONTEXT_EVENTS(Record, record)
CONTEXT_EVENTS(Wait, wait)
