/* Stream-ordered allocation and memory pools. A pool is charged by the growth of its reserve. */
#include "hooks/pool.h"

#include "memory/graph_memory.h"
#include "hooks/hook.h"
#include "common/log.h"
#include "memory/location.h"
#include "memory/reserve.h"
#include "memory/shares.h"

/* Finds the device of a stream, which is the current device for default streams. */
static CUresult device_of_stream(CUstream stream, CUdevice *device) {
  CUcontext current, owner;
  CUresult result = REAL(cuCtxGetDevice)(device);
  if (result != CUDA_SUCCESS || (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD) return result;
  if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS ||
      REAL(cuStreamGetCtx)(stream, &owner) != CUDA_SUCCESS || owner == current) {
    return CUDA_SUCCESS;
  }
  if (REAL(cuCtxPushCurrent_v2)(owner) != CUDA_SUCCESS) return CUDA_SUCCESS;
  result = REAL(cuCtxGetDevice)(device);
  REAL(cuCtxPopCurrent_v2)(&owner);
  return result;
}

/* Finds the reserve from which cuMemAllocAsync allocates. */
static CUresult current_reserve(CUstream stream, penstock_reserve **reserve) {
  CUdevice device;
  CUmemoryPool pool;
  CUresult result = device_of_stream(stream, &device);
  if (result == CUDA_SUCCESS) result = REAL(cuDeviceGetMemPool)(&pool, device);
  if (result != CUDA_SUCCESS) return result;
  *reserve = penstock_reserve_of_pool(pool, device, false);
  return *reserve ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static penstock_reserve *reserve_at(CUmemoryPool pool, const CUmemLocation *location,
                                    CUmemAllocationType type) {
  bool is_free = penstock_location_is_free(location, type);
  CUdevice device = penstock_location_device(location);
  penstock_reserve *reserve = penstock_reserve_of_pool(pool, device, is_free);
  if (reserve) reserve->managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  return reserve;
}

/* Finds the reserve of a pool whose creation the shim did not see, by the location that drivers
 * since CUDA 13 report. */
static penstock_reserve *located_reserve(CUmemoryPool pool, bool *is_located) {
  if (penstock_object_find(PENSTOCK_POOL_IMPORT, (uint64_t)(uintptr_t)pool, NULL)) return NULL;
  int where = 0, id = 0, type = CU_MEM_ALLOCATION_TYPE_MANAGED; /* a type that is always charged */
  if (REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE, &where) != CUDA_SUCCESS ||
      REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_LOCATION_ID, &id) != CUDA_SUCCESS) {
    return NULL;
  }
  *is_located = true;
  REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_ALLOCATION_TYPE, &type);
  CUmemLocation location = {.type = (CUmemLocationType)where, .id = id};
  return reserve_at(pool, &location, (CUmemAllocationType)type);
}

/* Finds the reserve of a pool that the program named: one of its own pools, or the default pool of
 * a device. Returns CUDA_SUCCESS without a reserve if the pool is invalid, is of unknown origin
 * (see `adopt`), or is imported from another process, in which case the driver allocates nothing
 * from it. */
static CUresult named_reserve(CUmemoryPool pool, penstock_reserve **reserve) {
  int count = 0;
  bool is_located = false;
  *reserve = penstock_reserve_find(pool);
  if (!*reserve) *reserve = located_reserve(pool, &is_located);
  if (*reserve || is_located) return *reserve ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) return CUDA_SUCCESS;
  for (CUdevice device = 0; device < count; device++) {
    CUmemoryPool other;
    if (REAL(cuDeviceGetDefaultMemPool)(&other, device) == CUDA_SUCCESS && other == pool) {
      *reserve = penstock_reserve_of_pool(pool, device, false);
      return *reserve ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return CUDA_SUCCESS;
}

static CUresult ask_capture(CUstream stream, bool per_thread, CUstreamCaptureStatus *status) {
  return per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, status)
                    : REAL(cuStreamIsCapturing)(stream, status);
}

/* Returns true if the stream captures: an allocation then becomes a graph node and allocates
 * nothing now. */
static bool is_capturing(CUstream stream, bool per_thread) {
  CUstreamCaptureStatus status;
  CUresult result = ask_capture(stream, per_thread, &status);
  return result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static void remember(CUdeviceptr pointer, size_t bytes, penstock_reserve *reserve) {
  penstock_object object = {.key = pointer,
                            .bytes = bytes,
                            .detail = (uint64_t)(uintptr_t)reserve,
                            .grant = -1,
                            .kind = PENSTOCK_POOL_MEMORY};
  if (!penstock_object_put(&object)) penstock_log("no host memory left to record an allocation");
}

uint64_t penstock_pool_stream_id(CUstream stream, bool per_thread) {
  unsigned long long id;
  CUresult result =
      per_thread ? REAL(cuStreamGetId_ptsz)(stream, &id) : REAL(cuStreamGetId)(stream, &id);
  return result == CUDA_SUCCESS ? id : PENSTOCK_NO_STREAM;
}

/* Returns the stream in which the memory is free from now on, or PENSTOCK_NO_STREAM if the free is
 * only captured. */
static uint64_t id_to_free_in(CUstream stream, bool per_thread) {
  return is_capturing(stream, per_thread) ? PENSTOCK_NO_STREAM
                                          : penstock_pool_stream_id(stream, per_thread);
}

/* Charges an unknown pool, from which the driver returned memory, for all its memory from now on.
 * Returns false if the quota has no room for that. */
static bool adopt(CUdeviceptr pointer, size_t bytes) {
  CUmemoryPool pool = NULL;
  unsigned type = CU_MEMORYTYPE_DEVICE;
  int device = -1;
  REAL(cuPointerGetAttribute)(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer);
  REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
  REAL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
  penstock_reserve *reserve = penstock_reserve_of_pool(pool, device, type == CU_MEMORYTYPE_HOST);
  if (!reserve || !penstock_reserve_adopt(reserve, bytes)) return false;
  remember(pointer, bytes, reserve);
  return true;
}

/* Refuses an allocation beyond the quota, but forwards the driver's error if the stream is
 * invalid. */
static CUresult refused(CUstream stream, bool per_thread, CUresult result) {
  CUstreamCaptureStatus status;
  CUresult asked = ask_capture(stream, per_thread, &status);
  return asked == CUDA_ERROR_INVALID_HANDLE ? asked : result;
}

#define ALLOCATE_FROM(find, pointer, size, stream, per_thread, call, undo)                        \
  do {                                                                                            \
    penstock_reserve *reserve = NULL;                                                             \
    penstock_admission admission;                                                                 \
    if (!(pointer) || !(size)) return call; /* nothing is allocated */                            \
    CUresult result = find;                                                                       \
    if (result != CUDA_SUCCESS) return result;                                                    \
    if (is_capturing(stream, per_thread)) {                                                       \
      penstock_graph_memory_seen();                                                               \
      return call;                                                                                \
    }                                                                                             \
    if (!reserve) {                                                                               \
      result = call;                                                                              \
      if (result != CUDA_SUCCESS || adopt(*(pointer), (size))) return result;                     \
      undo;                                                                                       \
      return CUDA_ERROR_OUT_OF_MEMORY;                                                            \
    }                                                                                             \
    result = penstock_reserve_admit(reserve, (size), penstock_pool_stream_id(stream, per_thread), \
                                    &admission);                                                  \
    if (result != CUDA_SUCCESS) return refused(stream, per_thread, result);                       \
    result = call;                                                                                \
    if (result != CUDA_SUCCESS) {                                                                 \
      penstock_reserve_cancel(reserve, &admission);                                               \
      return result;                                                                              \
    }                                                                                             \
    if (!penstock_reserve_complete(reserve, &admission)) {                                        \
      undo;                                                                                       \
      penstock_reserve_undone(reserve, &admission);                                               \
      return CUDA_ERROR_OUT_OF_MEMORY;                                                            \
    }                                                                                             \
    remember(*(pointer), (size), reserve);                                                        \
    return CUDA_SUCCESS;                                                                          \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuMemAllocAsync)(CUdeviceptr *pointer, size_t size, CUstream stream) {
  ALLOCATE_FROM(current_reserve(stream, &reserve), pointer, size, stream, false,
                REAL(cuMemAllocAsync)(pointer, size, stream),
                REAL(cuMemFreeAsync)(*pointer, stream));
}

CUresult CUDAAPI HOOK_NAME(cuMemAllocAsync_ptsz)(CUdeviceptr *pointer, size_t size,
                                                 CUstream stream) {
  ALLOCATE_FROM(current_reserve(stream, &reserve), pointer, size, stream, true,
                REAL(cuMemAllocAsync_ptsz)(pointer, size, stream),
                REAL(cuMemFreeAsync_ptsz)(*pointer, stream));
}

CUresult CUDAAPI HOOK_NAME(cuMemAllocFromPoolAsync)(CUdeviceptr *pointer, size_t size,
                                                    CUmemoryPool pool, CUstream stream) {
  ALLOCATE_FROM(named_reserve(pool, &reserve), pointer, size, stream, false,
                REAL(cuMemAllocFromPoolAsync)(pointer, size, pool, stream),
                REAL(cuMemFreeAsync)(*pointer, stream));
}

CUresult CUDAAPI HOOK_NAME(cuMemAllocFromPoolAsync_ptsz)(CUdeviceptr *pointer, size_t size,
                                                         CUmemoryPool pool, CUstream stream) {
  ALLOCATE_FROM(named_reserve(pool, &reserve), pointer, size, stream, true,
                REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, size, pool, stream),
                REAL(cuMemFreeAsync_ptsz)(*pointer, stream));
}

CUresult penstock_pool_free_end(const penstock_freeing *freeing, uint64_t stream, CUresult result) {
  if (!freeing->found) return result;
  if (freeing->object.kind == PENSTOCK_POOL_POINTER) return penstock_free_end(freeing, result);
  if (result == CUDA_SUCCESS) {
    penstock_reserve_unuse((penstock_reserve *)(uintptr_t)freeing->object.detail,
                           freeing->object.bytes, stream);
  } else {
    penstock_object_put(&freeing->object);
  }
  return result;
}

penstock_freeing penstock_pool_free_begin(CUdeviceptr pointer) {
  penstock_freeing freeing = penstock_free_begin(PENSTOCK_POOL_MEMORY, pointer);
  return freeing.found ? freeing : penstock_free_begin(PENSTOCK_POOL_POINTER, pointer);
}

CUresult CUDAAPI HOOK_NAME(cuMemFreeAsync)(CUdeviceptr pointer, CUstream stream) {
  penstock_freeing freeing = penstock_pool_free_begin(pointer);
  uint64_t id = freeing.found ? id_to_free_in(stream, false) : PENSTOCK_NO_STREAM;
  return penstock_pool_free_end(&freeing, id, REAL(cuMemFreeAsync)(pointer, stream));
}

CUresult CUDAAPI HOOK_NAME(cuMemFreeAsync_ptsz)(CUdeviceptr pointer, CUstream stream) {
  penstock_freeing freeing = penstock_pool_free_begin(pointer);
  uint64_t id = freeing.found ? id_to_free_in(stream, true) : PENSTOCK_NO_STREAM;
  return penstock_pool_free_end(&freeing, id, REAL(cuMemFreeAsync_ptsz)(pointer, stream));
}

CUresult CUDAAPI HOOK_NAME(cuMemPoolCreate)(CUmemoryPool *pool, const CUmemPoolProps *properties) {
  CUresult result = REAL(cuMemPoolCreate)(pool, properties);
  if (result != CUDA_SUCCESS) return result;
  penstock_reserve *reserve = reserve_at(*pool, &properties->location, properties->allocType);
  if (!reserve) {
    REAL(cuMemPoolDestroy)(*pool); /* without a reserve the pool could not be charged */
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (properties->handleTypes && !reserve->free_of_charge) {
    reserve->share = penstock_shares_make_empty(reserve->grant);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI HOOK_NAME(cuMemPoolDestroy)(CUmemoryPool pool) {
  penstock_reserve *reserve = penstock_reserve_find(pool);
  if (reserve) {
    penstock_reserve_retire(reserve);
    return penstock_reserve_retired(reserve, REAL(cuMemPoolDestroy)(pool));
  }
  penstock_freeing freeing = penstock_free_begin(PENSTOCK_POOL_IMPORT, (uint64_t)(uintptr_t)pool);
  return penstock_free_end(&freeing, REAL(cuMemPoolDestroy)(pool));
}

CUresult CUDAAPI HOOK_NAME(cuMemPoolTrimTo)(CUmemoryPool pool, size_t keep_bytes) {
  CUresult result = REAL(cuMemPoolTrimTo)(pool, keep_bytes);
  penstock_reserve *reserve = penstock_reserve_find(pool);
  if (result == CUDA_SUCCESS && reserve) penstock_reserve_settle(reserve, 0);
  return result;
}
