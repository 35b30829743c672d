/* Functions and kernels: attributes and occupancy. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"

const char *sim_function_name(const sim_function *f) { return f->kernel->name; }

/* Resolves a CUfunction handle. A program may pass a CUkernel instead, which stands for its
 * function in the current context. */
CUresult sim_function_of(CUfunction handle, sim_context *ctx, sim_function **out) {
  if (!sim_handle_is(handle, SIM_FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
  sim_function *f = (sim_function *)handle;
  if (f->library) {
    sim_module *m;
    int limit = f->max_dynamic_shared;
    const char *name = f->kernel->name;
    TRY(sim_library_module(f->library, ctx, false, &m));
    TRY(sim_module_function(m, name, &f));
    if (limit > f->max_dynamic_shared) f->max_dynamic_shared = limit;
  }
  if (sim_home(f->ctx) != sim_home(ctx)) return CUDA_ERROR_INVALID_HANDLE;
  *out = f;
  return CUDA_SUCCESS;
}

static CUresult handle_of(const void *handle, sim_function **f) {
  if (!sim_handle_is(handle, SIM_FUNCTION)) return CUDA_ERROR_INVALID_HANDLE;
  *f = (sim_function *)handle;
  return CUDA_SUCCESS;
}

static CUresult get_attribute(int *value, CUfunction_attribute attribute, const sim_function *f,
                              const sim_gpu *gpu) {
  const sim_kernel *k = f->kernel;
  int architecture = (int)(gpu->profile->compute_major * 10 + gpu->profile->compute_minor);
  REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = (int)k->max_threads;
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = (int)k->shared_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      *value = (int)k->const_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = (int)k->local_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = (int)k->registers;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = architecture;
      break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      *value = 0;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = f->max_dynamic_shared;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = f->carveout;
      break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      *value = 0;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      *value = f->cluster[0];
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      *value = f->cluster[1];
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      *value = f->cluster[2];
      break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *value = f->cluster_allowed;
      break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      *value = 0;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction_attribute attribute, int value, sim_function *f,
                              const sim_gpu *gpu) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      REQUIRE(value >= 0 && (unsigned)value + f->kernel->shared_bytes <=
                                gpu->profile->shared_per_block_optin_bytes,
              CUDA_ERROR_INVALID_VALUE);
      f->max_dynamic_shared = value;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      REQUIRE(value >= -1 && value <= 100, CUDA_ERROR_INVALID_VALUE);
      f->carveout = value;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      f->cluster[0] = value;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      f->cluster[1] = value;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      f->cluster[2] = value;
      break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      f->cluster_allowed = value;
      break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle) {
  ENTER_CONTEXT("cuFuncGetAttribute");
  sim_function *f;
  TRY(sim_function_of(handle, ctx, &f));
  TRY(sim_function_load(f));
  return get_attribute(value, attribute, f, ctx->gpu);
}
CUresult CUDAAPI cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  ENTER_CONTEXT("cuFuncSetAttribute");
  sim_function *f;
  TRY(sim_function_of(handle, ctx, &f));
  return set_attribute(attribute, value, f, ctx->gpu);
}
CUresult CUDAAPI cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel handle,
                                      CUdevice device) {
  ENTER("cuKernelGetAttribute");
  sim_function *f;
  sim_gpu *gpu;
  TRY(handle_of(handle, &f));
  TRY(sim_gpu_of(device, &gpu));
  return get_attribute(value, attribute, f, gpu);
}
CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                                      CUdevice device) {
  ENTER("cuKernelSetAttribute");
  sim_function *f;
  sim_gpu *gpu;
  TRY(handle_of(handle, &f));
  TRY(sim_gpu_of(device, &gpu));
  return set_attribute(attribute, value, f, gpu);
}
CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
  ENTER_CONTEXT("cuFuncSetCacheConfig");
  (void)config;
  sim_function *f;
  return sim_function_of(handle, ctx, &f);
}
CUresult CUDAAPI cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config) {
  ENTER_CONTEXT("cuFuncSetSharedMemConfig");
  (void)config;
  sim_function *f;
  return sim_function_of(handle, ctx, &f);
}
CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice device) {
  ENTER("cuKernelSetCacheConfig");
  (void)config, (void)device;
  sim_function *f;
  return handle_of(handle, &f);
}
CUresult CUDAAPI cuFuncGetModule(CUmodule *out, CUfunction handle) {
  ENTER_CONTEXT("cuFuncGetModule");
  sim_function *f;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_function_of(handle, ctx, &f));
  *out = (CUmodule)f->module;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction handle) {
  ENTER("cuFuncGetName");
  sim_function *f;
  REQUIRE(name, CUDA_ERROR_INVALID_VALUE);
  TRY(handle_of(handle, &f));
  *name = f->kernel->name;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelGetName(const char **name, CUkernel handle) {
  ENTER("cuKernelGetName");
  sim_function *f;
  REQUIRE(name, CUDA_ERROR_INVALID_VALUE);
  TRY(handle_of(handle, &f));
  *name = f->kernel->name;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelGetFunction(CUfunction *out, CUkernel handle) {
  ENTER_CONTEXT("cuKernelGetFunction");
  sim_function *f;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(handle_of(handle, &f));
  REQUIRE(f->library, CUDA_ERROR_INVALID_HANDLE);
  TRY(sim_function_of((CUfunction)handle, ctx, &f));
  TRY(sim_function_load(f));
  *out = (CUfunction)f;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelGetLibrary(CUlibrary *out, CUkernel handle) {
  ENTER("cuKernelGetLibrary");
  sim_function *f;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(handle_of(handle, &f));
  REQUIRE(f->library, CUDA_ERROR_INVALID_HANDLE);
  *out = (CUlibrary)f->library;
  return CUDA_SUCCESS;
}

static CUresult param_info(const sim_function *f, size_t index, size_t *offset, size_t *bytes) {
  REQUIRE(offset && f->kernel->params && index < f->kernel->param_count, CUDA_ERROR_INVALID_VALUE);
  *offset = f->kernel->params[index].offset;
  if (bytes) *bytes = f->kernel->params[index].bytes;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset,
                                    size_t *bytes) {
  ENTER("cuFuncGetParamInfo");
  sim_function *f;
  TRY(handle_of(handle, &f));
  return param_info(f, index, offset, bytes);
}
CUresult CUDAAPI cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset,
                                      size_t *bytes) {
  ENTER("cuKernelGetParamInfo");
  sim_function *f;
  TRY(handle_of(handle, &f));
  return param_info(f, index, offset, bytes);
}
CUresult CUDAAPI cuFuncGetParamCount(CUfunction handle, size_t *count) {
  ENTER("cuFuncGetParamCount");
  sim_function *f;
  REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
  TRY(handle_of(handle, &f));
  *count = f->kernel->param_count;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelGetParamCount(CUkernel handle, size_t *count) {
  ENTER("cuKernelGetParamCount");
  sim_function *f;
  REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
  TRY(handle_of(handle, &f));
  *count = f->kernel->param_count;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle) {
  ENTER("cuFuncIsLoaded");
  sim_function *f;
  REQUIRE(state, CUDA_ERROR_INVALID_VALUE);
  TRY(handle_of(handle, &f));
  *state = f->loaded ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncLoad(CUfunction handle) {
  ENTER_CONTEXT("cuFuncLoad");
  sim_function *f;
  TRY(sim_function_of(handle, ctx, &f));
  return sim_function_load(f);
}

/* ---- occupancy ---- */

int sim_blocks_per_sm(const sim_function *f, const sim_gpu *gpu, int threads,
                      size_t dynamic_bytes) {
  const sim_profile *p = gpu->profile;
  unsigned warps = ((unsigned)threads + 31) / 32;
  unsigned registers = (f->kernel->registers + 7) / 8 * 8 * 32 * warps;
  uint64_t shared = f->kernel->shared_bytes + dynamic_bytes + 1024;
  unsigned most = p->max_blocks_per_sm;
  if (p->max_threads_per_sm / 32 / warps < most) most = p->max_threads_per_sm / 32 / warps;
  if (registers && p->registers_per_sm / registers < most) most = p->registers_per_sm / registers;
  if (p->shared_per_sm_bytes / shared < most) most = (unsigned)(p->shared_per_sm_bytes / shared);
  return (int)most;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, CUfunction handle, int threads, size_t dynamic_bytes, unsigned int flags) {
  ENTER_CONTEXT("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
  sim_function *f;
  REQUIRE(blocks && threads > 0 && flags <= 1, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_function_of(handle, ctx, &f));
  *blocks = threads > (int)f->kernel->max_threads
                ? 0
                : sim_blocks_per_sm(f, ctx->gpu, threads, dynamic_bytes);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle,
                                                             int threads, size_t dynamic_bytes) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads,
                                                              dynamic_bytes, 0);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(int *min_grid, int *block,
                                                           CUfunction handle,
                                                           CUoccupancyB2DSize dynamic_of,
                                                           size_t dynamic_bytes, int limit,
                                                           unsigned int flags) {
  ENTER_CONTEXT("cuOccupancyMaxPotentialBlockSizeWithFlags");
  sim_function *f;
  REQUIRE(min_grid && block && flags <= 1, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_function_of(handle, ctx, &f));
  int most = (int)f->kernel->max_threads, best = 0, best_blocks = 0;
  if (limit > 0 && limit < most) most = limit;
  for (int threads = most / 32 * 32; threads >= 32; threads -= 32) {
    size_t bytes = dynamic_of ? dynamic_of(threads) : dynamic_bytes;
    int blocks = sim_blocks_per_sm(f, ctx->gpu, threads, bytes);
    if (blocks * threads <= best * best_blocks) continue;
    best = threads;
    best_blocks = blocks;
  }
  REQUIRE(best, CUDA_ERROR_INVALID_VALUE);
  *block = best;
  *min_grid = best_blocks * (int)ctx->gpu->profile->sm_count;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int *min_grid, int *block, CUfunction handle,
                                                  CUoccupancyB2DSize dynamic_of,
                                                  size_t dynamic_bytes, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(min_grid, block, handle, dynamic_of,
                                                   dynamic_bytes, limit, 0);
}
CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction handle,
                                                         int blocks, int threads) {
  ENTER_CONTEXT("cuOccupancyAvailableDynamicSMemPerBlock");
  sim_function *f;
  REQUIRE(bytes && blocks > 0 && threads > 0, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_function_of(handle, ctx, &f));
  uint64_t each = ctx->gpu->profile->shared_per_sm_bytes / (unsigned)blocks;
  uint64_t taken = f->kernel->shared_bytes + 1024;
  *bytes = each > taken ? each - taken : 0;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int *size, CUfunction handle,
                                                    const CUlaunchConfig *config) {
  ENTER_CONTEXT("cuOccupancyMaxPotentialClusterSize");
  sim_function *f;
  REQUIRE(size && config, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_function_of(handle, ctx, &f));
  *size = ctx->gpu->profile->compute_major >= 9 ? (f->cluster_allowed ? 16 : 8) : 1;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxActiveClusters(int *count, CUfunction handle,
                                              const CUlaunchConfig *config) {
  ENTER_CONTEXT("cuOccupancyMaxActiveClusters");
  sim_function *f;
  REQUIRE(count && config, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_function_of(handle, ctx, &f));
  int threads = (int)(config->blockDimX * config->blockDimY * config->blockDimZ);
  REQUIRE(threads > 0, CUDA_ERROR_INVALID_VALUE);
  *count = sim_blocks_per_sm(f, ctx->gpu, threads, config->sharedMemBytes) *
           (int)ctx->gpu->profile->sm_count / 8;
  return CUDA_SUCCESS;
}
