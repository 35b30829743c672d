/* Kernel launches, with the checks that a driver makes. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"
#include "sim/cuda/work.h"

/* ---- parameters ---- */

#define MAX_PARAMS 1024
#define MAX_PARAM_BYTES 32764

static CUresult from_extra(void **extra, sim_work *work) {
  const void *buffer = NULL;
  size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[1];
    else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
      bytes = *(size_t *)extra[1];
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  REQUIRE(bytes <= MAX_PARAM_BYTES && (buffer || !bytes), CUDA_ERROR_INVALID_VALUE);
  if (bytes) memcpy(work->kernel.params, buffer, bytes);
  work->kernel.param_bytes = bytes;
  return CUDA_SUCCESS;
}

static CUresult take_params(const sim_kernel *k, void **params, void **extra, sim_work *work) {
  sim_thread *self = &sim_self;
  if (!self->param_bytes) self->param_bytes = malloc(MAX_PARAM_BYTES + 8);
  if (!self->param_list) self->param_list = malloc(MAX_PARAMS * sizeof *self->param_list);
  REQUIRE(self->param_bytes && self->param_list, CUDA_ERROR_OUT_OF_MEMORY);
  char *param_bytes = work->kernel.params = self->param_bytes;
  void **param_list = work->kernel.param_list = self->param_list;
  memset(param_bytes, 0, 8);
  REQUIRE(!(params && extra), CUDA_ERROR_INVALID_VALUE);
  if (extra) TRY(from_extra(extra, work));
  /* Without a description in the image, the first parameter counts as 8 bytes, so that rules can
   * use it. */
  if (!k->params) {
    if (params && params[0]) memcpy(param_bytes, params[0], 4);
    return CUDA_SUCCESS;
  }
  REQUIRE(k->param_count <= MAX_PARAMS && k->param_bytes <= MAX_PARAM_BYTES,
          CUDA_ERROR_INVALID_VALUE);
  if (k->param_count && !params && !extra) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t i = 0; i < k->param_count; i++) {
    param_list[i] = param_bytes + k->params[i].offset;
    if (params) memcpy(param_list[i], params[i], k->params[i].bytes);
  }
  work->kernel.param_count = k->param_count;
  work->kernel.param_bytes = k->param_bytes;
  return CUDA_SUCCESS;
}

/* ---- checks ---- */

static CUresult check_shape(const sim_function *f, const sim_gpu *gpu, const unsigned g[3],
                            const unsigned b[3], unsigned shared_bytes, const unsigned cluster[3],
                            bool cooperative) {
  const sim_profile *p = gpu->profile;
  REQUIRE(g[0] && g[1] && g[2] && b[0] && b[1] && b[2], CUDA_ERROR_INVALID_VALUE);
  REQUIRE(g[0] <= 2147483647u && g[1] <= 65535 && g[2] <= 65535, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(b[0] <= 1024 && b[1] <= 1024 && b[2] <= 64 && (uint64_t)b[0] * b[1] * b[2] <= 1024,
          CUDA_ERROR_INVALID_VALUE);
  unsigned threads = b[0] * b[1] * b[2];
  REQUIRE(threads <= f->kernel->max_threads, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(shared_bytes <= (unsigned)f->max_dynamic_shared, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(shared_bytes + f->kernel->shared_bytes <= p->shared_per_block_optin_bytes,
          CUDA_ERROR_INVALID_VALUE);
  if ((uint64_t)f->kernel->registers * ((threads + 31) / 32 * 32) > p->registers_per_sm)
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (cluster[0]) {
    REQUIRE(p->compute_major >= 9, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cluster[0] * cluster[1] * cluster[2] <= (f->cluster_allowed ? 16u : 8u),
            CUDA_ERROR_INVALID_CLUSTER_SIZE);
    for (int i = 0; i < 3; i++)
      REQUIRE(cluster[i] && g[i] % cluster[i] == 0, CUDA_ERROR_INVALID_VALUE);
  }
  if (cooperative) {
    int blocks = sim_blocks_per_sm(f, gpu, (int)threads, shared_bytes);
    if ((uint64_t)g[0] * g[1] * g[2] > (uint64_t)blocks * p->sm_count)
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return CUDA_SUCCESS;
}

CUresult sim_kernel_work(sim_context *ctx, CUfunction handle, const unsigned grid[3],
                         const unsigned block[3], unsigned shared_bytes, const unsigned cluster[3],
                         bool cooperative, void **params, void **extra, sim_work *work) {
  sim_function *f;
  TRY(sim_function_of(handle, ctx, &f));
  TRY(check_shape(f, ctx->gpu, grid, block, shared_bytes, cluster, cooperative));
  *work = (sim_work){.type = CU_GRAPH_NODE_TYPE_KERNEL};
  work->kernel.function = f;
  work->kernel.as_given = (sim_function *)handle;
  memcpy(work->kernel.grid, grid, sizeof work->kernel.grid);
  memcpy(work->kernel.block, block, sizeof work->kernel.block);
  memcpy(work->kernel.cluster, cluster, sizeof work->kernel.cluster);
  work->kernel.shared_bytes = shared_bytes;
  work->kernel.cooperative = cooperative;
  return take_params(f->kernel, params, extra, work);
}

/* The attributes of a launch. */
typedef struct wishes {
  unsigned cluster[3];
  bool cooperative, early;
  sim_event *event; /* event to record after the kernel, NULL if none */
} wishes;

static CUresult launch(sim_context *ctx, CUfunction handle, const unsigned grid[3],
                       const unsigned block[3], unsigned shared_bytes, CUstream stream_handle,
                       const wishes *wish, void **params, void **extra) {
  sim_stream *stream;
  sim_work work;
  TRY(sim_stream_of(stream_handle, ctx, &stream));
  if (sim_home(stream->ctx) != sim_home(ctx)) return CUDA_ERROR_INVALID_HANDLE;
  TRY(sim_kernel_work(ctx, handle, grid, block, shared_bytes, wish->cluster, wish->cooperative,
                      params, extra, &work));
  work.kernel.early = wish->early;
  work.kernel.sms = stream->ctx->sms;
  TRY(sim_issue(stream, &work));
  if (wish->event)
    TRY(stream->capture ? sim_capture_record(wish->event, stream)
                        : sim_event_record_on(wish->event, stream));
  sim_spend(ctx->gpu->profile->launch_ns);
  return sim_here.launches_block && !stream->capture ? sim_wait_for(stream) : CUDA_SUCCESS;
}

static const wishes none, together = {.cooperative = true};

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                unsigned int bx, unsigned int by, unsigned int bz,
                                unsigned int shared_bytes, CUstream stream, void **params,
                                void **extra) {
  ENTER_CONTEXT("cuLaunchKernel");
  return launch(ctx, f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared_bytes, stream,
                &none, params, extra);
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy,
                                           unsigned int gz, unsigned int bx, unsigned int by,
                                           unsigned int bz, unsigned int shared_bytes,
                                           CUstream stream, void **params) {
  ENTER_CONTEXT("cuLaunchCooperativeKernel");
  return launch(ctx, f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared_bytes, stream,
                &together, params, NULL);
}

static CUresult event_of(CUevent handle, wishes *wish) {
  TRY(sim_event_of(handle, &wish->event));
  return wish->event->flags & CU_EVENT_DISABLE_TIMING ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult read_attribute(const CUlaunchAttribute *a, wishes *wish) {
  switch (a->id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      wish->cooperative = a->value.cooperative;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      wish->cluster[0] = a->value.clusterDim.x;
      wish->cluster[1] = a->value.clusterDim.y;
      wish->cluster[2] = a->value.clusterDim.z;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
      wish->early = a->value.programmaticStreamSerializationAllowed;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      return event_of(a->value.programmaticEvent.event, wish);
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      return event_of(a->value.launchCompletionEvent.event, wish);
    default: /* hints, which nothing in the simulation depends on */
      return (unsigned)a->id < CU_LAUNCH_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params,
                                  void **extra) {
  ENTER_CONTEXT("cuLaunchKernelEx");
  REQUIRE(c && (c->attrs || !c->numAttrs), CUDA_ERROR_INVALID_VALUE);
  wishes wish = none;
  for (unsigned i = 0; i < c->numAttrs; i++) TRY(read_attribute(&c->attrs[i], &wish));
  return launch(ctx, f, (unsigned[]){c->gridDimX, c->gridDimY, c->gridDimZ},
                (unsigned[]){c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes,
                c->hStream, &wish, params, extra);
}

/* ---- one kernel on several devices ---- */

static CUresult check_group(const CUDA_LAUNCH_PARAMS *list, unsigned count) {
  uint64_t devices = 0;
  for (unsigned i = 0; i < count; i++) {
    const CUDA_LAUNCH_PARAMS *p = &list[i];
    /* the default stream is not allowed */
    REQUIRE(sim_handle_is(p->hStream, SIM_STREAM), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(sim_handle_is(p->function, SIM_FUNCTION), CUDA_ERROR_INVALID_HANDLE);
    uint64_t device = 1ull << ((sim_stream *)p->hStream)->ctx->gpu->device;
    REQUIRE(!(devices & device), CUDA_ERROR_INVALID_DEVICE);
    devices |= device;
    REQUIRE(!strcmp(sim_function_name((sim_function *)p->function),
                    sim_function_name((sim_function *)list[0].function)) &&
                p->gridDimX == list[0].gridDimX && p->gridDimY == list[0].gridDimY &&
                p->gridDimZ == list[0].gridDimZ && p->blockDimX == list[0].blockDimX &&
                p->blockDimY == list[0].blockDimY && p->blockDimZ == list[0].blockDimZ &&
                p->sharedMemBytes == list[0].sharedMemBytes,
            CUDA_ERROR_INVALID_VALUE);
  }
  return CUDA_SUCCESS;
}

/* Makes every kernel wait for earlier work of all the streams, and every stream continue only when
 * all kernels have ended. This is the default for launches on several devices. */
static CUresult join_group(const CUDA_LAUNCH_PARAMS *list, unsigned count) {
  sim_ref tails[SIM_MAX_DEVICES];
  for (unsigned i = 0; i < count; i++) tails[i] = sim_tail_of((sim_stream *)list[i].hStream);
  for (unsigned i = 0; i < count; i++)
    for (unsigned k = 0; k < count; k++)
      if (i != k) TRY(sim_wait_on((sim_stream *)list[i].hStream, &tails[k]));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                                      unsigned int flags) {
  ENTER("cuLaunchCooperativeKernelMultiDevice");
  REQUIRE(list && count && count <= (unsigned)sim_here.gpu_count && !(flags & ~3u),
          CUDA_ERROR_INVALID_VALUE);
  TRY(check_group(list, count));
  if (!(flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC))
    TRY(join_group(list, count));
  for (unsigned i = 0; i < count; i++) {
    CUDA_LAUNCH_PARAMS *p = &list[i];
    TRY(launch(((sim_stream *)p->hStream)->ctx, p->function,
               (unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ},
               (unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes,
               p->hStream, &together, p->kernelParams, NULL));
  }
  if (!(flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC))
    TRY(join_group(list, count));
  return CUDA_SUCCESS;
}
