/* What a context can be told: limits, caches, peers. */
#include "sim/cuda/core.h"

/* What the limits reserve on the device beyond what the context itself comes with. */
uint64_t sim_limit_bytes(const sim_context *ctx) {
  const sim_profile *p = ctx->gpu->profile;
  uint64_t threads = (uint64_t)p->sm_count * p->max_threads_per_sm;
  uint64_t stack = ctx->limits[CU_LIMIT_STACK_SIZE], heap = ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE];
  uint64_t fifo = ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE];
  uint64_t bytes = 0;
  if (stack > 1024) bytes += (stack - 1024) * threads;
  if (heap > 8 * SIM_MIB) bytes += heap - 8 * SIM_MIB;
  if (fifo > SIM_MIB) bytes += fifo - SIM_MIB;
  uint64_t slab = p->slab_bytes;
  return (bytes + slab - 1) / slab * slab;
}

void sim_default_limits(sim_context *ctx) {
  ctx->limits[CU_LIMIT_STACK_SIZE] = 1024;
  ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = SIM_MIB;
  ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * SIM_MIB;
  ctx->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  ctx->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  ctx->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  ctx->limits[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  ENTER_CONTEXT("cuCtxSetLimit");
  if ((unsigned)limit >= SIM_LIMITS || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  if (limit == CU_LIMIT_STACK_SIZE && value > 512 * 1024) return CUDA_ERROR_INVALID_VALUE;
  size_t before = ctx->limits[limit];
  uint64_t had = sim_limit_bytes(ctx);
  ctx->limits[limit] = value;
  uint64_t needs = sim_limit_bytes(ctx);
  if (needs > had &&
      !sim_memory_take(sim_here.machine, ctx->gpu->device, ctx->gpu->client, needs - had)) {
    ctx->limits[limit] = before;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (needs < had)
    sim_memory_give(sim_here.machine, ctx->gpu->device, ctx->gpu->client, had - needs);
  ctx->charged_bytes += needs - had;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetLimit(size_t *value, CUlimit limit) {
  ENTER_CONTEXT("cuCtxGetLimit");
  REQUIRE(value && (unsigned)limit < CU_LIMIT_MAX, CUDA_ERROR_INVALID_VALUE);
  if (limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = ctx->limits[limit];
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache *config) {
  ENTER_CONTEXT("cuCtxGetCacheConfig");
  REQUIRE(config, CUDA_ERROR_INVALID_VALUE);
  *config = ctx->cache;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config) {
  ENTER_CONTEXT("cuCtxSetCacheConfig");
  ctx->cache = config;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetSharedMemConfig(CUsharedconfig *config) {
  ENTER_CONTEXT("cuCtxGetSharedMemConfig");
  REQUIRE(config, CUDA_ERROR_INVALID_VALUE);
  *config = ctx->shared_config;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSetSharedMemConfig(CUsharedconfig config) {
  ENTER_CONTEXT("cuCtxSetSharedMemConfig");
  ctx->shared_config = config;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER_CONTEXT("cuCtxGetStreamPriorityRange");
  (void)ctx;
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxResetPersistingL2Cache(void) {
  ENTER_CONTEXT("cuCtxResetPersistingL2Cache");
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetExecAffinity(CUexecAffinityParam *param, CUexecAffinityType type) {
  ENTER_CONTEXT("cuCtxGetExecAffinity");
  REQUIRE(param, CUDA_ERROR_INVALID_VALUE);
  if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  param->type = type;
  param->param.smCount.val = ctx->gpu->profile->sm_count;
  return CUDA_SUCCESS;
}

/* ---- peers ---- */

CUresult CUDAAPI cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  ENTER("cuDeviceCanAccessPeer");
  sim_gpu *a, *b;
  REQUIRE(can, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &a));
  TRY(sim_gpu_of(peer, &b));
  *can = a != b;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags) {
  ENTER_CONTEXT("cuCtxEnablePeerAccess");
  REQUIRE(!flags, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(sim_handle_is(handle, SIM_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
  sim_context *peer = (sim_context *)handle;
  REQUIRE(peer->gpu != ctx->gpu, CUDA_ERROR_INVALID_DEVICE);
  if (ctx->peers >> peer->gpu->ordinal & 1) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  ctx->peers |= 1ull << peer->gpu->ordinal;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext handle) {
  ENTER_CONTEXT("cuCtxDisablePeerAccess");
  REQUIRE(sim_handle_is(handle, SIM_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
  sim_context *peer = (sim_context *)handle;
  if (!(ctx->peers >> peer->gpu->ordinal & 1)) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  ctx->peers &= ~(1ull << peer->gpu->ordinal);
  return CUDA_SUCCESS;
}
