#include "graph_memory.h"

#include "charge.h"
#include "common/log.h"
#include "driver.h"
#include "fork_wiped.h"
#include "hooks/hook.h"
#include "hooks/pool.h"
#include "mechanism/lock.h"
#include "objects.h"

static bool seen; /* in this process, or in the one that it was forked from */

void penstock_graph_memory_seen(void) { __atomic_store_n(&seen, true, __ATOMIC_RELEASE); }

static bool is_in_use(void) { return __atomic_load_n(&seen, __ATOMIC_ACQUIRE); }

/* What the executables that were launched need, since the device's reserve was last seen empty. */
typedef struct graph_sums {
  uint64_t round;   /* counts from 1 how often it was begun anew */
  uint64_t stream;  /* that all of them were launched in; PENSTOCK_NO_STREAM: several … */
  bool is_known;    /* … none yet */
  uint64_t in_turn; /* the most that one of them uses while it runs … */
  uint64_t kept;    /* … and what all of them leave allocated */
  uint64_t at_once; /* all of them side by side */
} graph_sums;

typedef struct graph_pool {
  uint32_t lock;
  graph_sums sums;
} graph_pool;

static graph_pool *pool_of(CUdevice device) {
  static penstock_fork_wiped memory;
  graph_pool *all = penstock_fork_wiped_get(&memory, PENSTOCK_GRAPH_DEVICES * sizeof *all);
  return all && device >= 0 && device < PENSTOCK_GRAPH_DEVICES ? &all[device] : NULL;
}

static uint64_t sum_of(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX / 2 : sum;
}

/* What an executable needs on one device; `round`: of the pool, when it was counted there. */
typedef struct need {
  uint64_t peak, kept, round;
} need;

/* With one executable more. */
static graph_sums sums_with(graph_sums sums, const need *n, uint64_t stream) {
  if (!sums.round) sums.round = 1;
  if (n->round != sums.round) {
    uint64_t passing = n->peak - n->kept;
    if (passing > sums.in_turn) sums.in_turn = passing;
    sums.kept = sum_of(sums.kept, n->kept);
    sums.at_once = sum_of(sums.at_once, n->peak);
  }
  if (!sums.is_known) sums.stream = stream;
  if (sums.stream != stream) sums.stream = PENSTOCK_NO_STREAM;
  sums.is_known = true;
  return sums;
}

/* The most that the reserve may hold once `n` is launched as well. Counts it if that is no more
 * than `counted`. */
static uint64_t most_with(graph_pool *pool, need *n, uint64_t stream, uint64_t counted) {
  penstock_lock_acquire(&pool->lock);
  graph_sums sums = sums_with(pool->sums, n, stream);
  bool in_turn = sums.stream != PENSTOCK_NO_STREAM;
  uint64_t most = in_turn ? sum_of(sums.in_turn, sums.kept) : sums.at_once;
  if (most <= counted) {
    pool->sums = sums;
    n->round = sums.round;
  }
  penstock_lock_release(&pool->lock);
  return most;
}

/* Nothing of it is in use, and nothing is there. */
static void begin_anew(graph_pool *pool) {
  penstock_lock_acquire(&pool->lock);
  pool->sums = (graph_sums){.round = pool->sums.round + 1};
  penstock_lock_release(&pool->lock);
}

static bool is_empty(CUdevice device) {
  cuuint64_t bytes = 1;
  CUresult result =
      REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes);
  return result == CUDA_SUCCESS && bytes == 0;
}

void penstock_graph_memory_trimmed(CUdevice device) {
  graph_pool *pool = is_in_use() ? pool_of(device) : NULL;
  if (pool && is_empty(device)) begin_anew(pool);
}

static uint64_t growth(penstock_reserve *reserve, graph_pool *pool, need *n, uint64_t stream,
                       uint64_t *most) {
  *most = most_with(pool, n, stream, 0);
  penstock_lock_acquire(&reserve->lock);
  uint64_t there = reserve->charged;
  penstock_lock_release(&reserve->lock);
  uint64_t lacks = *most > there ? *most - there : 0;
  return lacks < n->peak ? lacks : n->peak;
}

/* Where there is no room for it, what idle graphs hold goes back to the device first. It counts
 * once it is charged: what is refused leaves no trace. */
static CUresult admit(penstock_reserve *reserve, need *n, uint64_t stream, uint64_t *bound) {
  graph_pool *pool = pool_of(reserve->device);
  if (!pool) return penstock_reserve_admit_growth(reserve, n->peak, bound);
  for (;;) {
    uint64_t most, bytes = growth(reserve, pool, n, stream, &most);
    if (bytes && !penstock_charge_if_it_fits(0, reserve->grant, bytes)) {
      if (REAL(cuDeviceGraphMemTrim)(reserve->device) == CUDA_SUCCESS) {
        penstock_reserve_settle(reserve, 0);
        penstock_graph_memory_trimmed(reserve->device);
      }
      bytes = growth(reserve, pool, n, stream, &most);
    } else {
      penstock_uncharge(reserve->grant, bytes);
    }
    CUresult result = penstock_reserve_admit_growth(reserve, bytes, bound);
    if (result != CUDA_SUCCESS || most_with(pool, n, stream, most) <= most) return result;
    penstock_reserve_cancel_growth(reserve, *bound); /* another thread's has come in between */
  }
}

/* One entry a device: executables lie at addresses with room for that. */
static uint64_t key_of(CUgraphExec exec, int device) {
  return (uint64_t)(uintptr_t)exec * PENSTOCK_GRAPH_DEVICES + (uint64_t)device;
}

/* Needs are whole pieces: `detail` counts those of both sorts, `bytes` is the round. */
#define PIECE_SHIFT 21
#define MOST_PIECES UINT32_MAX

static uint64_t pieces_of(uint64_t bytes) {
  return bytes >> PIECE_SHIFT < MOST_PIECES ? bytes >> PIECE_SHIFT : MOST_PIECES;
}

static bool need_of(CUgraphExec exec, int device, need *n) {
  penstock_object entry;
  if (!penstock_object_find(PENSTOCK_GRAPH_EXEC, key_of(exec, device), &entry)) return false;
  *n = (need){.peak = entry.detail >> 32 << PIECE_SHIFT,
              .kept = (entry.detail & MOST_PIECES) << PIECE_SHIFT,
              .round = entry.bytes};
  return true;
}

static void put(CUgraphExec exec, int device, const need *n) {
  penstock_object entry = {.key = key_of(exec, device),
                           .bytes = n->round,
                           .detail = pieces_of(n->peak) << 32 | pieces_of(n->kept),
                           .grant = -1,
                           .kind = PENSTOCK_GRAPH_EXEC};
  if (!penstock_object_put(&entry)) penstock_log("no memory to remember a graph's memory");
}

void penstock_graph_memory_made(CUgraphExec exec, CUgraph graph, bool taken) {
  if (!is_in_use()) return;
  penstock_graph_needs needs;
  penstock_graph_plan(graph, &needs);
  for (int device = 0; device < PENSTOCK_GRAPH_DEVICES; device++) {
    need n = {.peak = needs.peak[device], .kept = needs.kept[device]};
    const graph_pool *pool = taken ? pool_of(device) : NULL;
    if (pool) n.round = __atomic_load_n(&pool->sums.round, __ATOMIC_RELAXED);
    penstock_object old;
    if (n.peak) {
      put(exec, device, &n);
    } else {
      penstock_object_take(PENSTOCK_GRAPH_EXEC, key_of(exec, device), &old);
    }
  }
}

/* What the graph needed before cannot be told from what it needs now: both. */
void penstock_graph_memory_changed(CUgraphExec exec, CUgraph child) {
  if (!is_in_use()) return;
  penstock_graph_needs needs;
  penstock_graph_plan(child, &needs);
  for (int device = 0; device < PENSTOCK_GRAPH_DEVICES; device++) {
    need n = {.peak = 0};
    if (!needs.peak[device]) continue;
    need_of(exec, device, &n);
    n.peak = sum_of(n.peak, needs.peak[device]);
    n.kept = sum_of(n.kept, needs.kept[device]);
    n.round = 0;
    put(exec, device, &n);
  }
}

static void cancel(const penstock_graph_memory_pass *pass) {
  for (unsigned i = 0; i < pass->count; i++) {
    penstock_reserve_cancel_growth(pass->reserves[i], pass->bounds[i]);
  }
}

static CUresult enter_on(penstock_graph_memory_pass *pass, int device, need *n, uint64_t stream) {
  penstock_reserve *reserve = penstock_reserve_of_graphs(device);
  uint64_t bound = 0;
  CUresult result = reserve ? admit(reserve, n, stream, &bound) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) {
    cancel(pass);
    pass->count = 0;
    return result;
  }
  pass->reserves[pass->count] = reserve;
  pass->bounds[pass->count++] = bound;
  return CUDA_SUCCESS;
}

CUresult penstock_graph_memory_enter(penstock_graph_memory_pass *pass, CUgraphExec exec,
                                     CUstream stream, bool per_thread) {
  CUresult result = CUDA_SUCCESS;
  uint64_t id = 0;
  pass->count = 0;
  if (!is_in_use()) return CUDA_SUCCESS;
  for (int device = 0; device < PENSTOCK_GRAPH_DEVICES && result == CUDA_SUCCESS; device++) {
    need n;
    if (!need_of(exec, device, &n)) continue;
    const uint64_t round = n.round;
    if (!id) id = penstock_pool_stream_id(stream, per_thread);
    result = enter_on(pass, device, &n, id);
    if (result == CUDA_SUCCESS && n.round != round) put(exec, device, &n);
  }
  return result;
}

CUresult penstock_graph_memory_enter_new(penstock_graph_memory_pass *pass, CUgraph graph,
                                         CUstream stream, bool per_thread) {
  CUresult result = CUDA_SUCCESS;
  penstock_graph_needs needs;
  pass->count = 0;
  if (!is_in_use()) return CUDA_SUCCESS;
  penstock_graph_plan(graph, &needs);
  uint64_t id = penstock_pool_stream_id(stream, per_thread);
  for (int device = 0; device < PENSTOCK_GRAPH_DEVICES && result == CUDA_SUCCESS; device++) {
    need n = {.peak = needs.peak[device], .kept = needs.kept[device]};
    if (n.peak) result = enter_on(pass, device, &n, id);
  }
  return result;
}

CUresult penstock_graph_memory_leave(const penstock_graph_memory_pass *pass, CUresult result) {
  if (result != CUDA_SUCCESS) cancel(pass); /* one device may have grown, not the next */
  for (unsigned i = 0; i < pass->count; i++) {
    penstock_reserve *reserve = pass->reserves[i];
    if (!penstock_reserve_settle(reserve, result == CUDA_SUCCESS ? pass->bounds[i] : 0)) {
      penstock_log("graph memory of device %d grew beyond the quota", reserve->device);
    }
  }
  if (pass->count) penstock_reserves_changed();
  return result;
}

void penstock_graph_memory_gone(CUgraphExec exec) {
  if (!is_in_use()) return;
  penstock_object entry;
  for (int device = 0; device < PENSTOCK_GRAPH_DEVICES; device++) {
    penstock_object_take(PENSTOCK_GRAPH_EXEC, key_of(exec, device), &entry);
  }
}

void penstock_graph_memory_reserves(void) {
  int count = 0;
  if (!is_in_use() || REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) return;
  for (CUdevice device = 0; device < count && device < PENSTOCK_GRAPH_DEVICES; device++) {
    if (penstock_grant_of(device) >= 0) penstock_reserve_of_graphs(device);
  }
}
