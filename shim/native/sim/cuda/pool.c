/* Stream-ordered memory: pools, allocation and free in stream order.
 *
 * A pool takes memory from the device in chunks and keeps what is freed until a synchronisation
 * finds more than its release threshold unused. A freed block may be used again at once in the
 * stream that freed it, elsewhere when the free has been reached.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/graph.h"

#define CHUNK_BYTES (32 * SIM_MIB)
#define UNIT 512u

typedef struct sim_block {
  uint64_t address, bytes;
  bool used;
  uint32_t stream; /* that freed it */
  sim_ref freed;   /* the free, in stream order */
  struct sim_chunk *chunk;
  struct sim_block *before, *after;
} sim_block;

typedef struct sim_chunk {
  uint64_t address, bytes;
  sim_block *first;
  struct sim_chunk *next;
} sim_chunk;

struct sim_pool {
  sim_gpu *gpu;
  sim_chunk *chunks;
  uint64_t reserved, reserved_high, used, used_high, threshold, most;
  int reuse_event, reuse_opportunistic, reuse_internal;
  bool is_default, dying;
  struct sim_pool *next;
};

static sim_pool *pools; /* big lock */

static sim_pool *new_pool(sim_gpu *gpu, uint64_t most) {
  sim_pool *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  *p = (sim_pool){.gpu = gpu,
                  .most = most,
                  .reuse_event = 1,
                  .reuse_opportunistic = 1,
                  .reuse_internal = 1,
                  .next = pools};
  pools = p;
  sim_handle_add(p, SIM_POOL);
  return p;
}

static sim_pool *default_pool(sim_gpu *gpu) {
  if (!gpu->default_pool && (gpu->default_pool = new_pool(gpu, 0)))
    gpu->default_pool->is_default = true;
  return gpu->default_pool;
}

static CUresult pool_of(CUmemoryPool handle, sim_pool **pool) {
  if (!sim_handle_is(handle, SIM_POOL)) return CUDA_ERROR_INVALID_VALUE;
  *pool = (sim_pool *)handle;
  return CUDA_SUCCESS;
}

/* ---- chunks and blocks; big lock held ---- */

static bool empty(const sim_chunk *c) {
  for (const sim_block *b = c->first; b; b = b->after)
    if (b->used || !sim_done_quick(sim_here.machine, &b->freed)) return false;
  return true;
}

static void drop_chunk(sim_pool *p, sim_chunk *c) {
  for (sim_chunk **link = &p->chunks; *link; link = &(*link)->next) {
    if (*link != c) continue;
    *link = c->next;
    break;
  }
  for (sim_block *b = c->first, *after; b; b = after) {
    after = b->after;
    free(b);
  }
  p->reserved -= c->bytes;
  sim_pages_give(c->address, c->bytes);
  sim_memory_give(sim_here.machine, p->gpu->device, p->gpu->client, c->bytes);
  free(c);
}

static void trim(sim_pool *p, uint64_t keep) {
  for (sim_chunk *c = p->chunks, *next; c; c = next) {
    next = c->next;
    if (p->reserved > keep && p->reserved - c->bytes >= (keep < p->used ? p->used : keep) &&
        empty(c))
      drop_chunk(p, c);
  }
}

static sim_chunk *new_chunk(sim_pool *p, uint64_t bytes) {
  if (p->most && p->reserved + bytes > p->most) return NULL;
  if (!sim_memory_take(sim_here.machine, p->gpu->device, p->gpu->client, bytes)) return NULL;
  sim_chunk *c = calloc(1, sizeof *c);
  sim_block *b = calloc(1, sizeof *b);
  uint64_t address = c && b ? sim_pages_take(bytes) : 0;
  if (!address) {
    free(c);
    free(b);
    sim_memory_give(sim_here.machine, p->gpu->device, p->gpu->client, bytes);
    return NULL;
  }
  *b = (sim_block){.address = address, .bytes = bytes, .chunk = c};
  *c = (sim_chunk){.address = address, .bytes = bytes, .first = b, .next = p->chunks};
  p->chunks = c;
  p->reserved += bytes;
  if (p->reserved > p->reserved_high) p->reserved_high = p->reserved;
  return c;
}

static bool usable(const sim_block *b, uint32_t stream) {
  return !b->used &&
         (!b->freed.seq || b->stream == stream || sim_done_quick(sim_here.machine, &b->freed));
}

static void merge_after(sim_block *b) {
  sim_block *next = b->after;
  b->bytes += next->bytes;
  b->after = next->after;
  if (next->after) next->after->before = b;
  free(next);
}

/* Neighbours become one when nobody has to wait for either. Returns what `b` has become part of. */
static sim_block *merge(sim_block *b) {
  sim_machine *m = sim_here.machine;
  while (b->after && !b->after->used && sim_done_quick(m, &b->after->freed) &&
         sim_done_quick(m, &b->freed))
    merge_after(b);
  while (b->before && !b->before->used && sim_done_quick(m, &b->before->freed) &&
         sim_done_quick(m, &b->freed)) {
    b = b->before;
    merge_after(b);
  }
  return b;
}

static void merge_all(sim_pool *p) {
  for (sim_chunk *c = p->chunks; c; c = c->next)
    for (sim_block *b = c->first; b; b = b->after)
      if (!b->used) b = merge(b);
}

static sim_block *find_block(sim_pool *p, uint64_t bytes, uint32_t stream) {
  for (sim_chunk *c = p->chunks; c; c = c->next)
    for (sim_block *b = c->first; b; b = b->after)
      if (b->bytes >= bytes && usable(b, stream)) return b;
  return NULL;
}

static sim_block *grow(sim_pool *p, uint64_t bytes) {
  uint64_t slab = p->gpu->profile->slab_bytes, exact = (bytes + slab - 1) / slab * slab;
  sim_chunk *c = exact < CHUNK_BYTES ? new_chunk(p, CHUNK_BYTES) : NULL;
  if (!c) c = new_chunk(p, exact);
  return c ? c->first : NULL;
}

static sim_alloc *take(sim_pool *p, uint64_t bytes, uint32_t stream) {
  uint64_t rounded = (bytes + UNIT - 1) / UNIT * UNIT;
  if (sim_fault_hits(sim_here.machine, p->gpu->device, SIM_FAULT_OUT_OF_MEMORY, sim_self.call,
                     NULL))
    return NULL;
  sim_block *b = find_block(p, rounded, stream);
  if (!b) {
    merge_all(p);
    b = find_block(p, rounded, stream);
  }
  if (!b) b = grow(p, rounded);
  if (!b) { /* the device is full: what other pools keep unused goes first */
    for (sim_pool *other = pools; other; other = other->next)
      if (other->gpu == p->gpu) trim(other, 0);
    b = grow(p, rounded);
  }
  sim_alloc *alloc = b ? calloc(1, sizeof *alloc) : NULL;
  if (!alloc) return NULL;
  if (b->bytes > rounded) {
    sim_block *rest = calloc(1, sizeof *rest);
    if (rest) {
      *rest = (sim_block){.address = b->address + rounded,
                          .bytes = b->bytes - rounded,
                          .stream = b->stream,
                          .freed = b->freed,
                          .chunk = b->chunk,
                          .before = b,
                          .after = b->after};
      if (b->after) b->after->before = rest;
      b->after = rest;
      b->bytes = rounded;
    }
  }
  b->used = true;
  p->used += b->bytes;
  if (p->used > p->used_high) p->used_high = p->used;
  *alloc = (sim_alloc){.address = b->address,
                       .bytes = bytes,
                       .gpu = p->gpu,
                       .kind = SIM_POOLED,
                       .pool = p,
                       .block = b};
  sim_alloc_insert(alloc);
  return alloc;
}

static void put_back(sim_alloc *alloc, const sim_ref *freed, uint32_t stream) {
  sim_block *b = alloc->block;
  sim_pool *p = alloc->pool;
  sim_alloc_remove(alloc);
  free(alloc);
  b->used = false;
  b->freed = *freed;
  b->stream = stream;
  p->used -= b->bytes;
  merge(b);
  if (p->dying && !p->used) {
    while (p->chunks) drop_chunk(p, p->chunks);
    for (sim_pool **link = &pools; *link; link = &(*link)->next) {
      if (*link != p) continue;
      *link = p->next;
      break;
    }
    free(p);
  }
}

void sim_pool_free_now(sim_alloc *alloc) {
  sim_ref none = {0};
  put_back(alloc, &none, 0);
}

/* After a synchronisation unused memory above the threshold goes back to the device. */
void sim_pools_settle(sim_gpu *gpu) {
  if (!__atomic_load_n(&pools, __ATOMIC_ACQUIRE)) return;
  sim_big_lock();
  for (sim_pool *p = pools; p; p = p->next)
    if (p->gpu == gpu && p->reserved > p->threshold && p->reserved > p->used) trim(p, p->threshold);
  sim_big_unlock();
}

/* ---- allocation and free ---- */

static CUresult capture_take(sim_pool *p, sim_stream *stream, size_t bytes, CUdeviceptr *out) {
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
  params.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.alloc.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, {p->gpu->ordinal}};
  params.alloc.bytesize = bytes;
  sim_work work;
  TRY(sim_work_from_params(&params, &work));
  TRY(sim_capture_add(stream, &work));
  *out = params.alloc.dptr;
  return CUDA_SUCCESS;
}

static CUresult allocate(sim_context *ctx, CUdeviceptr *out, size_t bytes, sim_pool *p,
                         CUstream handle) {
  sim_stream *stream;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_stream_of(handle, ctx, &stream));
  if (!p) {
    sim_gpu *gpu = stream->ctx->gpu;
    sim_big_lock();
    p = gpu->current_pool ? gpu->current_pool : default_pool(gpu);
    sim_big_unlock();
  }
  REQUIRE(p, CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(bytes, CUDA_ERROR_INVALID_VALUE);
  if (stream->capture) return capture_take(p, stream, bytes, out);
  TRY(sim_attach_gpu(p->gpu));
  sim_big_lock();
  uint64_t before = p->reserved;
  sim_alloc *alloc = take(p, bytes, stream->lane);
  bool grown = p->reserved != before;
  if (alloc) *out = alloc->address;
  sim_big_unlock();
  const sim_profile *profile = ctx->gpu->profile;
  sim_spend(grown ? profile->memory_slab_ns : profile->stream_op_ns);
  return alloc ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
  ENTER_CONTEXT("cuMemAllocAsync");
  return allocate(ctx, out, bytes, NULL, stream);
}
CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool handle,
                                         CUstream stream) {
  ENTER_CONTEXT("cuMemAllocFromPoolAsync");
  sim_pool *p;
  TRY(pool_of(handle, &p));
  return allocate(ctx, out, bytes, p, stream);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
  ENTER_CONTEXT("cuMemFreeAsync");
  sim_stream *stream;
  TRY(sim_stream_of(handle, ctx, &stream));
  if (!pointer) return CUDA_SUCCESS;
  if (stream->capture) {
    sim_work work = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .give = {pointer}};
    return sim_capture_add(stream, &work);
  }
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(pointer);
  bool ours = alloc && alloc->address == pointer;
  bool direct = ours && alloc->kind == SIM_DEVICE;
  if (ours && alloc->kind == SIM_GRAPH_MEMORY && alloc->flags) {
    alloc->flags = 0;
    sim_graph_memory_give(alloc->gpu, alloc->mapped_bytes);
  } else if (ours && alloc->kind == SIM_POOLED) {
    sim_gpu *gpu = stream->ctx->gpu;
    sim_ref tail = sim_stream_tail(sim_here.machine, gpu->device, gpu->client, stream->lane);
    put_back(alloc, &tail, stream->lane);
  } else if (!direct) {
    ours = false;
  }
  sim_big_unlock();
  sim_spend(ctx->gpu->profile->stream_op_ns);
  if (direct) return cuMemFree_v2(pointer); /* memory of cuMemAlloc: freed when its work is done */
  return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- pools ---- */

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
  ENTER("cuMemPoolCreate");
  sim_gpu *gpu;
  REQUIRE(out && props && props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED,
          CUDA_ERROR_INVALID_VALUE);
  if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || props->handleTypes)
    return CUDA_ERROR_NOT_SUPPORTED;
  TRY(sim_gpu_of(props->location.id, &gpu));
  sim_big_lock();
  *out = (CUmemoryPool)new_pool(gpu, props->maxSize);
  sim_big_unlock();
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
  ENTER("cuMemPoolDestroy");
  sim_pool *p;
  TRY(pool_of(handle, &p));
  REQUIRE(!p->is_default, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  sim_handle_remove(p);
  if (p->gpu->current_pool == p) p->gpu->current_pool = NULL;
  p->dying = true;
  if (!p->used) {
    while (p->chunks) drop_chunk(p, p->chunks);
    for (sim_pool **link = &pools; *link; link = &(*link)->next) {
      if (*link != p) continue;
      *link = p->next;
      break;
    }
    free(p);
  }
  sim_big_unlock();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  ENTER("cuMemPoolTrimTo");
  sim_pool *p;
  TRY(pool_of(handle, &p));
  sim_big_lock();
  if (p->gpu->client != SIM_NONE) sim_unlock(sim_lock(sim_here.machine, p->gpu->device));
  merge_all(p);
  trim(p, keep);
  sim_big_unlock();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void *value) {
  ENTER("cuMemPoolGetAttribute");
  sim_pool *p;
  REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
  TRY(pool_of(handle, &p));
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
      *(int *)value = CU_MEM_ALLOCATION_TYPE_PINNED;
      break;
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
      *(int *)value = 0;
      break;
    case CU_MEMPOOL_ATTR_LOCATION_ID:
      *(int *)value = p->gpu->ordinal;
      break;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
      *(int *)value = CU_MEM_LOCATION_TYPE_DEVICE;
      break;
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
      *(uint64_t *)value = p->most;
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
  TRY(pool_of(handle, &p));
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
CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *list,
                                    size_t count) {
  ENTER("cuMemPoolSetAccess");
  sim_pool *p;
  REQUIRE(list || !count, CUDA_ERROR_INVALID_VALUE);
  return pool_of(handle, &p);
}
CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle,
                                    CUmemLocation *location) {
  ENTER("cuMemPoolGetAccess");
  sim_pool *p;
  REQUIRE(flags && location, CUDA_ERROR_INVALID_VALUE);
  TRY(pool_of(handle, &p));
  *flags = location->id == p->gpu->ordinal ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                           : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

/* ---- which pool a device uses ---- */

static CUresult give_pool(CUmemoryPool *out, CUdevice device, bool current) {
  sim_gpu *gpu;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  sim_big_lock();
  *out = (CUmemoryPool)(current && gpu->current_pool ? gpu->current_pool : default_pool(gpu));
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
  TRY(pool_of(handle, &p));
  REQUIRE(p->gpu == gpu, CUDA_ERROR_INVALID_VALUE);
  gpu->current_pool = p;
  return CUDA_SUCCESS;
}

static CUresult plain_location(const CUmemLocation *location, CUmemAllocationType type) {
  REQUIRE(location, CUDA_ERROR_INVALID_VALUE);
  bool plain =
      location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
  return plain ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location,
                                        CUmemAllocationType type) {
  ENTER("cuMemGetDefaultMemPool");
  TRY(plain_location(location, type));
  return give_pool(out, location->id, false);
}
CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location,
                                 CUmemAllocationType type) {
  ENTER("cuMemGetMemPool");
  TRY(plain_location(location, type));
  return give_pool(out, location->id, true);
}
CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                 CUmemoryPool handle) {
  ENTER("cuMemSetMemPool");
  TRY(plain_location(location, type));
  return cuDeviceSetMemPool(location->id, handle);
}
