/* Contexts, both primary and created ones, and each thread's stack of contexts. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/core.h"
#include "sim/machine/place.h"

void sim_modules_of_context(sim_context *ctx);
bool sim_libraries_enter(sim_context *ctx);

static sim_context *contexts;
sim_context *sim_contexts(void) { return contexts; }

sim_context *sim_current(void) {
  return sim_self.depth ? sim_self.stack[sim_self.depth - 1] : NULL;
}

CUresult sim_context_error(sim_context *ctx) {
  CUresult sticky = __atomic_load_n(&ctx->sticky, __ATOMIC_RELAXED);
  sim_device *d = &sim_here.machine->devices[ctx->gpu->device];
  if (__atomic_load_n(&d->lost, __ATOMIC_RELAXED)) {
    sticky = CUDA_ERROR_DEVICE_UNAVAILABLE;
  } else if (!sticky && ctx->gpu->client != SIM_NONE) {
    sticky = (CUresult)__atomic_load_n(&d->clients[ctx->gpu->client].failed, __ATOMIC_RELAXED);
  }
  if (sticky) __atomic_store_n(&ctx->sticky, sticky, __ATOMIC_RELAXED);
  return sticky;
}

CUresult sim_attach_gpu(sim_gpu *gpu) {
  if (__atomic_load_n(&sim_here.machine->devices[gpu->device].lost, __ATOMIC_RELAXED))
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (gpu->client == SIM_NONE) {
    char tag[SIM_TAG_BYTES];
    uint32_t client = sim_keeper_attach(gpu->device, sim_place_tag(tag, sizeof tag));
    if (client == SIM_NONE) return CUDA_ERROR_OUT_OF_MEMORY;
    __atomic_store_n(&gpu->client, client, __ATOMIC_RELEASE);
    __atomic_store_n(&gpu->served, (uint64_t)gpu->device << 32 | client, __ATOMIC_RELEASE);
  }
  if (!gpu->has_service) {
    if (!sim_service_start(gpu)) return CUDA_ERROR_OUT_OF_MEMORY;
    gpu->has_service = true;
  }
  return CUDA_SUCCESS;
}

/* Makes a context. The caller holds the big lock. */
CUresult sim_context_make(sim_gpu *gpu, unsigned flags, bool primary, sim_context **out) {
  static uint32_t last_number;
  TRY(sim_attach_gpu(gpu));
  sim_machine *m = sim_here.machine;
  if (sim_fault_hits(m, gpu->device, SIM_FAULT_OUT_OF_MEMORY, sim_self.call, NULL) ||
      !sim_memory_take(m, gpu->device, gpu->client, gpu->profile->context_bytes))
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_context *ctx = calloc(1, sizeof *ctx);
  if (!ctx) return CUDA_ERROR_OUT_OF_MEMORY;
  ctx->gpu = gpu;
  ctx->id = sim_next_id();
  ctx->number = ++last_number & ((1u << (32 - SIM_STREAM_BITS)) - 1);
  ctx->flags = flags;
  ctx->api_version = 3020;
  ctx->primary = primary;
  ctx->alive = true;
  ctx->attached = 1;
  ctx->charged_bytes = gpu->profile->context_bytes;
  ctx->shared_config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  sim_default_limits(ctx);
  ctx->legacy = sim_stream_new(ctx, 0, 0, SIM_LANE_LEGACY);
  ctx->next = contexts;
  contexts = ctx;
  sim_handle_add(ctx, SIM_CONTEXT);
  *out = ctx;
  return CUDA_SUCCESS;
}

/* Waits for the context's work and then frees everything that belongs to it. The struct itself is
 * kept, so that a thread that still has it on its stack gets an error instead of a crash. The
 * caller must not hold the big lock. */
void sim_context_destroy(sim_context *ctx) {
  sim_synchronize_context(ctx);
  sim_big_lock();
  ctx->alive = false;
  sim_handle_remove(ctx);
  sim_modules_of_context(ctx);
  sim_allocs_of_context(ctx);
  while (ctx->streams) sim_stream_drop(ctx->streams);
  sim_memory_give(sim_here.machine, ctx->gpu->device, ctx->gpu->client, ctx->charged_bytes);
  ctx->charged_bytes = 0;
  /* A failed kernel's error is cleared with the process's last context on the device. */
  sim_device *d = sim_lock(sim_here.machine, ctx->gpu->device);
  d->clients[ctx->gpu->client].failed = 0;
  sim_unlock(d);
  sim_big_unlock();
}

static bool valid_flags(unsigned flags) {
  unsigned schedule = flags & CU_CTX_SCHED_MASK;
  return !(flags & ~(unsigned)CU_CTX_FLAGS_MASK) &&
         (schedule == 0 || schedule == 1 || schedule == 2 || schedule == 4);
}

/* ---- primary contexts ---- */

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  ENTER("cuDevicePrimaryCtxRetain");
  sim_gpu *gpu;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  sim_big_lock();
  CUresult result = CUDA_SUCCESS;
  sim_context *dead = NULL;
  if (!gpu->primary) {
    result = sim_context_make(gpu, gpu->primary_flags, true, &gpu->primary);
    if (result == CUDA_SUCCESS && !sim_libraries_enter(gpu->primary)) {
      result = CUDA_ERROR_OUT_OF_MEMORY;
      dead = gpu->primary;
      gpu->primary = NULL;
    }
  }
  if (result == CUDA_SUCCESS) {
    gpu->primary_refs++;
    *out = (CUcontext)gpu->primary;
  }
  sim_big_unlock();
  if (dead) sim_context_destroy(dead);
  return result;
}

static CUresult release_primary(CUdevice device, bool reset) {
  sim_gpu *gpu;
  TRY(sim_gpu_of(device, &gpu));
  sim_big_lock();
  sim_context *dead = NULL;
  CUresult result = CUDA_SUCCESS;
  if (!reset && !gpu->primary_refs) result = CUDA_ERROR_INVALID_CONTEXT;
  if (result == CUDA_SUCCESS && (reset || !--gpu->primary_refs)) {
    dead = gpu->primary;
    gpu->primary = NULL;
    gpu->primary_refs = 0;
  }
  sim_big_unlock();
  if (dead) sim_context_destroy(dead);
  return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTER("cuDevicePrimaryCtxRelease");
  return release_primary(device, false);
}
CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
  ENTER("cuDevicePrimaryCtxRelease");
  return release_primary(device, false);
}
CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device) {
  ENTER("cuDevicePrimaryCtxReset");
  return release_primary(device, true);
}
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
  ENTER("cuDevicePrimaryCtxReset");
  return release_primary(device, true);
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  ENTER("cuDevicePrimaryCtxSetFlags");
  sim_gpu *gpu;
  TRY(sim_gpu_of(device, &gpu));
  REQUIRE(valid_flags(flags), CUDA_ERROR_INVALID_VALUE);
  gpu->primary_flags = flags;
  if (gpu->primary) gpu->primary->flags = flags;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
  return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
  ENTER("cuDevicePrimaryCtxGetState");
  sim_gpu *gpu;
  TRY(sim_gpu_of(device, &gpu));
  REQUIRE(flags && active, CUDA_ERROR_INVALID_VALUE);
  *flags = gpu->primary_flags;
  *active = gpu->primary != NULL;
  return CUDA_SUCCESS;
}

/* ---- created contexts ---- */

static CUresult create(CUcontext *out, unsigned flags, CUdevice device, unsigned api_version) {
  sim_gpu *gpu;
  REQUIRE(out && valid_flags(flags), CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  REQUIRE(sim_self.depth < 32, CUDA_ERROR_OUT_OF_MEMORY);
  sim_context *ctx = NULL;
  sim_big_lock();
  CUresult result = sim_context_make(gpu, flags, false, &ctx);
  bool entered = result == CUDA_SUCCESS && sim_libraries_enter(ctx);
  sim_big_unlock();
  if (result != CUDA_SUCCESS) return result;
  if (!entered) {
    sim_context_destroy(ctx);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ctx->api_version = api_version;
  sim_self.stack[sim_self.depth++] = ctx;
  *out = (CUcontext)ctx;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate(CUcontext *out, unsigned int flags, CUdevice device) {
  ENTER("cuCtxCreate");
  return create(out, flags, device, 3010);
}
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device) {
  ENTER("cuCtxCreate");
  return create(out, flags, device, 3020);
}
CUresult CUDAAPI cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *affinity, int count,
                                unsigned int flags, CUdevice device) {
  ENTER("cuCtxCreate");
  /* execution affinity is supported only under MPS */
  if (affinity && count) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create(out, flags, device, 3020);
}
CUresult CUDAAPI cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params, unsigned int flags,
                                CUdevice device) {
  ENTER("cuCtxCreate");
  if (params && params->numExecAffinityParams) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  if (params && params->cigParams) return CUDA_ERROR_NOT_SUPPORTED;
  return create(out, flags, device, 3020);
}

static CUresult destroy(CUcontext handle) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  sim_context *ctx = (sim_context *)handle;
  if (!sim_handle_is(ctx, SIM_CONTEXT)) return CUDA_ERROR_INVALID_CONTEXT;
  if (ctx->primary || ctx->green_of) return CUDA_ERROR_INVALID_CONTEXT;
  if (sim_current() == ctx) sim_self.depth--;
  sim_context_destroy(ctx);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle) {
  ENTER("cuCtxDestroy");
  return destroy(handle);
}
CUresult CUDAAPI cuCtxDestroy(CUcontext handle) {
  ENTER("cuCtxDestroy");
  return destroy(handle);
}

CUresult CUDAAPI cuCtxAttach(CUcontext *out, unsigned int flags) {
  ENTER("cuCtxAttach");
  REQUIRE(out && !flags, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(sim_current(), CUDA_ERROR_INVALID_CONTEXT);
  sim_current()->attached++;
  *out = (CUcontext)sim_current();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxDetach(CUcontext handle) {
  ENTER("cuCtxDetach");
  REQUIRE(sim_handle_is(handle, SIM_CONTEXT) && (sim_context *)handle == sim_current(),
          CUDA_ERROR_INVALID_CONTEXT);
  return --((sim_context *)handle)->attached ? CUDA_SUCCESS : destroy(handle);
}

/* ---- the thread's stack ---- */

static CUresult push(CUcontext handle) {
  REQUIRE(handle, CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(sim_handle_is(handle, SIM_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(sim_self.depth < 32, CUDA_ERROR_OUT_OF_MEMORY);
  sim_self.stack[sim_self.depth++] = (sim_context *)handle;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext handle) {
  ENTER("cuCtxPushCurrent");
  return push(handle);
}
CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle) {
  ENTER("cuCtxPushCurrent");
  return push(handle);
}

static CUresult pop(CUcontext *out) {
  REQUIRE(sim_self.depth, CUDA_ERROR_INVALID_CONTEXT);
  sim_context *ctx = sim_self.stack[--sim_self.depth];
  if (out) *out = (CUcontext)ctx;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *out) {
  ENTER("cuCtxPopCurrent");
  return pop(out);
}
CUresult CUDAAPI cuCtxPopCurrent(CUcontext *out) {
  ENTER("cuCtxPopCurrent");
  return pop(out);
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
  ENTER("cuCtxSetCurrent");
  if (!handle) {
    if (sim_self.depth) sim_self.depth--;
    return CUDA_SUCCESS;
  }
  REQUIRE(sim_handle_is(handle, SIM_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
  if (!sim_self.depth) sim_self.depth = 1;
  sim_self.stack[sim_self.depth - 1] = (sim_context *)handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *out) {
  ENTER("cuCtxGetCurrent");
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  *out = (CUcontext)sim_current();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *device) {
  ENTER_CONTEXT("cuCtxGetDevice");
  REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
  *device = ctx->gpu->ordinal;
  return CUDA_SUCCESS;
}

static CUresult named(CUcontext handle, sim_context **ctx) {
  *ctx = handle ? (sim_context *)handle : sim_current();
  REQUIRE(*ctx, CUDA_ERROR_INVALID_CONTEXT);
  return sim_handle_is(*ctx, SIM_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext handle) {
  ENTER("cuCtxGetDevice");
  sim_context *ctx;
  REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
  TRY(named(handle, &ctx));
  *device = ctx->gpu->ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int *flags) {
  ENTER_CONTEXT("cuCtxGetFlags");
  REQUIRE(flags, CUDA_ERROR_INVALID_VALUE);
  *flags = ctx->flags;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetFlags(unsigned int flags) {
  ENTER_CONTEXT("cuCtxSetFlags");
  REQUIRE(valid_flags(flags), CUDA_ERROR_INVALID_VALUE);
  ctx->flags = flags;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext handle, unsigned long long *id) {
  ENTER("cuCtxGetId");
  sim_context *ctx;
  REQUIRE(id, CUDA_ERROR_INVALID_VALUE);
  TRY(named(handle, &ctx));
  *id = ctx->id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext handle, unsigned int *version) {
  ENTER("cuCtxGetApiVersion");
  sim_context *ctx;
  REQUIRE(version, CUDA_ERROR_INVALID_VALUE);
  TRY(named(handle, &ctx));
  *version = ctx->api_version;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  ENTER_CONTEXT("cuCtxSynchronize");
  TRY(sim_capture_forbids_context(ctx));
  return sim_synchronize_context(ctx);
}
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle) {
  ENTER("cuCtxSynchronize");
  sim_context *ctx;
  TRY(named(handle, &ctx));
  TRY(sim_context_error(ctx));
  TRY(sim_capture_forbids_context(ctx));
  return sim_synchronize_context(ctx);
}
