/* Settings of a context: limits, caches and peer access. */
#include "sim/cuda/core.h"

#define STACK_BYTES 1024
#define SYNC_DEPTH 2
#define MOST_SYNC_DEPTH 24
#define PENDING_LAUNCHES 2048
/* Device memory for each nesting level at which a kernel may wait for kernels that it launched: "up
 * to 860MB … depending on the device configuration" (CUDA C++ Programming Guide 12, CDP1, Memory
 * Footprint). */
#define SYNC_LEVEL_BYTES (860 * SIM_MIB)
/* Device memory for a pending launch. There is no published figure; the estimate is the launch's
 * parameters, at most 4 KiB, plus as much again for everything else. */
#define PENDING_LAUNCH_BYTES 8192
/* Granularity of local memory, which is allocated for each thread that fits on the device, once for
 * each context. The figure comes from an NVIDIA engineer in developer forum thread 39558 ("128 or
 * 256 bytes"). */
#define LOCAL_STEP_BYTES 256

static uint64_t in_slabs(const sim_context *ctx, uint64_t bytes) {
  uint64_t slab = ctx->gpu->profile->slab_bytes;
  return (bytes + slab - 1) / slab * slab;
}

static uint64_t above(uint64_t value, uint64_t standard) {
  return value > standard ? value - standard : 0;
}

/* Returns the memory that a context's limits reserve, in addition to the context's own memory. */
uint64_t sim_limit_bytes(const sim_context *ctx) {
  const sim_profile *p = ctx->gpu->profile;
  uint64_t threads = (uint64_t)p->sm_count * p->max_threads_per_sm;
  const size_t *limits = ctx->limits;
  uint64_t stack = limits[CU_LIMIT_STACK_SIZE];
  if (stack < ctx->local_bytes) stack = ctx->local_bytes;
  stack = (stack + LOCAL_STEP_BYTES - 1) / LOCAL_STEP_BYTES * LOCAL_STEP_BYTES;
  return in_slabs(ctx, above(stack, STACK_BYTES) * threads) +
         in_slabs(ctx, above(limits[CU_LIMIT_MALLOC_HEAP_SIZE], 8 * SIM_MIB)) +
         in_slabs(ctx, above(limits[CU_LIMIT_PRINTF_FIFO_SIZE], SIM_MIB)) +
         in_slabs(ctx,
                  above(limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH], SYNC_DEPTH) * SYNC_LEVEL_BYTES) +
         in_slabs(ctx, above(limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT], PENDING_LAUNCHES) *
                           PENDING_LAUNCH_BYTES);
}

/* Adjusts the memory reserved for limits and local memory. Returns false if the device has too
 * little free memory. The caller holds the big lock. */
static bool settle(sim_context *ctx, uint64_t had) {
  uint64_t needs = sim_limit_bytes(ctx);
  sim_gpu *gpu = ctx->gpu;
  if (needs > had && (sim_fault_hits(sim_here.machine, gpu->device, SIM_FAULT_OUT_OF_MEMORY,
                                     sim_self.call, NULL) ||
                      !sim_memory_take(sim_here.machine, gpu->device, gpu->client, needs - had)))
    return false;
  if (needs < had) sim_memory_give(sim_here.machine, gpu->device, gpu->client, had - needs);
  ctx->charged_bytes += needs - had;
  return true;
}

/* Reserves local memory for a kernel. The memory stays reserved for later kernels. */
CUresult sim_local_memory_take(sim_context *ctx, uint64_t bytes_per_thread) {
  if (bytes_per_thread <= __atomic_load_n(&ctx->local_bytes, __ATOMIC_ACQUIRE)) return CUDA_SUCCESS;
  sim_big_lock();
  uint64_t before = ctx->local_bytes, had = sim_limit_bytes(ctx);
  if (before < bytes_per_thread) ctx->local_bytes = bytes_per_thread;
  bool settled = settle(ctx, had);
  if (!settled) ctx->local_bytes = before;
  sim_big_unlock();
  return settled ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_default_limits(sim_context *ctx) {
  ctx->limits[CU_LIMIT_STACK_SIZE] = STACK_BYTES;
  ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = SIM_MIB;
  ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * SIM_MIB;
  ctx->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = SYNC_DEPTH;
  ctx->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = PENDING_LAUNCHES;
  ctx->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  ctx->limits[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0;
}

/* Returns whether the device supports a limit. Only on devices before compute capability 9.0 can
 * kernels wait for kernels that they launched. */
static bool is_supported(const sim_context *ctx, CUlimit limit) {
  if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH && ctx->gpu->profile->compute_major >= 9)
    return false;
  return limit <= CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
}

static size_t largest(CUlimit limit) {
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      return 512 * 1024;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      return MOST_SYNC_DEPTH;
    default:
      return SIZE_MAX / 2 / PENDING_LAUNCH_BYTES;
  }
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  ENTER_CONTEXT("cuCtxSetLimit");
  if ((unsigned)limit >= SIM_LIMITS || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (!is_supported(ctx, limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  if (value > largest(limit)) return CUDA_ERROR_INVALID_VALUE;
  sim_big_lock();
  size_t before = ctx->limits[limit];
  uint64_t had = sim_limit_bytes(ctx);
  ctx->limits[limit] = value;
  bool settled = settle(ctx, had);
  if (!settled) ctx->limits[limit] = before;
  sim_big_unlock();
  return settled ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuCtxGetLimit(size_t *value, CUlimit limit) {
  ENTER_CONTEXT("cuCtxGetLimit");
  REQUIRE(value && (unsigned)limit < CU_LIMIT_MAX, CUDA_ERROR_INVALID_VALUE);
  if (!is_supported(ctx, limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
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
