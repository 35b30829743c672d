/* The list of all reserves of this process: lookup by pool, and settlement of those that may have
 * shrunk. */
#include <stdlib.h>
#include <time.h>

#include "devices/grants.h"
#include "loading/driver.h"
#include "mechanism/lock.h"
#include "memory/graph_memory.h"
#include "memory/reserve_internal.h"
#include "process/fork_wiped.h"

#define FIRST_STEP_BYTES (2u << 20) /* the least that drivers map, until more is learned */
/* What a pool maps at once for a small request, until more is learned. With a driver that maps
 * less, pools cannot use the last part of a quota, because the shim could learn that only by
 * exceeding the quota. */
#define POOL_CHUNK_BYTES (32u << 20)
#define LONGEST_PIN_NS 1000000000

typedef struct reserve_list {
  uint32_t lock;
  uint32_t may_shrink; /* something was freed since all reserves were last settled */
  uint64_t chunk;      /* learned size of a chunk if above POOL_CHUNK_BYTES, otherwise 0 */
  penstock_reserve
      *newest; /* newest reserve; read without the lock, because the list only grows here */
} reserve_list;

static penstock_reserve *newest(const reserve_list *list) {
  return __atomic_load_n(&list->newest, __ATOMIC_ACQUIRE);
}

static reserve_list *get_list(void) {
  static penstock_fork_wiped memory;
  return penstock_fork_wiped_get(&memory, sizeof(reserve_list));
}

static penstock_reserve *lookup(const reserve_list *list, CUmemoryPool pool, CUdevice device) {
  for (penstock_reserve *reserve = newest(list); reserve; reserve = reserve->older) {
    if (reserve->pool != pool || penstock_reserve_is_destroyed(reserve)) continue;
    if (pool || reserve->device == device) return reserve;
  }
  return NULL;
}

/* Returns true for the reserve of a destroyed pool for which nothing is charged or can be charged
 * any more. */
static bool is_unused(penstock_reserve *reserve) {
  if (!penstock_reserve_is_destroyed(reserve)) return false;
  penstock_lock_acquire(&reserve->lock);
  bool unused = penstock_reserve_is_destroyed(reserve) && reserve->charged == 0 &&
                reserve->pending == 0 && reserve->used == 0 && reserve->in_flight == 0 &&
                reserve->share == 0 && reserve->pins == 0;
  penstock_lock_release(&reserve->lock);
  return unused;
}

/* Adds a copy of `fresh`, in the entry of a destroyed pool if there is one. Entries are never freed
 * because a program that uses a pool while destroying it must not crash the shim. The caller holds
 * the lock. */
static penstock_reserve *add(reserve_list *list, const penstock_reserve *fresh) {
  penstock_reserve *reserve = newest(list);
  while (reserve && !is_unused(reserve)) reserve = reserve->older;
  if (reserve) {
    penstock_reserve *older = reserve->older;
    *reserve = *fresh;
    reserve->older = older;
    return reserve;
  }
  reserve = malloc(sizeof *reserve);
  if (!reserve) return NULL;
  *reserve = *fresh;
  reserve->older = newest(list);
  __atomic_store_n(&list->newest, reserve, __ATOMIC_RELEASE);
  return reserve;
}

static penstock_reserve *find_or_add(CUmemoryPool pool, CUdevice device, bool on_host) {
  reserve_list *list = get_list();
  if (!list) return NULL;
  int grant = on_host ? -1 : penstock_grant_of(device);
  penstock_lock_acquire(&list->lock);
  penstock_reserve *reserve = lookup(list, pool, device);
  const penstock_reserve fresh = {.pool = pool,
                                  .device = device,
                                  .grant = grant,
                                  .free_of_charge = on_host,
                                  .step = FIRST_STEP_BYTES};
  if (!reserve) reserve = add(list, &fresh);
  penstock_lock_release(&list->lock);
  return reserve;
}

penstock_reserve *penstock_reserve_of_pool(CUmemoryPool pool, CUdevice device, bool on_host) {
  return pool ? find_or_add(pool, device, on_host) : NULL;
}

penstock_reserve *penstock_reserve_of_graphs(CUdevice device) {
  return find_or_add(NULL, device, false);
}

penstock_reserve *penstock_reserve_find(CUmemoryPool pool) {
  reserve_list *list = get_list();
  if (!list || !pool) return NULL;
  penstock_lock_acquire(&list->lock);
  penstock_reserve *reserve = lookup(list, pool, 0);
  penstock_lock_release(&list->lock);
  return reserve;
}

uint64_t penstock_reserve_chunk(const penstock_reserve *reserve) {
  const reserve_list *list = get_list();
  uint64_t learned = list ? __atomic_load_n(&list->chunk, __ATOMIC_RELAXED) : 0;
  if (!reserve->pool) return 0;
  return learned ? learned : POOL_CHUNK_BYTES;
}

void penstock_reserves_learn_chunk(uint64_t bytes) {
  reserve_list *list = get_list();
  if (list) __atomic_store_n(&list->chunk, bytes, __ATOMIC_RELAXED);
}

/* ---- pins: driver calls for a pool that another thread may destroy ---- */

/* Pins a reserve. Returns false if the pool is destroyed already. */
static bool pin(penstock_reserve *reserve) {
  penstock_lock_acquire(&reserve->lock);
  bool exists = !penstock_reserve_is_destroyed(reserve);
  if (exists) reserve->pins++;
  penstock_lock_release(&reserve->lock);
  return exists;
}

static void unpin(penstock_reserve *reserve) {
  penstock_lock_acquire(&reserve->lock);
  reserve->pins--;
  penstock_lock_release(&reserve->lock);
}

void penstock_reserve_wait_until_unpinned(penstock_reserve *reserve) {
  const struct timespec pause = {.tv_nsec = 20000};
  for (uint64_t waited = 0; waited < LONGEST_PIN_NS; waited += (uint64_t)pause.tv_nsec) {
    penstock_lock_acquire(&reserve->lock);
    uint32_t pins = reserve->pins;
    penstock_lock_release(&reserve->lock);
    if (!pins) return;
    nanosleep(&pause, NULL);
  }
}

/* ---- settlement of all reserves ---- */

static void note_may_shrink(reserve_list *list) {
  __atomic_store_n(&list->may_shrink, 1, __ATOMIC_RELEASE);
}

void penstock_reserves_changed(void) {
  reserve_list *list = get_list();
  if (list) note_may_shrink(list);
}

bool penstock_reserves_settle(void) {
  static __thread bool settling; /* prevents a settlement that charges from starting another one */
  reserve_list *list = get_list();
  if (!list || settling || !__atomic_exchange_n(&list->may_shrink, 0, __ATOMIC_ACQ_REL)) {
    return false;
  }
  bool came_back = false;
  settling = true;
  penstock_graph_memory_reserves();
  for (penstock_reserve *reserve = newest(list); reserve; reserve = reserve->older) {
    penstock_charged before = penstock_reserve_charged(reserve);
    bool is_empty = before.bytes == 0 && before.excess == 0;
    /* The graph memory of a device is read even if it was empty, because graphs may have taken some
     * unannounced. */
    if ((is_empty && reserve->pool) || !pin(reserve)) continue;
    if (before.excess) {
      penstock_reserve_shed_excess(reserve);
    } else {
      penstock_reserve_settle(reserve, 0);
    }
    unpin(reserve);
    penstock_charged after = penstock_reserve_charged(reserve);
    came_back |= after.bytes < before.bytes;
    if (after.may_shrink) note_may_shrink(list); /* the driver may keep the memory for a while */
  }
  settling = false;
  return came_back;
}

bool penstock_reserves_trim(void) {
  reserve_list *list = get_list();
  bool trimmed = false;
  for (penstock_reserve *reserve = list ? newest(list) : NULL; reserve; reserve = reserve->older) {
    if (!reserve->pool || !penstock_reserve_charged(reserve).may_shrink || !pin(reserve)) continue;
    trimmed |= REAL(cuMemPoolTrimTo)(reserve->pool, 0) == CUDA_SUCCESS;
    unpin(reserve);
  }
  if (trimmed) note_may_shrink(list);
  return trimmed && penstock_reserves_settle();
}
