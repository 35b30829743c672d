/* Device allocations as a driver makes them: small ones share slabs, and large ones take whole
 * slabs. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim/cuda/core.h"

#define UNIT_BYTES 512u
#define UNITS 4096u /* number of units in a 2 MiB slab */

typedef struct sim_slab {
  struct sim_slab *next;
  uint64_t address;
  uint32_t units, used;
  uint64_t taken[UNITS / 64];
} sim_slab;

static bool unit_taken(const sim_slab *s, uint32_t i) { return s->taken[i / 64] >> (i % 64) & 1; }

static void mark(sim_slab *s, uint32_t from, uint32_t count, bool taken) {
  for (uint32_t i = from; i < from + count; i++) {
    if (taken)
      s->taken[i / 64] |= 1ull << (i % 64);
    else
      s->taken[i / 64] &= ~(1ull << (i % 64));
  }
  s->used += taken ? count : -count;
}

/* Returns the first of `count` consecutive free units, or UNITS if there are none. */
static uint32_t find_run(const sim_slab *s, uint32_t count) {
  uint32_t run = 0;
  for (uint32_t i = 0; i < s->units; i++) {
    if (i % 64 == 0 && s->taken[i / 64] == ~0ull) {
      run = 0;
      i += 63;
      continue;
    }
    run = unit_taken(s, i) ? 0 : run + 1;
    if (run == count) return i + 1 - count;
  }
  return UNITS;
}

static uint64_t slab_bytes(const sim_gpu *gpu) {
  uint64_t bytes = gpu->profile->slab_bytes;
  return bytes > UNITS * UNIT_BYTES ? UNITS * UNIT_BYTES : bytes;
}

static sim_slab *new_slab(sim_gpu *gpu) {
  if (!sim_memory_take(sim_here.machine, gpu->device, gpu->client, gpu->profile->slab_bytes))
    return NULL;
  sim_slab *s = calloc(1, sizeof *s);
  uint64_t address = s ? sim_pages_take(slab_bytes(gpu)) : 0;
  if (!address) {
    free(s);
    sim_memory_give(sim_here.machine, gpu->device, gpu->client, gpu->profile->slab_bytes);
    return NULL;
  }
  s->address = address;
  s->units = (uint32_t)(slab_bytes(gpu) / UNIT_BYTES);
  s->next = gpu->slabs;
  gpu->slabs = s;
  return s;
}

static bool take_small(sim_gpu *gpu, sim_alloc *alloc) {
  uint32_t count = (uint32_t)((alloc->bytes + UNIT_BYTES - 1) / UNIT_BYTES);
  sim_slab *s = gpu->slabs;
  uint32_t at = UNITS;
  for (; s; s = s->next)
    if (s->units - s->used >= count && (at = find_run(s, count)) != UNITS) break;
  if (!s) {
    s = new_slab(gpu);
    if (!s) return false;
    at = 0;
  }
  mark(s, at, count, true);
  alloc->slab = s;
  alloc->address = s->address + (uint64_t)at * UNIT_BYTES;
  return true;
}

static void give_small(sim_gpu *gpu, sim_alloc *alloc) {
  sim_slab *s = alloc->slab;
  uint32_t count = (uint32_t)((alloc->bytes + UNIT_BYTES - 1) / UNIT_BYTES);
  mark(s, (uint32_t)((alloc->address - s->address) / UNIT_BYTES), count, false);
  if (s->used) return;
  for (sim_slab **link = &gpu->slabs; *link; link = &(*link)->next) {
    if (*link != s) continue;
    *link = s->next;
    break;
  }
  sim_pages_give(s->address, (uint64_t)s->units * UNIT_BYTES);
  sim_memory_give(sim_here.machine, gpu->device, gpu->client, gpu->profile->slab_bytes);
  free(s);
}

static bool take_large(sim_gpu *gpu, sim_alloc *alloc) {
  uint64_t slab = gpu->profile->slab_bytes;
  uint64_t bytes = (alloc->bytes + slab - 1) / slab * slab;
  if (bytes < alloc->bytes || !sim_memory_take(sim_here.machine, gpu->device, gpu->client, bytes))
    return false;
  alloc->address = sim_pages_take(bytes);
  if (!alloc->address) {
    sim_memory_give(sim_here.machine, gpu->device, gpu->client, bytes);
    return false;
  }
  alloc->charged_bytes = alloc->mapped_bytes = bytes;
  return true;
}

/* Allocates device or managed memory. Returns NULL if the device has too little free memory. The
 * caller holds the big lock. */
sim_alloc *sim_alloc_new(sim_gpu *gpu, sim_context *ctx, uint64_t bytes, enum sim_alloc_kind kind) {
  if (sim_fault_hits(sim_here.machine, gpu->device, SIM_FAULT_OUT_OF_MEMORY, sim_self.call, NULL))
    return NULL;
  sim_alloc *alloc = calloc(1, sizeof *alloc);
  if (!alloc) return NULL;
  *alloc = (sim_alloc){.bytes = bytes, .gpu = gpu, .ctx = ctx, .kind = kind};
  bool small = kind != SIM_MANAGED && bytes <= slab_bytes(gpu) / 2;
  if (!(small ? take_small(gpu, alloc) : take_large(gpu, alloc))) {
    free(alloc);
    return NULL;
  }
  sim_alloc_insert(alloc);
  return alloc;
}

/* Frees an allocation of a kind that has no other owner. The caller holds the big lock. */
void sim_alloc_free(sim_alloc *alloc) {
  sim_alloc_remove(alloc);
  if (alloc->slab) {
    give_small(alloc->gpu, alloc);
  } else if (alloc->mapped_bytes) {
    /* An imported allocation may start inside a page. */
    uint64_t from = alloc->address & ~(uint64_t)4095;
    /* The pages of imported memory belong to another process, so the heap's own are mapped again.
     */
    if (alloc->kind == SIM_IMPORTED || alloc->kind == SIM_POOL_IMPORTED ||
        alloc->kind == SIM_EXTERNAL_MAP)
      sim_heap_map_at(from, sim_heap_offset(from), alloc->mapped_bytes, -1, PROT_READ | PROT_WRITE);
    sim_pages_give(from, alloc->mapped_bytes);
  }
  if (alloc->shared)
    sim_shared_leave(sim_here.machine, alloc->gpu->device, alloc->gpu->client, alloc->shared);
  else if (alloc->charged_bytes)
    sim_memory_give(sim_here.machine, alloc->gpu->device, alloc->gpu->client, alloc->charged_bytes);
  if (alloc->own_mapping) munmap((void *)alloc->address, alloc->bytes);
  free(alloc);
}
