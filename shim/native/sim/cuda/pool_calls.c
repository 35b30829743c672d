/* Calls for pools: create, trim, get and set attributes, and choose the pool of a device. */
#include <stdlib.h>

#include "sim/cuda/pool.h"

/* ---- pools ---- */

/* Finds the device that provides the memory of a pool of this location and type. Real managed
 * memory moves to where it is used; here it is on the current or preferred device from the start,
 * as with cuMemAllocManaged. */
static CUresult place(const CUmemLocation *location, CUmemAllocationType type, sim_gpu **gpu,
                      bool *on_host) {
  bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  REQUIRE(managed || type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE);
  *on_host = false;
  *gpu = sim_current() ? sim_current()->gpu : &sim_here.gpus[0];
  switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return sim_gpu_of(location->id, gpu);
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      REQUIRE(location->id == 0, CUDA_ERROR_INVALID_VALUE); /* the host has one NUMA node */
      *on_host = !managed;
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
      *on_host = !managed;
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_NONE:
      return managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

/* Makes a pool of a location and type. The caller holds the big lock. */
static sim_pool *pool_at(const CUmemLocation *location, CUmemAllocationType type, sim_gpu *gpu,
                         bool on_host) {
  sim_pool *p = sim_pool_new(gpu, 0);
  if (!p) return NULL;
  p->location = *location;
  p->type = type;
  p->on_host = on_host;
  return p;
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
  ENTER("cuMemPoolCreate");
  sim_gpu *gpu;
  bool on_host;
  REQUIRE(out && props, CUDA_ERROR_INVALID_VALUE);
  TRY(place(&props->location, props->allocType, &gpu, &on_host));
  bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  REQUIRE(!managed || (!props->maxSize && !props->usage), CUDA_ERROR_INVALID_VALUE);
  REQUIRE(!props->handleTypes || (!managed && !on_host), CUDA_ERROR_INVALID_VALUE);
  if (props->handleTypes && props->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  sim_big_lock();
  sim_pool *p = pool_at(&props->location, props->allocType, gpu, on_host);
  if (p) {
    p->most = props->maxSize;
    p->exportable = props->handleTypes;
  }
  *out = (CUmemoryPool)p;
  sim_big_unlock();
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
  ENTER("cuMemPoolDestroy");
  sim_pool *p;
  TRY(sim_pool_of(handle, &p));
  REQUIRE(!p->is_default, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  sim_handle_remove(p);
  if (p->gpu->current_pool == p) p->gpu->current_pool = NULL;
  p->dying = true;
  if (!p->used) sim_pool_free(p);
  sim_big_unlock();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  ENTER("cuMemPoolTrimTo");
  sim_pool *p;
  TRY(sim_pool_of(handle, &p));
  sim_big_lock();
  if (p->gpu->client != SIM_NONE) sim_unlock(sim_lock(sim_here.machine, p->gpu->device));
  sim_pool_merge(p);
  sim_pool_trim(p, keep);
  sim_big_unlock();
  return CUDA_SUCCESS;
}

static CUresult get_attribute(sim_pool *p, CUmemPool_attribute attribute, void *value) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      *(int *)value = p->reuse_event;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      *(int *)value = p->reuse_opportunistic;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *(int *)value = p->reuse_internal;
      break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *(uint64_t *)value = p->threshold;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *(uint64_t *)value = p->reserved;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *(uint64_t *)value = p->reserved_high;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *(uint64_t *)value = p->used;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *(uint64_t *)value = p->used_high;
      break;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
      *(int *)value = p->type;
      break;
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
      *(int *)value = p->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
      break;
    case CU_MEMPOOL_ATTR_LOCATION_ID:
      if (getenv("PENSTOCK_SIM_BEFORE_13")) return CUDA_ERROR_INVALID_VALUE;
      *(int *)value = p->location.id;
      break;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
      if (getenv("PENSTOCK_SIM_BEFORE_13")) return CUDA_ERROR_INVALID_VALUE;
      *(int *)value = p->location.type;
      break;
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
      *(uint64_t *)value = p->most;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void *value) {
  ENTER("cuMemPoolGetAttribute");
  sim_pool *p;
  REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_pool_of(handle, &p));
  sim_big_lock();
  CUresult result = get_attribute(p, attribute, value);
  sim_big_unlock();
  return result;
}
static CUresult set_attribute(sim_pool *p, CUmemPool_attribute attribute, void *value) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      p->reuse_event = *(int *)value;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      p->reuse_opportunistic = *(int *)value;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      p->reuse_internal = *(int *)value;
      break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      p->threshold = *(uint64_t *)value;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      REQUIRE(!*(uint64_t *)value, CUDA_ERROR_INVALID_VALUE);
      p->reserved_high = p->reserved;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      REQUIRE(!*(uint64_t *)value, CUDA_ERROR_INVALID_VALUE);
      p->used_high = p->used;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void *value) {
  ENTER("cuMemPoolSetAttribute");
  sim_pool *p;
  REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_pool_of(handle, &p));
  sim_big_lock();
  CUresult result = set_attribute(p, attribute, value);
  sim_big_unlock();
  return result;
}
CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *list,
                                    size_t count) {
  ENTER("cuMemPoolSetAccess");
  sim_pool *p;
  REQUIRE(list || !count, CUDA_ERROR_INVALID_VALUE);
  return sim_pool_of(handle, &p);
}
CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle,
                                    CUmemLocation *location) {
  ENTER("cuMemPoolGetAccess");
  sim_pool *p;
  REQUIRE(flags && location, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_pool_of(handle, &p));
  *flags = location->id == p->gpu->ordinal ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                           : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

/* ---- the pool that a device uses ---- */

static CUresult give_pool(CUmemoryPool *out, CUdevice device, bool current) {
  sim_gpu *gpu;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  sim_big_lock();
  *out = (CUmemoryPool)(current && gpu->current_pool ? gpu->current_pool : sim_pool_default(gpu));
  sim_big_unlock();
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
  ENTER("cuDeviceGetDefaultMemPool");
  return give_pool(out, device, false);
}
CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
  ENTER("cuDeviceGetMemPool");
  return give_pool(out, device, true);
}
CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  ENTER("cuDeviceSetMemPool");
  sim_gpu *gpu;
  sim_pool *p;
  TRY(sim_gpu_of(device, &gpu));
  TRY(sim_pool_of(handle, &p));
  REQUIRE(p->gpu == gpu && p->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
              p->type == CU_MEM_ALLOCATION_TYPE_PINNED,
          CUDA_ERROR_INVALID_VALUE);
  gpu->current_pool = p;
  return CUDA_SUCCESS;
}

static bool is_devices_own(const CUmemLocation *location, CUmemAllocationType type) {
  return location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

static CUresult give_pool_at(CUmemoryPool *out, const CUmemLocation *location,
                             CUmemAllocationType type, bool current) {
  sim_gpu *gpu;
  bool on_host;
  REQUIRE(out && location, CUDA_ERROR_INVALID_VALUE);
  TRY(place(location, type, &gpu, &on_host));
  if (is_devices_own(location, type)) return give_pool(out, location->id, current);
  sim_big_lock();
  sim_pool *p = current ? sim_pool_at(location, type, true) : NULL;
  if (!p) p = sim_pool_at(location, type, false);
  if (!p && (p = pool_at(location, type, gpu, on_host))) p->is_default = true;
  *out = (CUmemoryPool)p;
  sim_big_unlock();
  return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location,
                                        CUmemAllocationType type) {
  ENTER("cuMemGetDefaultMemPool");
  return give_pool_at(out, location, type, false);
}
CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location,
                                 CUmemAllocationType type) {
  ENTER("cuMemGetMemPool");
  return give_pool_at(out, location, type, true);
}
CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                 CUmemoryPool handle) {
  ENTER("cuMemSetMemPool");
  sim_gpu *gpu;
  sim_pool *p;
  bool on_host;
  REQUIRE(location, CUDA_ERROR_INVALID_VALUE);
  TRY(place(location, type, &gpu, &on_host));
  TRY(sim_pool_of(handle, &p));
  if (is_devices_own(location, type)) return cuDeviceSetMemPool(location->id, handle);
  REQUIRE(p->type == type && p->location.type == location->type, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  sim_pool *before = sim_pool_at(&p->location, type, true);
  if (before) before->is_current = false;
  p->is_current = true;
  sim_big_unlock();
  return CUDA_SUCCESS;
}
