/* cuMemAlloc and related calls, host memory, and queries about pointers. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/cuda/graph.h"

static CUresult allocate(sim_context *ctx, CUdeviceptr *out, uint64_t bytes,
                         enum sim_alloc_kind kind) {
  REQUIRE(out && bytes, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_capture_forbids(ctx));
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_new(ctx->gpu, ctx, bytes, kind);
  if (alloc) *out = alloc->address;
  bool slab = alloc && alloc->charged_bytes;
  sim_big_unlock();
  sim_spend(slab ? ctx->gpu->profile->memory_slab_ns : ctx->gpu->profile->memory_call_ns);
  return alloc ? CUDA_SUCCESS : sim_fail(CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
  ENTER_CONTEXT("cuMemAlloc");
  return allocate(ctx, out, bytes, SIM_DEVICE);
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags) {
  ENTER_CONTEXT("cuMemAllocManaged");
  REQUIRE(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST, CUDA_ERROR_INVALID_VALUE);
  return allocate(ctx, out, bytes, SIM_MANAGED);
}

static CUresult allocate_pitch(sim_context *ctx, CUdeviceptr *out, size_t *pitch, size_t width,
                               size_t height, unsigned element) {
  REQUIRE(out && pitch && width && height, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(element == 4 || element == 8 || element == 16, CUDA_ERROR_INVALID_VALUE);
  size_t row = (width + 511) & ~(size_t)511;
  REQUIRE(row >= width && row <= SIZE_MAX / height, CUDA_ERROR_OUT_OF_MEMORY);
  CUresult result = allocate(ctx, out, row * height, SIM_DEVICE);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}
CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                                    unsigned int element) {
  ENTER_CONTEXT("cuMemAllocPitch");
  return allocate_pitch(ctx, out, pitch, width, height, element);
}

static CUresult free_device(sim_context *ctx, CUdeviceptr pointer) {
  if (!pointer) return CUDA_SUCCESS;
  TRY(sim_capture_forbids(ctx));
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(pointer);
  bool ours =
      alloc && alloc->address == pointer &&
      (alloc->kind == SIM_DEVICE || alloc->kind == SIM_MANAGED || alloc->kind == SIM_POOLED ||
       alloc->kind == SIM_POOL_IMPORTED || alloc->kind == SIM_EXTERNAL_MAP ||
       (alloc->kind == SIM_GRAPH_MEMORY && alloc->flags));
  sim_context *owner = ours && alloc->ctx ? alloc->ctx : ctx;
  sim_big_unlock();
  REQUIRE(ours, CUDA_ERROR_INVALID_VALUE);
  /* A driver waits here, because work in flight may still use the memory. */
  TRY(sim_synchronize_context(owner));
  sim_big_lock();
  alloc = sim_alloc_find(pointer);
  ours = alloc && alloc->address == pointer;
  if (ours && alloc->kind == SIM_POOLED) {
    sim_pool_free_now(alloc);
  } else if (ours && alloc->kind == SIM_GRAPH_MEMORY) {
    alloc->flags = 0;
    sim_graph_memory_give(alloc->gpu, alloc->mapped_bytes);
  } else if (ours) {
    sim_alloc_free(alloc);
  }
  sim_big_unlock();
  sim_spend(ctx->gpu->profile->memory_call_ns);
  return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemFree_v2(CUdeviceptr pointer) {
  ENTER_CONTEXT("cuMemFree");
  return free_device(ctx, pointer);
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  ENTER_CONTEXT("cuMemGetInfo");
  uint64_t free_now, total;
  sim_memory_info(sim_here.machine, ctx->gpu->device, &free_now, &total);
  if (free_bytes) *free_bytes = free_now;
  if (total_bytes) *total_bytes = total;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
  ENTER_CONTEXT("cuMemGetAddressRange");
  (void)ctx;
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(pointer);
  if (alloc) {
    if (base) *base = alloc->address;
    if (bytes) *bytes = alloc->bytes;
  }
  sim_big_unlock();
  return alloc ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- 32-bit ABI of CUDA 3.1, whose pointers cannot hold ours ---- */

CUresult CUDAAPI cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes) {
  size_t free_now, total;
  TRY(cuMemGetInfo_v2(&free_now, &total));
  if (free_bytes) *free_bytes = free_now > UINT32_MAX ? UINT32_MAX : (unsigned)free_now;
  if (total_bytes) *total_bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned)total;
  return CUDA_SUCCESS;
}

/* ---- host memory ---- */

static CUresult host_allocate(sim_context *ctx, void **out, size_t bytes, unsigned flags) {
  REQUIRE(out && bytes, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(!(flags & ~7u), CUDA_ERROR_INVALID_VALUE);
  size_t rounded = (bytes + 4095) & ~(size_t)4095;
  void *at = rounded < bytes
                 ? MAP_FAILED
                 : mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  sim_alloc *alloc = calloc(1, sizeof *alloc);
  if (!alloc) {
    munmap(at, rounded);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *alloc = (sim_alloc){.address = (uint64_t)at,
                       .bytes = bytes,
                       .gpu = ctx->gpu,
                       .ctx = ctx,
                       .kind = SIM_HOST_MEMORY,
                       .flags = flags,
                       .own_mapping = true,
                       .host_pointer = (uint64_t)at};
  sim_big_lock();
  sim_alloc_insert(alloc);
  sim_big_unlock();
  *out = at;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemHostAlloc(void **out, size_t bytes, unsigned int flags) {
  ENTER_CONTEXT("cuMemHostAlloc");
  TRY(sim_capture_forbids(ctx));
  return host_allocate(ctx, out, bytes, flags);
}
CUresult CUDAAPI cuMemAllocHost_v2(void **out, size_t bytes) {
  ENTER_CONTEXT("cuMemAllocHost");
  TRY(sim_capture_forbids(ctx));
  return host_allocate(ctx, out, bytes, 0);
}
CUresult CUDAAPI cuMemAllocHost(void **out, unsigned int bytes) {
  ENTER_CONTEXT("cuMemAllocHost");
  TRY(sim_capture_forbids(ctx));
  return host_allocate(ctx, out, bytes, 0);
}

static CUresult host_free(void *pointer, enum sim_alloc_kind kind, CUresult otherwise) {
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find((uint64_t)pointer);
  bool ours = alloc && alloc->address == (uint64_t)pointer && alloc->kind == kind;
  if (ours) sim_alloc_free(alloc);
  sim_big_unlock();
  return ours ? CUDA_SUCCESS : otherwise;
}
CUresult CUDAAPI cuMemFreeHost(void *pointer) {
  ENTER_CONTEXT("cuMemFreeHost");
  TRY(sim_capture_forbids(ctx));
  TRY(sim_synchronize_context(ctx));
  return host_free(pointer, SIM_HOST_MEMORY, CUDA_ERROR_INVALID_VALUE);
}

static CUresult host_register(sim_context *ctx, void *pointer, size_t bytes, unsigned flags) {
  REQUIRE(pointer && bytes && !(flags & ~15u), CUDA_ERROR_INVALID_VALUE);
  sim_alloc *alloc = calloc(1, sizeof *alloc);
  REQUIRE(alloc, CUDA_ERROR_OUT_OF_MEMORY);
  *alloc = (sim_alloc){.address = (uint64_t)pointer,
                       .bytes = bytes,
                       .gpu = ctx->gpu,
                       .ctx = ctx,
                       .kind = SIM_REGISTERED,
                       .flags = flags,
                       .host_pointer = (uint64_t)pointer};
  sim_big_lock();
  bool overlaps = sim_alloc_find(alloc->address) || sim_alloc_find(alloc->address + bytes - 1);
  if (!overlaps) sim_alloc_insert(alloc);
  sim_big_unlock();
  if (overlaps) free(alloc);
  return overlaps ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags) {
  ENTER_CONTEXT("cuMemHostRegister");
  TRY(sim_capture_forbids(ctx));
  return host_register(ctx, pointer, bytes, flags);
}
CUresult CUDAAPI cuMemHostRegister(void *pointer, size_t bytes, unsigned int flags) {
  ENTER_CONTEXT("cuMemHostRegister");
  TRY(sim_capture_forbids(ctx));
  return host_register(ctx, pointer, bytes, flags);
}
CUresult CUDAAPI cuMemHostUnregister(void *pointer) {
  ENTER_CONTEXT("cuMemHostUnregister");
  TRY(sim_capture_forbids(ctx));
  TRY(sim_synchronize_context(ctx));
  return host_free(pointer, SIM_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned int flags) {
  ENTER_CONTEXT("cuMemHostGetDevicePointer");
  (void)ctx;
  REQUIRE(out && !flags, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find((uint64_t)pointer);
  bool host = alloc && alloc->host_pointer;
  sim_big_unlock();
  REQUIRE(host, CUDA_ERROR_INVALID_VALUE);
  *out = (CUdeviceptr)pointer;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemHostGetFlags(unsigned int *flags, void *pointer) {
  ENTER_CONTEXT("cuMemHostGetFlags");
  (void)ctx;
  REQUIRE(flags, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find((uint64_t)pointer);
  if (alloc) *flags = alloc->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  sim_big_unlock();
  return alloc ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- queries about pointers ---- */

static CUresult pointer_attribute(void *out, CUpointer_attribute attribute, const sim_alloc *a,
                                  uint64_t pointer) {
  bool host = a->host_pointer || (a->kind == SIM_POOLED && sim_pool_is_on_host(a->pool));
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (!a->ctx) return CUDA_ERROR_INVALID_VALUE;
      *(CUcontext *)out = (CUcontext)a->ctx;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned *)out = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *(uint64_t *)out = pointer;
      break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host && !sim_is_managed(a)) return CUDA_ERROR_INVALID_VALUE;
      *(uint64_t *)out = pointer;
      break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *(unsigned *)out = 0;
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *(uint64_t *)out = a->id;
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *(unsigned *)out = sim_is_managed(a);
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *(int *)out = a->gpu->ordinal;
      break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *(unsigned *)out = a->kind == SIM_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *(uint64_t *)out = a->address;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *(size_t *)out = a->bytes;
      break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *(unsigned *)out = 1;
      break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *(uint64_t *)out = 0;
      break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      *(unsigned *)out = 0;
      break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      *(unsigned *)out = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
      break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *(void **)out = a->pool;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerGetAttribute(void *out, CUpointer_attribute attribute,
                                       CUdeviceptr pointer) {
  ENTER("cuPointerGetAttribute");
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(pointer);
  CUresult result =
      alloc ? pointer_attribute(out, attribute, alloc, pointer) : CUDA_ERROR_INVALID_VALUE;
  sim_big_unlock();
  return result;
}

static size_t attribute_bytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return 8;
    default:
      return 4;
  }
}

/* Unlike the query for a single attribute, this call returns 0 for unknown values. */
CUresult CUDAAPI cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                        void **out, CUdeviceptr pointer) {
  ENTER("cuPointerGetAttributes");
  REQUIRE(count && attributes && out, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(pointer);
  for (unsigned i = 0; i < count; i++) {
    if (!out[i]) continue;
    if (alloc && pointer_attribute(out[i], attributes[i], alloc, pointer) == CUDA_SUCCESS) continue;
    memset(out[i], 0, attribute_bytes(attributes[i]));
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *(int *)out[i] = -2;
  }
  sim_big_unlock();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                       CUdeviceptr pointer) {
  ENTER("cuPointerSetAttribute");
  REQUIRE(value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  bool known = sim_alloc_find(pointer) != NULL;
  sim_big_unlock();
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
