/* Pools of stream-ordered memory; everything here with the big lock held. */
#pragma once
#include "sim/cuda/core.h"

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
  uint64_t shared; /* what the device knows it as once a pointer into it was exported */
  bool left;       /* to them, as the pool goes */
  bool of_pool;    /* else: what it knows the pool as has it, once that was handed out */
  sim_block *first;
  struct sim_chunk *next;
} sim_chunk;

struct sim_pool {
  sim_gpu *gpu;           /* that its memory is taken of; of the host's pools, only to have one */
  CUmemLocation location; /* of managed memory: where it is preferred */
  CUmemAllocationType type;
  bool on_host;    /* takes no memory of a device */
  bool is_current; /* of its location and type; of devices' pinned memory see sim_gpu */
  sim_chunk *chunks;
  uint64_t reserved, reserved_high, used, used_high, threshold, most;
  int reuse_event, reuse_opportunistic, reuse_internal;
  bool is_default, dying, exportable;
  uint64_t shared; /* what the device knows it as; 0: not handed out yet */
  uint64_t maker;  /* of an imported one: the pool where it was made */
  struct sim_pool *next;
};

sim_pool *sim_pool_new(sim_gpu *gpu, uint64_t most);
/* The first of this location and type that is its default or, so asked, the current one. */
sim_pool *sim_pool_at(const CUmemLocation *location, CUmemAllocationType type, bool current);
sim_pool *sim_pool_default(sim_gpu *gpu);
CUresult sim_pool_of(CUmemoryPool handle, sim_pool **pool);
/* The pool was handed out: who has that keeps the chunk. Or no more: it has a name of its own. */
void sim_pool_hand_out_chunk(sim_pool *pool, sim_chunk *chunk, bool with_pool);
void sim_pool_merge(sim_pool *pool);
void sim_pool_trim(sim_pool *pool, uint64_t keep_bytes);
void sim_pool_drop_chunk(sim_pool *pool, sim_chunk *chunk);
void sim_pool_free(sim_pool *pool);
