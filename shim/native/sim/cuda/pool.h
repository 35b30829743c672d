/* Pools of stream-ordered memory. Callers of all functions here hold the big lock. */
#pragma once
#include "sim/cuda/core.h"

typedef struct sim_block {
  uint64_t address, bytes;
  bool used;
  uint32_t stream; /* stream in which it was freed */
  sim_ref freed;   /* the free, in stream order */
  struct sim_chunk *chunk;
  struct sim_block *before, *after;
} sim_block;

typedef struct sim_chunk {
  uint64_t address, bytes;
  uint64_t shared; /* ID of the shared memory once a pointer into the chunk was exported */
  bool left;       /* true if the chunk is left to its importers when the pool is destroyed */
  bool of_pool;    /* true if the chunk's memory counts as shared memory of the exported pool */
  sim_block *first;
  struct sim_chunk *next;
} sim_chunk;

struct sim_pool {
  sim_gpu *gpu;           /* the device that provides its memory; unused for pools on the host */
  CUmemLocation location; /* for managed memory, the preferred location */
  CUmemAllocationType type;
  bool on_host; /* true if the pool takes no device memory */
  /* true if current for its location and type; for pinned memory of devices see sim_gpu */
  bool is_current;
  sim_chunk *chunks;
  uint64_t reserved, reserved_high, used, used_high, threshold, most;
  int reuse_event, reuse_opportunistic, reuse_internal;
  bool is_default, dying, exportable;
  uint64_t shared; /* ID of the shared memory, 0 if not exported yet */
  uint64_t maker;  /* in an imported pool, the pool in the process that made it */
  struct sim_pool *next;
};

sim_pool *sim_pool_new(sim_gpu *gpu, uint64_t most);
/* Returns the default or the current pool of a location and type. */
sim_pool *sim_pool_at(const CUmemLocation *location, CUmemAllocationType type, bool current);
sim_pool *sim_pool_default(sim_gpu *gpu);
CUresult sim_pool_of(CUmemoryPool handle, sim_pool **pool);
/* Makes a chunk part of the exported pool's shared memory, which the pool's importers keep
 * (`with_pool`), or separate from it again. */
void sim_pool_hand_out_chunk(sim_pool *pool, sim_chunk *chunk, bool with_pool);
void sim_pool_merge(sim_pool *pool);
void sim_pool_trim(sim_pool *pool, uint64_t keep_bytes);
void sim_pool_drop_chunk(sim_pool *pool, sim_chunk *chunk);
void sim_pool_free(sim_pool *pool);
