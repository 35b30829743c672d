/* Stream-ordered memory: pools, and allocation and free in stream order.
 *
 * A pool takes memory from the device in chunks. It keeps freed memory until a synchronisation
 * finds more than its release threshold unused. A freed block may be reused at once in the stream
 * that freed it, and in other streams once the free has been reached.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/graph.h"
#include "sim/cuda/pool.h"

#define CHUNK_BYTES (32 * SIM_MIB)
#define UNIT 512u
/* beyond any device, so that the sums of sizes below cannot wrap around */
#define MOST_BYTES (1ull << 48)

static sim_pool *pools; /* guarded by the big lock */

sim_pool *sim_pool_new(sim_gpu *gpu, uint64_t most) {
  sim_pool *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  *p = (sim_pool){.gpu = gpu,
                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, {gpu->ordinal}},
                  .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                  .most = most,
                  .reuse_event = 1,
                  .reuse_opportunistic = 1,
                  .reuse_internal = 1,
                  .next = pools};
  /* atomic, because it is also read without the lock */
  __atomic_store_n(&pools, p, __ATOMIC_RELEASE);
  sim_handle_add(p, SIM_POOL);
  return p;
}

sim_pool *sim_pool_at(const CUmemLocation *location, CUmemAllocationType type, bool current) {
  bool anywhere = location->type == CU_MEM_LOCATION_TYPE_NONE ||
                  location->type == CU_MEM_LOCATION_TYPE_HOST; /* the host has no ordinals */
  sim_pool *p = pools;
  while (p && (p->dying || p->type != type || p->location.type != location->type ||
               (!anywhere && p->location.id != location->id) ||
               !(current ? p->is_current : p->is_default)))
    p = p->next;
  return p;
}

sim_pool *sim_pool_default(sim_gpu *gpu) {
  if (!gpu->default_pool && (gpu->default_pool = sim_pool_new(gpu, 0)))
    gpu->default_pool->is_default = true;
  return gpu->default_pool;
}

bool sim_pool_is_on_host(const sim_pool *pool) { return pool->on_host; }

CUresult sim_pool_of(CUmemoryPool handle, sim_pool **pool) {
  if (!sim_handle_is(handle, SIM_POOL)) return CUDA_ERROR_INVALID_VALUE;
  *pool = (sim_pool *)handle;
  return CUDA_SUCCESS;
}

/* ---- chunks and blocks; the caller holds the big lock ---- */

static bool take_device(const sim_pool *p, uint64_t bytes) {
  return p->on_host || sim_memory_take(sim_here.machine, p->gpu->device, p->gpu->client, bytes);
}

static void give_device(const sim_pool *p, uint64_t bytes) {
  if (!p->on_host) sim_memory_give(sim_here.machine, p->gpu->device, p->gpu->client, bytes);
}

static bool empty(const sim_chunk *c) {
  for (const sim_block *b = c->first; b; b = b->after)
    if (b->used || !sim_done_quick(sim_here.machine, &b->freed)) return false;
  return true;
}

void sim_pool_hand_out_chunk(sim_pool *p, sim_chunk *c, bool with_pool) {
  if (c->of_pool == with_pool || c->shared) return;
  c->of_pool = with_pool;
  sim_shared_grow(sim_here.machine, p->gpu->device, p->gpu->client, p->shared,
                  with_pool ? (int64_t)c->bytes : -(int64_t)c->bytes);
}

void sim_pool_drop_chunk(sim_pool *p, sim_chunk *c) {
  if (!c->left) sim_pool_hand_out_chunk(p, c, false);
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
  if (c->shared)
    sim_shared_leave(sim_here.machine, p->gpu->device, p->gpu->client, c->shared);
  else if (!c->left)
    give_device(p, c->bytes);
  free(c);
}

void sim_pool_free(sim_pool *p) {
  /* Memory of an exported pool stays while a descriptor is open or another process holds the
   * pool. */
  for (sim_chunk *c = p->chunks; c; c = c->next) c->left = c->of_pool;
  while (p->chunks) sim_pool_drop_chunk(p, p->chunks);
  if (p->shared) sim_shared_leave(sim_here.machine, p->gpu->device, p->gpu->client, p->shared);
  for (sim_pool **link = &pools; *link; link = &(*link)->next) {
    if (*link != p) continue;
    *link = p->next;
    break;
  }
  free(p);
}

void sim_pool_trim(sim_pool *p, uint64_t keep) {
  for (sim_chunk *c = p->chunks, *next; c; c = next) {
    next = c->next;
    if (p->reserved > keep && p->reserved - c->bytes >= (keep < p->used ? p->used : keep) &&
        empty(c))
      sim_pool_drop_chunk(p, c);
  }
}

static sim_chunk *new_chunk(sim_pool *p, uint64_t bytes) {
  if (p->most && p->reserved + bytes > p->most) return NULL;
  if (!take_device(p, bytes)) return NULL;
  sim_chunk *c = calloc(1, sizeof *c);
  sim_block *b = calloc(1, sizeof *b);
  uint64_t address = c && b ? sim_pages_take(bytes) : 0;
  if (!address) {
    free(c);
    free(b);
    give_device(p, bytes);
    return NULL;
  }
  *b = (sim_block){.address = address, .bytes = bytes, .chunk = c};
  *c = (sim_chunk){.address = address, .bytes = bytes, .first = b, .next = p->chunks};
  p->chunks = c;
  if (p->shared) sim_pool_hand_out_chunk(p, c, true);
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

/* Merges a free block with its free neighbours unless a stream still has to wait for one of them.
 * Returns the merged block. */
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

void sim_pool_merge(sim_pool *p) {
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
  if (bytes > MOST_BYTES) return NULL;
  uint64_t rounded = (bytes + UNIT - 1) / UNIT * UNIT;
  if (sim_fault_hits(sim_here.machine, p->gpu->device, SIM_FAULT_OUT_OF_MEMORY, sim_self.call,
                     NULL))
    return NULL;
  sim_block *b = find_block(p, rounded, stream);
  if (!b) {
    sim_pool_merge(p);
    b = find_block(p, rounded, stream);
  }
  if (!b) b = grow(p, rounded);
  if (!b) { /* the device is full, so release unused memory of other pools */
    for (sim_pool *other = pools; other; other = other->next)
      if (other->gpu == p->gpu) sim_pool_trim(other, 0);
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
  if (p->dying && !p->used) sim_pool_free(p);
}

void sim_pool_free_now(sim_alloc *alloc) {
  sim_ref none = {0};
  put_back(alloc, &none, 0);
}

/* After a synchronisation, returns unused memory above the release threshold to the device. */
void sim_pools_settle(sim_gpu *gpu) {
  if (!__atomic_load_n(&pools, __ATOMIC_ACQUIRE)) return;
  sim_big_lock();
  for (sim_pool *p = pools; p; p = p->next)
    if (p->gpu == gpu && p->reserved > p->threshold && p->reserved > p->used)
      sim_pool_trim(p, p->threshold);
  sim_big_unlock();
}

/* ---- allocation and free ---- */

static CUresult capture_take(sim_pool *p, sim_stream *stream, size_t bytes, CUdeviceptr *out) {
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
  params.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.alloc.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, {p->gpu->ordinal}};
  params.alloc.bytesize = bytes;
  sim_work work;
  if (p->on_host || p->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_NOT_SUPPORTED;
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
    p = gpu->current_pool ? gpu->current_pool : sim_pool_default(gpu);
    sim_big_unlock();
  }
  REQUIRE(p, CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(bytes && !p->maker, CUDA_ERROR_INVALID_VALUE); /* an imported pool cannot allocate */
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
  TRY(sim_pool_of(handle, &p));
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
  bool direct = ours && (alloc->kind == SIM_DEVICE || alloc->kind == SIM_POOL_IMPORTED);
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
  /* memory of cuMemAlloc is freed when its work is done */
  if (direct) return cuMemFree_v2(pointer);
  return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
