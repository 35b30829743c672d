/* cuMemcpy* and cuMemset*: every variant becomes one `sim_move`. */
#include <string.h>

#include "sim/cuda/array.h"
#include "sim/cuda/work.h"

/* ---- source or destination of a copy ---- */

typedef struct side {
  uint64_t address, pitch, slice, bytes;
  bool host, pageable;
} side;

/* Returns true if all of [address, address + bytes) lies in known memory, which may consist of
 * several adjacent VMM mappings. */
static bool covered(uint64_t address, uint64_t bytes) {
  uint64_t end = address + bytes;
  while (address < end) {
    sim_alloc *alloc = sim_alloc_find(address);
    if (!alloc || (alloc->kind == SIM_RESERVED_MAP && !alloc->flags))
      return false; /* no access has been set */
    address = alloc->address + alloc->bytes;
  }
  return true;
}

static CUresult device_side(uint64_t address, uint64_t bytes, side *s) {
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(address);
  bool fine = alloc && covered(address, bytes);
  s->host = fine && alloc->host_pointer;
  sim_big_unlock();
  s->pageable = false;
  return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Determines the kind of a pointer. An address outside all allocations is pageable host memory. */
static void unified_side(uint64_t address, side *s) {
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(address);
  s->host = !alloc || alloc->host_pointer;
  s->pageable = !alloc;
  sim_big_unlock();
}

static CUresult find_side(CUmemorytype type, const void *host, CUdeviceptr device, CUarray array,
                          side *s) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      s->address = (uint64_t)host;
      unified_side(s->address, s);
      s->host = true;
      return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEMORYTYPE_UNIFIED:
      s->address = device;
      unified_side(device, s);
      return device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEMORYTYPE_DEVICE:
      s->address = device;
      return device_side(device, s->bytes ? s->bytes : 1, s);
    case CU_MEMORYTYPE_ARRAY: {
      if (!sim_handle_is(array, SIM_ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
      sim_array *a = (sim_array *)array;
      s->address = a->address;
      s->pitch = a->pitch;
      s->slice = a->slice;
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult sim_copy_work(sim_context *ctx, const CUDA_MEMCPY3D *g, sim_work *work) {
  uint64_t height = g->Height ? g->Height : 1, depth = g->Depth ? g->Depth : 1;
  side from = {.pitch = g->srcPitch ? g->srcPitch : g->WidthInBytes};
  side to = {.pitch = g->dstPitch ? g->dstPitch : g->WidthInBytes};
  from.slice = from.pitch * (g->srcHeight ? g->srcHeight : height);
  to.slice = to.pitch * (g->dstHeight ? g->dstHeight : height);
  from.bytes = (depth - 1) * from.slice + (height - 1) * from.pitch + g->WidthInBytes;
  to.bytes = (depth - 1) * to.slice + (height - 1) * to.pitch + g->WidthInBytes;
  if (g->WidthInBytes && depth == 1 && height > 1)
    REQUIRE(from.pitch >= g->WidthInBytes && to.pitch >= g->WidthInBytes, CUDA_ERROR_INVALID_VALUE);
  *work = (sim_work){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = {.as_given = *g, .ctx = ctx}};
  if (!g->WidthInBytes) return CUDA_SUCCESS;
  TRY(find_side(g->srcMemoryType, g->srcHost, g->srcDevice, g->srcArray, &from));
  TRY(find_side(g->dstMemoryType, g->dstHost, g->dstDevice, g->dstArray, &to));
  work->copy.move = (struct sim_move){
      .to = to.address + g->dstZ * to.slice + g->dstY * to.pitch + g->dstXInBytes,
      .from = from.address + g->srcZ * from.slice + g->srcY * from.pitch + g->srcXInBytes,
      .bytes = g->WidthInBytes,
      .rows = height,
      .layers = depth,
      .to_pitch = to.pitch,
      .from_pitch = from.pitch,
      .to_slice = to.slice,
      .from_slice = from.slice,
      .to_host = to.host,
      .from_host = from.host,
      .pageable = to.pageable || from.pageable,
  };
  return CUDA_SUCCESS;
}

/* ---- the common path ---- */

/* Performs a copy. If `wait` is set and host memory takes part, the call returns only when the copy
 * is done. */
static CUresult copy(sim_context *ctx, const CUDA_MEMCPY3D *given, CUstream handle, bool wait) {
  sim_stream *stream;
  sim_work work;
  TRY(sim_stream_of(handle, ctx, &stream));
  TRY(sim_copy_work(ctx, given, &work));
  if (!given->WidthInBytes) return CUDA_SUCCESS;
  if (wait) TRY(sim_capture_forbids_stream(stream));
  TRY(sim_issue(stream, &work));
  const struct sim_move *m = &work.copy.move;
  /* Pageable memory is staged, so that its copy never outlives the call. */
  bool host = m->to_host || m->from_host;
  if (!stream->capture && host && (wait || m->pageable)) return sim_wait_for(stream);
  sim_spend(ctx->gpu->profile->launch_ns);
  return CUDA_SUCCESS;
}

static CUresult linear(sim_context *ctx, CUmemorytype to_type, uint64_t to, CUmemorytype from_type,
                       uint64_t from, size_t bytes, CUstream stream, bool wait) {
  CUDA_MEMCPY3D g = {.srcMemoryType = from_type,
                     .dstMemoryType = to_type,
                     .WidthInBytes = bytes,
                     .Height = 1,
                     .Depth = 1};
  if (from_type == CU_MEMORYTYPE_HOST)
    g.srcHost = (const void *)from;
  else
    g.srcDevice = from;
  if (to_type == CU_MEMORYTYPE_HOST)
    g.dstHost = (void *)to;
  else
    g.dstDevice = to;
  return copy(ctx, &g, stream, wait);
}

#define HOST CU_MEMORYTYPE_HOST
#define DEVICE CU_MEMORYTYPE_DEVICE
#define UNIFIED CU_MEMORYTYPE_UNIFIED

CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
  ENTER_CONTEXT("cuMemcpyHtoD");
  return linear(ctx, DEVICE, to, HOST, (uint64_t)from, bytes, NULL, true);
}
CUresult CUDAAPI cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  ENTER_CONTEXT("cuMemcpyDtoH");
  return linear(ctx, HOST, (uint64_t)to, DEVICE, from, bytes, NULL, true);
}
CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  ENTER_CONTEXT("cuMemcpyDtoD");
  return linear(ctx, DEVICE, to, DEVICE, from, bytes, NULL, true);
}
CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
                                      CUstream stream) {
  ENTER_CONTEXT("cuMemcpyHtoDAsync");
  return linear(ctx, DEVICE, to, HOST, (uint64_t)from, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTER_CONTEXT("cuMemcpyDtoHAsync");
  return linear(ctx, HOST, (uint64_t)to, DEVICE, from, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                      CUstream stream) {
  ENTER_CONTEXT("cuMemcpyDtoDAsync");
  return linear(ctx, DEVICE, to, DEVICE, from, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  ENTER_CONTEXT("cuMemcpy");
  return linear(ctx, UNIFIED, to, UNIFIED, from, bytes, NULL, true);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTER_CONTEXT("cuMemcpyAsync");
  return linear(ctx, UNIFIED, to, UNIFIED, from, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from,
                              CUcontext from_ctx, size_t bytes) {
  ENTER_CONTEXT("cuMemcpyPeer");
  REQUIRE(sim_handle_is(to_ctx, SIM_CONTEXT) && sim_handle_is(from_ctx, SIM_CONTEXT),
          CUDA_ERROR_INVALID_CONTEXT);
  return linear(ctx, DEVICE, to, DEVICE, from, bytes, NULL, false);
}
CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from,
                                   CUcontext from_ctx, size_t bytes, CUstream stream) {
  ENTER_CONTEXT("cuMemcpyPeerAsync");
  REQUIRE(sim_handle_is(to_ctx, SIM_CONTEXT) && sim_handle_is(from_ctx, SIM_CONTEXT),
          CUDA_ERROR_INVALID_CONTEXT);
  return linear(ctx, DEVICE, to, DEVICE, from, bytes, stream, false);
}

static CUDA_MEMCPY3D from_2d(const CUDA_MEMCPY2D *g) {
  return (CUDA_MEMCPY3D){
      .srcXInBytes = g->srcXInBytes,
      .srcY = g->srcY,
      .srcMemoryType = g->srcMemoryType,
      .srcHost = g->srcHost,
      .srcDevice = g->srcDevice,
      .srcArray = g->srcArray,
      .srcPitch = g->srcPitch,
      .dstXInBytes = g->dstXInBytes,
      .dstY = g->dstY,
      .dstMemoryType = g->dstMemoryType,
      .dstHost = g->dstHost,
      .dstDevice = g->dstDevice,
      .dstArray = g->dstArray,
      .dstPitch = g->dstPitch,
      .WidthInBytes = g->WidthInBytes,
      .Height = g->Height,
      .Depth = 1,
  };
}
CUresult CUDAAPI cuMemcpy2D_v2(const CUDA_MEMCPY2D *given) {
  ENTER_CONTEXT("cuMemcpy2D");
  REQUIRE(given, CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY3D g = from_2d(given);
  return copy(ctx, &g, NULL, true);
}
CUresult CUDAAPI cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *given) {
  ENTER_CONTEXT("cuMemcpy2DUnaligned");
  REQUIRE(given, CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY3D g = from_2d(given);
  return copy(ctx, &g, NULL, true);
}
CUresult CUDAAPI cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *given, CUstream stream) {
  ENTER_CONTEXT("cuMemcpy2DAsync");
  REQUIRE(given, CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY3D g = from_2d(given);
  return copy(ctx, &g, stream, false);
}
CUresult CUDAAPI cuMemcpy3D_v2(const CUDA_MEMCPY3D *given) {
  ENTER_CONTEXT("cuMemcpy3D");
  REQUIRE(given, CUDA_ERROR_INVALID_VALUE);
  return copy(ctx, given, NULL, true);
}
CUresult CUDAAPI cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *given, CUstream stream) {
  ENTER_CONTEXT("cuMemcpy3DAsync");
  REQUIRE(given, CUDA_ERROR_INVALID_VALUE);
  return copy(ctx, given, stream, false);
}

/* ---- arrays ---- */

static CUresult with_array(sim_context *ctx, CUarray array, size_t offset, bool to_array,
                           CUmemorytype type, uint64_t other, size_t bytes, CUstream stream,
                           bool wait) {
  CUDA_MEMCPY3D g = {.WidthInBytes = bytes, .Height = 1, .Depth = 1};
  if (to_array) {
    g.dstMemoryType = CU_MEMORYTYPE_ARRAY, g.dstArray = array, g.dstXInBytes = offset,
    g.srcMemoryType = type;
    g.srcHost = (const void *)other, g.srcDevice = other;
  } else {
    g.srcMemoryType = CU_MEMORYTYPE_ARRAY, g.srcArray = array, g.srcXInBytes = offset,
    g.dstMemoryType = type;
    g.dstHost = (void *)other, g.dstDevice = other;
  }
  return copy(ctx, &g, stream, wait);
}
CUresult CUDAAPI cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
  ENTER_CONTEXT("cuMemcpyDtoA");
  return with_array(ctx, to, offset, true, DEVICE, from, bytes, NULL, true);
}
CUresult CUDAAPI cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
  ENTER_CONTEXT("cuMemcpyAtoD");
  return with_array(ctx, from, offset, false, DEVICE, to, bytes, NULL, true);
}
CUresult CUDAAPI cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t bytes) {
  ENTER_CONTEXT("cuMemcpyHtoA");
  return with_array(ctx, to, offset, true, HOST, (uint64_t)from, bytes, NULL, true);
}
CUresult CUDAAPI cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t bytes) {
  ENTER_CONTEXT("cuMemcpyAtoH");
  return with_array(ctx, from, offset, false, HOST, (uint64_t)to, bytes, NULL, true);
}
CUresult CUDAAPI cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t bytes,
                                      CUstream stream) {
  ENTER_CONTEXT("cuMemcpyHtoAAsync");
  return with_array(ctx, to, offset, true, HOST, (uint64_t)from, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t bytes,
                                      CUstream stream) {
  ENTER_CONTEXT("cuMemcpyAtoHAsync");
  return with_array(ctx, from, offset, false, HOST, (uint64_t)to, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                                 size_t bytes) {
  ENTER_CONTEXT("cuMemcpyAtoA");
  CUDA_MEMCPY3D g = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                     .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                     .srcArray = from,
                     .dstArray = to,
                     .srcXInBytes = from_offset,
                     .dstXInBytes = to_offset,
                     .WidthInBytes = bytes,
                     .Height = 1,
                     .Depth = 1};
  return copy(ctx, &g, NULL, true);
}
