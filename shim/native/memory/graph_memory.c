#include "memory/graph_memory.h"

#include "common/log.h"
#include "devices/grants.h"
#include "hooks/pool.h"
#include "loading/driver.h"
#include "mechanism/lock.h"
#include "memory/charge.h"
#include "memory/objects.h"
#include "process/fork_wiped.h"

static bool seen; /* set by this process or by the one that it was forked from */

void penstock_graph_memory_seen(void) { __atomic_store_n(&seen, true, __ATOMIC_RELEASE); }

static bool is_in_use(void) { return __atomic_load_n(&seen, __ATOMIC_ACQUIRE); }

/* Sums of the needs of the executables that were launched in this epoch. An epoch starts when the
 * device's reserve is found empty. */
typedef struct graph_sums {
  uint64_t epoch;      /* number of the epoch, from 1 */
  uint64_t stream;     /* stream of all launches, PENSTOCK_NO_STREAM if they were in several */
  bool is_known;       /* there was a launch */
  uint64_t sequential; /* the most that any one executable uses only while it runs */
  uint64_t kept;       /* sum of what all executables leave allocated */
  uint64_t concurrent; /* sum of all peaks */
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

/* An executable's need on one device. `epoch` is the epoch in which the need was counted in the
 * pool's sums. */
typedef struct need {
  uint64_t peak, kept, epoch;
} need;

/* Returns the sums with one more executable. */
static graph_sums sums_with(graph_sums sums, const need *n, uint64_t stream) {
  if (!sums.epoch) sums.epoch = 1;
  if (n->epoch != sums.epoch) {
    uint64_t passing = n->peak - n->kept;
    if (passing > sums.sequential) sums.sequential = passing;
    sums.kept = sum_of(sums.kept, n->kept);
    sums.concurrent = sum_of(sums.concurrent, n->peak);
  }
  if (!sums.is_known) sums.stream = stream;
  if (sums.stream != stream) sums.stream = PENSTOCK_NO_STREAM;
  sums.is_known = true;
  return sums;
}

/* Returns the largest size of the reserve once `n` is launched as well. Adds `n` to the sums if
 * that size is at most `counted`. */
static uint64_t bound_with(graph_pool *pool, need *n, uint64_t stream, uint64_t counted) {
  penstock_lock_acquire(&pool->lock);
  graph_sums sums = sums_with(pool->sums, n, stream);
  bool sequential = sums.stream != PENSTOCK_NO_STREAM;
  uint64_t most = sequential ? sum_of(sums.sequential, sums.kept) : sums.concurrent;
  if (most <= counted) {
    pool->sums = sums;
    n->epoch = sums.epoch;
  }
  penstock_lock_release(&pool->lock);
  return most;
}

/* Starts a new epoch, because the reserve is empty. */
static void start_epoch(graph_pool *pool) {
  penstock_lock_acquire(&pool->lock);
  pool->sums = (graph_sums){.epoch = pool->sums.epoch + 1};
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
  if (pool && is_empty(device)) start_epoch(pool);
}

static uint64_t growth(penstock_reserve *reserve, graph_pool *pool, need *n, uint64_t stream,
                       uint64_t *most) {
  *most = bound_with(pool, n, stream, 0);
  penstock_lock_acquire(&reserve->lock);
  uint64_t there = reserve->charged;
  penstock_lock_release(&reserve->lock);
  uint64_t lacks = *most > there ? *most - there : 0;
  return lacks < n->peak ? lacks : n->peak;
}

/* Charges the growth for one executable. If the quota has no room, idle graph memory is first
 * returned to the device. The executable is added to the sums only once it is charged. */
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
    if (result != CUDA_SUCCESS || bound_with(pool, n, stream, most) <= most) return result;
    /* Another thread has added an executable in the meantime. */
    penstock_reserve_cancel_growth(reserve, *bound);
  }
}

/* Returns the object key of an executable on one device. The keys are distinct because the
 * addresses of executables are far enough apart. */
static uint64_t key_of(CUgraphExec exec, int device) {
  return (uint64_t)(uintptr_t)exec * PENSTOCK_GRAPH_DEVICES + (uint64_t)device;
}

/* In the object of an executable, `detail` contains peak and kept as counts of 2 MiB pieces, and
 * `bytes` is the epoch. */
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
              .epoch = entry.bytes};
  return true;
}

static void put(CUgraphExec exec, int device, const need *n) {
  penstock_object entry = {.key = key_of(exec, device),
                           .bytes = n->epoch,
                           .detail = pieces_of(n->peak) << 32 | pieces_of(n->kept),
                           .grant = -1,
                           .kind = PENSTOCK_GRAPH_EXEC};
  if (!penstock_object_put(&entry)) penstock_log("no host memory left to record a graph's memory");
}

void penstock_graph_memory_made(CUgraphExec exec, CUgraph graph, bool taken) {
  if (!is_in_use()) return;
  penstock_graph_needs needs;
  penstock_graph_plan(graph, &needs);
  for (int device = 0; device < PENSTOCK_GRAPH_DEVICES; device++) {
    need n = {.peak = needs.peak[device], .kept = needs.kept[device]};
    const graph_pool *pool = taken ? pool_of(device) : NULL;
    if (pool) n.epoch = __atomic_load_n(&pool->sums.epoch, __ATOMIC_RELAXED);
    penstock_object old;
    if (n.peak) {
      put(exec, device, &n);
    } else {
      penstock_object_take(PENSTOCK_GRAPH_EXEC, key_of(exec, device), &old);
    }
  }
}

/* The former need of the child graph is unknown, so its new need is added. */
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
    n.epoch = 0;
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
    const uint64_t epoch = n.epoch;
    if (!id) id = penstock_pool_stream_id(stream, per_thread);
    result = enter_on(pass, device, &n, id);
    if (result == CUDA_SUCCESS && n.epoch != epoch) put(exec, device, &n);
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
  /* The driver may have mapped memory on one device before it failed on the next one, so each
   * reserve is settled below. */
  if (result != CUDA_SUCCESS) cancel(pass);
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
