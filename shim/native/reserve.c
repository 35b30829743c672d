#include "reserve.h"

#include <stdlib.h>

#include "charge.h"
#include "driver.h"
#include "fork_wiped.h"
#include "hooks/hook.h"
#include "common/log.h"
#include "mechanism/lock.h"
#include "process.h"

#define FIRST_STEP_BYTES \
  (2u << 20) /* the smallest piece that the driver maps; larger ones are learned */
#define READ_AT_LEAST_EVERY 32 /* allocations: a fragmented reserve may grow unnoticed */
#define MOST_RESERVES 256

typedef struct reserve_table {
  uint32_t lock;
  uint32_t count;
  uint32_t slack; /* something was freed since the last settlement of all */
  penstock_reserve *all[MOST_RESERVES];
} reserve_table;

static reserve_table *table(void) {
  static penstock_fork_wiped memory;
  return penstock_fork_wiped_get(&memory, sizeof(reserve_table));
}

static penstock_reserve *lookup(const reserve_table *t, CUmemoryPool pool, CUdevice device) {
  for (uint32_t i = 0; i < t->count; i++) {
    penstock_reserve *reserve = t->all[i];
    if (reserve->pool != pool || reserve->destroyed) continue;
    if (pool || reserve->device == device) return reserve;
  }
  return NULL;
}

/* A slot of a destroyed, emptied pool is used again; others are never freed: a program that uses a
 * pool while it destroys it must not crash the shim. */
static penstock_reserve *vacant(reserve_table *t) {
  for (uint32_t i = 0; i < t->count; i++) {
    penstock_reserve *reserve = t->all[i];
    if (reserve->destroyed && reserve->charged == 0 && reserve->pending == 0 &&
        reserve->used == 0) {
      return reserve;
    }
  }
  if (t->count == MOST_RESERVES) return NULL;
  penstock_reserve *fresh = calloc(1, sizeof *fresh);
  if (fresh) t->all[t->count++] = fresh;
  return fresh;
}

static penstock_reserve *find_or_add(CUmemoryPool pool, CUdevice device, bool on_host) {
  reserve_table *t = table();
  if (!t) return NULL;
  int grant = on_host ? -1 : PENSTOCK_BELOW(penstock_grant_of(device));
  penstock_lock_acquire(&t->lock);
  penstock_reserve *reserve = lookup(t, pool, device);
  if (!reserve) {
    reserve = vacant(t);
    if (reserve) {
      *reserve = (penstock_reserve){.pool = pool,
                                    .device = device,
                                    .grant = grant,
                                    .free_of_charge = on_host,
                                    .step = FIRST_STEP_BYTES};
    }
  }
  penstock_lock_release(&t->lock);
  return reserve;
}

penstock_reserve *penstock_reserve_of_pool(CUmemoryPool pool, CUdevice device, bool on_host) {
  return pool ? find_or_add(pool, device, on_host) : NULL;
}

penstock_reserve *penstock_reserve_of_graphs(CUdevice device) {
  return find_or_add(NULL, device, false);
}

penstock_reserve *penstock_reserve_find(CUmemoryPool pool) {
  reserve_table *t = table();
  if (!t || !pool) return NULL;
  penstock_lock_acquire(&t->lock);
  penstock_reserve *reserve = lookup(t, pool, 0);
  penstock_lock_release(&t->lock);
  return reserve;
}

/* The reserve in the driver's own words; false when it does not say. Other threads may have a
 * capture open, which some calls would break: not so in relaxed mode. */
static bool read_reserve(const penstock_reserve *reserve, uint64_t *bytes) {
  cuuint64_t value = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  penstock_depth++;
  CUresult exchanged = REAL(cuThreadExchangeStreamCaptureMode)(&mode);
  CUresult result =
      reserve->pool
          ? REAL(cuMemPoolGetAttribute)(reserve->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value)
          : REAL(cuDeviceGetGraphMemAttribute)(reserve->device,
                                               CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value);
  if (exchanged == CUDA_SUCCESS) REAL(cuThreadExchangeStreamCaptureMode)(&mode);
  penstock_depth--;
  *bytes = value;
  return result == CUDA_SUCCESS;
}

static uint64_t in_steps(uint64_t bytes, uint64_t step) {
  uint64_t padded;
  if (__builtin_add_overflow(bytes, step - 1, &padded)) return UINT64_MAX;
  return padded - padded % step;
}

CUresult penstock_reserve_admit_growth(penstock_reserve *reserve, uint64_t bytes, uint64_t *bound) {
  uint64_t wanted = in_steps(bytes, __atomic_load_n(&reserve->step, __ATOMIC_RELAXED));
  *bound = 0;
  CUresult result = penstock_charge(reserve->grant, wanted);
  if (result != CUDA_SUCCESS) return result;
  penstock_lock_acquire(&reserve->lock);
  reserve->pending += wanted;
  penstock_lock_release(&reserve->lock);
  *bound = wanted;
  return CUDA_SUCCESS;
}

CUresult penstock_reserve_admit(penstock_reserve *reserve, uint64_t bytes, uint64_t *bound) {
  *bound = 0;
  if (reserve->free_of_charge) return CUDA_SUCCESS;
  penstock_lock_acquire(&reserve->lock);
  uint64_t after;
  bool fits = !__builtin_add_overflow(reserve->used, bytes, &after) && after <= reserve->charged &&
              ++reserve->unread < READ_AT_LEAST_EVERY;
  if (fits) reserve->used = after;
  penstock_lock_release(&reserve->lock);
  if (fits) return CUDA_SUCCESS;

  CUresult result = penstock_reserve_admit_growth(reserve, bytes, bound);
  if (result != CUDA_SUCCESS) return result;
  penstock_lock_acquire(&reserve->lock);
  reserve->used += bytes;
  penstock_lock_release(&reserve->lock);
  return CUDA_SUCCESS;
}

void penstock_reserve_cancel(penstock_reserve *reserve, uint64_t bytes, uint64_t bound) {
  if (reserve->free_of_charge) return;
  penstock_lock_acquire(&reserve->lock);
  reserve->used -= bytes < reserve->used ? bytes : reserve->used;
  reserve->pending -= bound;
  penstock_lock_release(&reserve->lock);
  penstock_uncharge(reserve->grant, bound);
}

/* Reads until nobody settled in between. Returns with the lock held. */
static bool read_and_lock(penstock_reserve *reserve, uint64_t *bytes) {
  for (int attempt = 0;; attempt++) {
    uint64_t version = __atomic_load_n(&reserve->version, __ATOMIC_ACQUIRE);
    bool known = read_reserve(reserve, bytes);
    penstock_lock_acquire(&reserve->lock);
    if (reserve->version == version || attempt == 8) {
      __atomic_store_n(&reserve->version, reserve->version + 1, __ATOMIC_RELEASE);
      reserve->unread = 0;
      return known;
    }
    penstock_lock_release(&reserve->lock);
  }
}

bool penstock_reserve_settle(penstock_reserve *reserve, uint64_t bound) {
  if (reserve->free_of_charge) return true;
  uint64_t bytes;
  bool known = read_and_lock(reserve, &bytes);
  uint64_t held = reserve->charged + bound; /* what this call may dispose of */
  reserve->pending -= bound;
  if (!known) bytes = held;
  uint64_t growth = bytes > reserve->charged ? bytes - reserve->charged : 0;
  if (bound && growth > reserve->step && reserve->pending == 0 && growth > bound) {
    reserve->step = growth; /* the driver takes larger pieces than was thought */
  }
  uint64_t more = bytes > held + reserve->pending ? bytes - held - reserve->pending : 0;
  reserve->charged = bytes < held ? bytes : held;
  if (bytes == 0) reserve->used = 0;
  uint64_t back = held - reserve->charged;
  penstock_lock_release(&reserve->lock);

  penstock_uncharge(reserve->grant, back);
  if (more == 0) return true;
  if (penstock_charge(reserve->grant, more) != CUDA_SUCCESS) return false;
  penstock_lock_acquire(&reserve->lock);
  reserve->charged += more;
  penstock_lock_release(&reserve->lock);
  return true;
}

void penstock_reserve_unuse(penstock_reserve *reserve, uint64_t bytes) {
  if (reserve->free_of_charge) return;
  uint64_t back = 0;
  penstock_lock_acquire(&reserve->lock);
  reserve->used -= bytes < reserve->used ? bytes : reserve->used;
  if (reserve->destroyed && reserve->charged > reserve->used) {
    back = reserve->charged - reserve->used;
    reserve->charged = reserve->used;
  }
  penstock_lock_release(&reserve->lock);
  penstock_uncharge(reserve->grant, back);
  reserve_table *t = table();
  if (t) __atomic_store_n(&t->slack, 1, __ATOMIC_RELEASE);
}

/* Before the driver's call: another thread may get the same handle for a new pool right after it.
 */
void penstock_reserve_retire(penstock_reserve *reserve) {
  __atomic_store_n(&reserve->destroyed, true, __ATOMIC_RELEASE);
}

CUresult penstock_reserve_retired(penstock_reserve *reserve, CUresult result) {
  if (result == CUDA_SUCCESS) {
    penstock_reserve_unuse(reserve, 0);
  } else {
    __atomic_store_n(&reserve->destroyed, false, __ATOMIC_RELEASE);
  }
  return result;
}

bool penstock_reserves_settle(void) {
  reserve_table *t = table();
  if (!t || !__atomic_exchange_n(&t->slack, 0, __ATOMIC_ACQ_REL)) return false;
  uint32_t count = __atomic_load_n(&t->count, __ATOMIC_ACQUIRE);
  bool came_back = false;
  for (uint32_t i = 0; i < count; i++) {
    penstock_reserve *reserve = t->all[i];
    uint64_t before = reserve->charged;
    if (before == 0 || reserve->destroyed) continue;
    penstock_reserve_settle(reserve, 0);
    came_back |= reserve->charged < before;
    /* The driver may keep it for a while yet: look again next time. */
    if (reserve->charged > reserve->used) __atomic_store_n(&t->slack, 1, __ATOMIC_RELEASE);
  }
  return came_back;
}
