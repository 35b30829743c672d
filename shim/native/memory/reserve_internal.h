/* Interface between reserve.c, which handles one reserve, and reserve_list.c, which handles all of
 * them. */
#pragma once

#include "memory/reserve.h"

/* A reserve's charge at one moment. */
typedef struct penstock_charged {
  uint64_t bytes;
  uint64_t with_bounds; /* charge including the bounds of allocations in flight */
  uint64_t excess;
  bool may_shrink; /* the driver may return some of the memory to the device */
} penstock_charged;

penstock_charged penstock_reserve_charged(penstock_reserve *reserve);

/* Trims a reserve that holds more than the quota could be charged. Returns false if it still holds
 * more. */
bool penstock_reserve_shed_excess(penstock_reserve *reserve);

/* Returns true if the pool is destroyed. `destroyed` is read without the lock because it is set and
 * reset without it. */
static inline bool penstock_reserve_is_destroyed(const penstock_reserve *reserve) {
  return __atomic_load_n(&reserve->destroyed, __ATOMIC_ACQUIRE);
}

/* Returns the least that the driver maps for a pool when it has to grow, or 0 for graph memory. */
uint64_t penstock_reserve_chunk(const penstock_reserve *reserve);
void penstock_reserves_learn_chunk(uint64_t bytes);

/* Waits until no thread has the reserve pinned, but no longer than a second, because a thread may
 * be cancelled while it holds a pin. */
void penstock_reserve_wait_until_unpinned(penstock_reserve *reserve);
