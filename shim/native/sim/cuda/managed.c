/* Hints for managed memory, batches of copies, and three-dimensional copies between contexts. */
#include <string.h>

#include "sim/cuda/pool.h"
#include "sim/cuda/work.h"

bool sim_is_managed(const sim_alloc *alloc) {
  return alloc->kind == SIM_MANAGED ||
         (alloc->kind == SIM_POOLED && alloc->pool->type == CU_MEM_ALLOCATION_TYPE_MANAGED);
}

static CUresult managed(CUdeviceptr pointer, size_t bytes) {
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(pointer);
  bool fine =
      alloc && sim_is_managed(alloc) && bytes && pointer - alloc->address + bytes <= alloc->bytes;
  sim_big_unlock();
  return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                             CUdevice device) {
  ENTER("cuMemAdvise");
  (void)device;
  REQUIRE(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY,
          CUDA_ERROR_INVALID_VALUE);
  return managed(pointer, bytes);
}
CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                                CUmemLocation location) {
  ENTER("cuMemAdvise");
  (void)location;
  REQUIRE(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY,
          CUDA_ERROR_INVALID_VALUE);
  return managed(pointer, bytes);
}

/* Prefetches managed memory, which occupies the host link as a copy does. */
static CUresult prefetch(sim_context *ctx, CUdeviceptr pointer, size_t bytes, bool to_host,
                         CUstream handle) {
  sim_stream *stream;
  TRY(managed(pointer, bytes));
  TRY(sim_stream_of(handle, ctx, &stream));
  struct sim_move move = {.bytes = bytes, .to_host = to_host, .from_host = !to_host};
  sim_op op;
  sim_ref ref;
  if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  sim_move_op(ctx->gpu, &move, &op);
  return sim_submit_work(stream, &op, &ref);
}
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device,
                                    CUstream stream) {
  ENTER_CONTEXT("cuMemPrefetchAsync");
  return prefetch(ctx, pointer, bytes, device == CU_DEVICE_CPU, stream);
}
CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                       unsigned int flags, CUstream stream) {
  ENTER_CONTEXT("cuMemPrefetchAsync");
  REQUIRE(!flags, CUDA_ERROR_INVALID_VALUE);
  return prefetch(ctx, pointer, bytes, location.type != CU_MEM_LOCATION_TYPE_DEVICE, stream);
}

/* ---- batches ---- */

static CUresult one_copy(sim_context *ctx, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                         sim_stream *stream) {
  CUDA_MEMCPY3D g = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                     .srcDevice = from,
                     .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                     .dstDevice = to,
                     .WidthInBytes = bytes,
                     .Height = 1,
                     .Depth = 1};
  sim_work work;
  TRY(sim_copy_work(ctx, &g, &work));
  return sim_issue(stream, &work);
}

static CUresult copy_batch(sim_context *ctx, CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,
                           size_t count, size_t *failed, CUstream handle) {
  sim_stream *stream;
  REQUIRE(to && from && bytes && count, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_stream_of(handle, ctx, &stream));
  REQUIRE(stream->lane_kind != SIM_LANE_LEGACY,
          CUDA_ERROR_INVALID_VALUE); /* a batch needs a stream other than the default one */
  for (size_t i = 0; i < count; i++) {
    CUresult result = one_copy(ctx, to[i], from[i], bytes[i], stream);
    if (result == CUDA_SUCCESS) continue;
    if (failed) *failed = i;
    return result;
  }
  sim_spend(ctx->gpu->profile->launch_ns);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                    CUmemcpyAttributes *attributes, size_t *indices,
                                    size_t attribute_count, size_t *failed, CUstream stream) {
  ENTER_CONTEXT("cuMemcpyBatchAsync");
  (void)attributes, (void)indices, (void)attribute_count;
  return copy_batch(ctx, to, from, bytes, count, failed, stream);
}
CUresult CUDAAPI cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,
                                       size_t count, CUmemcpyAttributes *attributes,
                                       size_t *indices, size_t attribute_count, CUstream stream) {
  ENTER_CONTEXT("cuMemcpyBatchAsync");
  (void)attributes, (void)indices, (void)attribute_count;
  return copy_batch(ctx, to, from, bytes, count, NULL, stream);
}
CUresult CUDAAPI cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                             CUmemcpyAttributes *attributes, CUstream handle) {
  ENTER_CONTEXT("cuMemcpyWithAttributesAsync");
  (void)attributes;
  sim_stream *stream;
  TRY(sim_stream_of(handle, ctx, &stream));
  return one_copy(ctx, to, from, bytes, stream);
}

/* Copies by pointers only, because a simulated device has no fabric and thus no logical
 * endpoints. */
CUresult CUDAAPI cuFabricCpyBatchAsync(size_t count, CUDA_FABRIC_COPY_BATCH_OP *list,
                                       unsigned long long flags, CUstream handle) {
  ENTER_CONTEXT("cuFabricCpyBatchAsync");
  sim_stream *stream;
  REQUIRE(list && count && !flags, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_stream_of(handle, ctx, &stream));
  REQUIRE(stream->lane_kind != SIM_LANE_LEGACY, CUDA_ERROR_INVALID_VALUE);
  for (size_t i = 0; i < count; i++) {
    const CUfabricCpyOperand *to = &list[i].dst, *from = &list[i].src;
    REQUIRE(!list[i].flags, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(to->type == CU_FABRIC_COPY_OPERAND_TYPE_POINTER &&
                from->type == CU_FABRIC_COPY_OPERAND_TYPE_POINTER,
            CUDA_ERROR_NOT_SUPPORTED);
    if (list[i].size) TRY(one_copy(ctx, to->op.ptr.ptr, from->op.ptr.ptr, list[i].size, stream));
  }
  sim_spend(ctx->gpu->profile->launch_ns);
  return CUDA_SUCCESS;
}

/* ---- between contexts ---- */

static CUresult peer_3d(sim_context *ctx, const CUDA_MEMCPY3D_PEER *p, CUstream handle, bool wait) {
  sim_stream *stream;
  sim_work work;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY3D g = {
      .srcXInBytes = p->srcXInBytes,
      .srcY = p->srcY,
      .srcZ = p->srcZ,
      .srcMemoryType = p->srcMemoryType,
      .srcHost = p->srcHost,
      .srcDevice = p->srcDevice,
      .srcArray = p->srcArray,
      .srcPitch = p->srcPitch,
      .srcHeight = p->srcHeight,
      .dstXInBytes = p->dstXInBytes,
      .dstY = p->dstY,
      .dstZ = p->dstZ,
      .dstMemoryType = p->dstMemoryType,
      .dstHost = p->dstHost,
      .dstDevice = p->dstDevice,
      .dstArray = p->dstArray,
      .dstPitch = p->dstPitch,
      .dstHeight = p->dstHeight,
      .WidthInBytes = p->WidthInBytes,
      .Height = p->Height,
      .Depth = p->Depth,
  };
  TRY(sim_stream_of(handle, ctx, &stream));
  TRY(sim_copy_work(ctx, &g, &work));
  if (!p->WidthInBytes) return CUDA_SUCCESS;
  TRY(sim_issue(stream, &work));
  return wait && !stream->capture ? sim_wait_for(stream) : CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *p) {
  ENTER_CONTEXT("cuMemcpy3DPeer");
  return peer_3d(ctx, p, NULL, true);
}
CUresult CUDAAPI cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *p, CUstream stream) {
  ENTER_CONTEXT("cuMemcpy3DPeerAsync");
  return peer_3d(ctx, p, stream, false);
}

/* ---- profiler ---- */

CUresult CUDAAPI cuProfilerStart(void) {
  ENTER_CONTEXT("cuProfilerStart");
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuProfilerStop(void) {
  ENTER_CONTEXT("cuProfilerStop");
  return CUDA_SUCCESS;
}
