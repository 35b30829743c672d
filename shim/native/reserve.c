#include "reserve.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "charge.h"
#include "driver.h"
#include "fork_wiped.h"
#include "graph_memory.h"
#include "hooks/hook.h"
#include "hooks/launch.h"
#include "common/log.h"
#include "mechanism/lock.h"
#include "process.h"
#include "shares.h"

#define FIRST_STEP_BYTES (2u << 20) /* the least that drivers map; more is learned */
/* What a pool takes at once for a small request; more is learned. On a driver that takes less the
 * last of a quota is refused to pools; to find that out one would have to pass the quota. */
#define POOL_PIECE_BYTES (32u << 20)
#define LONGEST_TURN_NS 50000000
#define LONGEST_VISIT_NS 1000000000

typedef struct reserve_table {
  uint32_t lock;
  uint32_t slack;           /* something was freed since the last settlement of all */
  uint64_t piece;           /* what pools take at once, where it is more than is assumed; else 0 */
  penstock_reserve *newest; /* a list that only grows, at this end: read without the lock */
} reserve_table;

static penstock_reserve *newest(const reserve_table *t) {
  return __atomic_load_n(&t->newest, __ATOMIC_ACQUIRE);
}

static reserve_table *table(void) {
  static penstock_fork_wiped memory;
  return penstock_fork_wiped_get(&memory, sizeof(reserve_table));
}

/* Set and taken back without the lock. */
static bool is_destroyed(const penstock_reserve *reserve) {
  return __atomic_load_n(&reserve->destroyed, __ATOMIC_ACQUIRE);
}

static penstock_reserve *lookup(const reserve_table *t, CUmemoryPool pool, CUdevice device) {
  for (penstock_reserve *reserve = newest(t); reserve; reserve = reserve->older) {
    if (reserve->pool != pool || is_destroyed(reserve)) continue;
    if (pool || reserve->device == device) return reserve;
  }
  return NULL;
}

/* Is nothing charged for it, nor will be? */
static bool is_over(penstock_reserve *reserve) {
  if (!is_destroyed(reserve)) return false;
  penstock_lock_acquire(&reserve->lock);
  bool over = is_destroyed(reserve) && reserve->charged == 0 && reserve->pending == 0 &&
              reserve->used == 0 && reserve->under_way == 0 && reserve->share == 0 &&
              reserve->visits == 0;
  penstock_lock_release(&reserve->lock);
  return over;
}

/* Before calls for a pool that is not the caller's own business: until `end_visit` it is not
 * destroyed. False: it is already. */
static bool visit(penstock_reserve *reserve) {
  penstock_lock_acquire(&reserve->lock);
  bool is_there = !is_destroyed(reserve);
  if (is_there) reserve->visits++;
  penstock_lock_release(&reserve->lock);
  return is_there;
}

static void end_visit(penstock_reserve *reserve) {
  penstock_lock_acquire(&reserve->lock);
  reserve->visits--;
  penstock_lock_release(&reserve->lock);
}

/* Not for ever: a thread may be cancelled in the middle of its visit. */
static void await_visits(penstock_reserve *reserve) {
  const struct timespec pause = {.tv_nsec = 20000};
  for (uint64_t waited = 0; waited < LONGEST_VISIT_NS; waited += (uint64_t)pause.tv_nsec) {
    penstock_lock_acquire(&reserve->lock);
    uint32_t visits = reserve->visits;
    penstock_lock_release(&reserve->lock);
    if (!visits) return;
    nanosleep(&pause, NULL);
  }
}

/* That of a destroyed, emptied pool is used again; none is ever freed: a program that uses a pool
 * while it destroys it must not crash the shim. */
static penstock_reserve *vacant(const reserve_table *t) {
  for (penstock_reserve *reserve = newest(t); reserve; reserve = reserve->older) {
    if (is_over(reserve)) return reserve;
  }
  return NULL;
}

/* (locked) */
static penstock_reserve *add(reserve_table *t, const penstock_reserve *as) {
  penstock_reserve *reserve = vacant(t);
  if (reserve) {
    penstock_reserve *older = reserve->older;
    *reserve = *as;
    reserve->older = older;
    return reserve;
  }
  reserve = malloc(sizeof *reserve);
  if (!reserve) return NULL;
  *reserve = *as;
  reserve->older = newest(t);
  __atomic_store_n(&t->newest, reserve, __ATOMIC_RELEASE);
  return reserve;
}

static penstock_reserve *find_or_add(CUmemoryPool pool, CUdevice device, bool on_host) {
  reserve_table *t = table();
  if (!t) return NULL;
  int grant = on_host ? -1 : penstock_grant_of(device);
  penstock_lock_acquire(&t->lock);
  penstock_reserve *reserve = lookup(t, pool, device);
  const penstock_reserve fresh = {.pool = pool,
                                  .device = device,
                                  .grant = grant,
                                  .free_of_charge = on_host,
                                  .step = FIRST_STEP_BYTES};
  if (!reserve) reserve = add(t, &fresh);
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
  bool captures = penstock_gate_sees_captures();
  CUresult exchanged =
      captures ? REAL(cuThreadExchangeStreamCaptureMode)(&mode) : CUDA_ERROR_NOT_SUPPORTED;
  CUresult result =
      reserve->pool
          ? REAL(cuMemPoolGetAttribute)(reserve->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value)
          : REAL(cuDeviceGetGraphMemAttribute)(reserve->device,
                                               CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value);
  if (exchanged == CUDA_SUCCESS) REAL(cuThreadExchangeStreamCaptureMode)(&mode);
  *bytes = value;
  return result == CUDA_SUCCESS;
}

static uint64_t in_steps(uint64_t bytes, uint64_t step) {
  uint64_t padded;
  if (__builtin_add_overflow(bytes, step - 1, &padded)) return UINT64_MAX;
  return padded - padded % step;
}

/* ---- blocks that are certainly free; lock held ---- */

static penstock_shape *find_shape(penstock_reserve *reserve, uint64_t bytes, uint64_t stream) {
  for (int i = 0; i < PENSTOCK_SHAPES; i++) {
    penstock_shape *shape = &reserve->shapes[i];
    if (shape->count && shape->bytes == bytes && shape->stream == stream) return shape;
  }
  return NULL;
}

static void forget_shapes(penstock_reserve *reserve, const penstock_shape *but) {
  for (int i = 0; i < PENSTOCK_SHAPES; i++) {
    if (&reserve->shapes[i] != but) reserve->shapes[i].count = 0;
  }
}

/* An allocation under way may take what is freed now, so only a quiet reserve learns of blocks. */
static void add_shape(penstock_reserve *reserve, uint64_t bytes, uint64_t stream) {
  if (stream == PENSTOCK_NO_STREAM || bytes == 0 || reserve->under_way) return;
  penstock_shape *shape = find_shape(reserve, bytes, stream);
  for (int i = 0; !shape && i < PENSTOCK_SHAPES; i++) {
    if (reserve->shapes[i].count == 0) {
      shape = &reserve->shapes[i];
      *shape = (penstock_shape){.stream = stream, .bytes = bytes};
    }
  }
  if (shape) shape->count++;
}

/* Whichever free block the driver takes, it is at most one of this shape; others it may have cut.
 */
static bool take_shape(penstock_reserve *reserve, uint64_t bytes, uint64_t stream) {
  penstock_shape *shape = find_shape(reserve, bytes, stream);
  forget_shapes(reserve, shape);
  if (!shape) return false;
  shape->count--;
  return true;
}

/* ---- growth ---- */

static uint64_t piece_of(const penstock_reserve *reserve) {
  const reserve_table *t = table();
  uint64_t piece = t ? __atomic_load_n(&t->piece, __ATOMIC_RELAXED) : 0;
  return !reserve->pool ? 0 : piece ? piece : POOL_PIECE_BYTES;
}

/* The most that it grows by for a request. */
static uint64_t growth_for(penstock_reserve *reserve, uint64_t bytes) {
  penstock_lock_acquire(&reserve->lock);
  uint64_t step = reserve->step;
  penstock_lock_release(&reserve->lock);
  uint64_t wanted = in_steps(bytes, step), piece = piece_of(reserve);
  return wanted > piece ? wanted : piece;
}

static bool shed_excess(penstock_reserve *reserve);

CUresult penstock_reserve_admit_growth(penstock_reserve *reserve, uint64_t bytes, uint64_t *bound) {
  uint64_t wanted = growth_for(reserve, bytes);
  *bound = 0;
  if (!shed_excess(reserve)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = penstock_charge_in(reserve->share, reserve->grant, wanted);
  if (result != CUDA_SUCCESS) return result;
  penstock_lock_acquire(&reserve->lock);
  reserve->pending += wanted;
  penstock_lock_release(&reserve->lock);
  *bound = wanted;
  return CUDA_SUCCESS;
}

void penstock_reserve_cancel_growth(penstock_reserve *reserve, uint64_t bound) {
  if (reserve->free_of_charge) return;
  penstock_lock_acquire(&reserve->lock);
  reserve->pending -= bound;
  penstock_lock_release(&reserve->lock);
  penstock_uncharge_in(reserve->share, reserve->grant, bound);
}

typedef struct charged {
  uint64_t bytes;
  uint64_t with_bounds; /* of allocations under way */
  uint64_t excess;
  bool slack; /* the driver may give some of it back */
} charged;

/* As it is at one moment. */
static charged charged_of(penstock_reserve *reserve) {
  penstock_lock_acquire(&reserve->lock);
  bool slack = reserve->charged > reserve->used || reserve->excess;
  charged now = {.bytes = reserve->charged,
                 .with_bounds = reserve->charged + reserve->pending,
                 .excess = reserve->excess,
                 .slack = slack};
  penstock_lock_release(&reserve->lock);
  return now;
}

/* Gives idle memory back to the device, down to what is charged if that is possible. */
static void trim(penstock_reserve *reserve) {
  if (reserve->pool) {
    REAL(cuMemPoolTrimTo)(reserve->pool, charged_of(reserve).bytes);
    uint64_t bytes;
    if (read_reserve(reserve, &bytes) && bytes > charged_of(reserve).with_bounds)
      REAL(cuMemPoolTrimTo)(reserve->pool, 0);
  } else {
    REAL(cuDeviceGraphMemTrim)(reserve->device);
  }
}

/* Reads until nobody settled in between. Returns with the lock held. */
static bool read_and_lock(penstock_reserve *reserve, uint64_t *bytes) {
  for (int attempt = 0;; attempt++) {
    uint64_t version = __atomic_load_n(&reserve->version, __ATOMIC_ACQUIRE);
    bool known = read_reserve(reserve, bytes);
    penstock_lock_acquire(&reserve->lock);
    if (reserve->version == version || attempt == 8) {
      __atomic_store_n(&reserve->version, reserve->version + 1, __ATOMIC_RELEASE);
      return known;
    }
    penstock_lock_release(&reserve->lock);
  }
}

/* The driver took more than was thought. What a small request takes goes for pools to come as well:
 * each would pass the quota to learn it. Lock held. */
static void learn_growth(penstock_reserve *reserve, uint64_t growth, uint64_t bound) {
  reserve_table *t = table();
  if (t && reserve->pool && bound == piece_of(reserve)) {
    __atomic_store_n(&t->piece, growth, __ATOMIC_RELAXED);
  } else if (growth > reserve->step) {
    reserve->step = growth;
  }
}

bool penstock_reserve_settle(penstock_reserve *reserve, uint64_t bound) {
  if (reserve->free_of_charge) return true;
  uint64_t bytes;
  /* What the pool let go of may be mapped elsewhere, which the driver does not tell. */
  bool may_shrink =
      !reserve->handed_out && !penstock_shares_has_other_holder(reserve->share, reserve->grant);
  bool known = read_and_lock(reserve, &bytes);
  uint64_t held = reserve->charged + bound; /* what this call may dispose of */
  reserve->pending -= bound;
  if (!known) bytes = held;
  if (reserve->managed && bytes < reserve->used) bytes = reserve->used;
  uint64_t growth = bytes > reserve->charged ? bytes - reserve->charged : 0;
  bool alone = reserve->pending == 0 && reserve->under_way <= 1;
  if (bound && alone && growth > bound) learn_growth(reserve, growth, bound);
  if (!known || bytes < reserve->charged) forget_shapes(reserve, NULL);
  if (bytes == 0) reserve->used = 0;
  if (!may_shrink && bytes < reserve->charged) bytes = reserve->charged;
  uint64_t more = bytes > held + reserve->pending ? bytes - held - reserve->pending : 0;
  reserve->charged = bytes < held ? bytes : held;
  uint64_t back = held - reserve->charged, share = reserve->share;
  reserve->excess = more;
  penstock_lock_release(&reserve->lock);

  penstock_uncharge_in(share, reserve->grant, back);
  if (more == 0) return true;
  if (penstock_charge_in(share, reserve->grant, more) != CUDA_SUCCESS) return false;
  penstock_lock_acquire(&reserve->lock);
  reserve->charged += more;
  reserve->excess = 0;
  penstock_lock_release(&reserve->lock);
  return true;
}

/* Memory above the quota goes before anything else happens. False: some is still held. */
static bool shed_excess(penstock_reserve *reserve) {
  if (charged_of(reserve).excess == 0) return true;
  trim(reserve);
  return penstock_reserve_settle(reserve, 0);
}

/* ---- allocations ---- */

/* Not a lock: who has waited for long goes ahead without it, so that a driver call that does not
 * return holds nobody up. False: went ahead. */
static bool take_turn(penstock_reserve *reserve) {
  const struct timespec at_most = {0, LONGEST_TURN_NS};
  for (;;) {
    uint32_t taken = __atomic_exchange_n(&reserve->turn, 1, __ATOMIC_ACQUIRE);
    if (!taken) return true;
    int saved_errno = errno;
    long woken = syscall(SYS_futex, &reserve->turn, FUTEX_WAIT_PRIVATE, 1, &at_most, NULL, 0);
    bool too_long = woken < 0 && errno == ETIMEDOUT;
    errno = saved_errno;
    if (too_long) return false;
  }
}

static void end_turn(penstock_reserve *reserve, const penstock_admission *admission) {
  if (!admission->in_turn) return;
  __atomic_store_n(&reserve->turn, 0, __ATOMIC_RELEASE);
  int saved_errno = errno;
  syscall(SYS_futex, &reserve->turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  errno = saved_errno;
}

static void leave(penstock_reserve *reserve, const penstock_admission *admission, bool in_use) {
  penstock_lock_acquire(&reserve->lock);
  reserve->under_way--;
  if (!in_use) {
    reserve->used -= admission->bytes < reserve->used ? admission->bytes : reserve->used;
  }
  penstock_lock_release(&reserve->lock);
  end_turn(reserve, admission);
}

/* What the sums leave free; lock held. */
static uint64_t room_of(const penstock_reserve *reserve) {
  return reserve->charged > reserve->used ? reserve->charged - reserve->used : 0;
}

/* True when a block is certainly free for it: it is in use then. */
static bool enter_surely(penstock_reserve *reserve, uint64_t stream,
                         penstock_admission *admission) {
  penstock_lock_acquire(&reserve->lock);
  bool fits = reserve->excess == 0 && room_of(reserve) >= admission->bytes;
  admission->sure = take_shape(reserve, admission->bytes, stream) && fits;
  if (admission->sure) {
    reserve->used += admission->bytes;
    reserve->under_way++;
  }
  penstock_lock_release(&reserve->lock);
  return admission->sure;
}

static bool has_room(penstock_reserve *reserve, uint64_t bytes) {
  penstock_lock_acquire(&reserve->lock);
  bool has = room_of(reserve) >= bytes;
  penstock_lock_release(&reserve->lock);
  return has;
}

/* Near the quota, idle memory of the reserve goes back to the device to make room for its growth:
 * what the driver would find in it, it can have anew. */
static void exchange_idle(penstock_reserve *reserve, uint64_t bytes) {
  if (penstock_charge_if_it_fits(reserve->share, reserve->grant, bytes)) {
    penstock_uncharge_in(reserve->share, reserve->grant, bytes);
    return;
  }
  uint64_t held = charged_of(reserve).bytes;
  REAL(cuMemPoolTrimTo)(reserve->pool, held > bytes ? held - bytes : 0);
  penstock_reserve_settle(reserve, 0);
}

CUresult penstock_reserve_admit(penstock_reserve *reserve, uint64_t bytes, uint64_t stream,
                                penstock_admission *admission) {
  *admission = (penstock_admission){.bytes = bytes};
  if (reserve->free_of_charge) return CUDA_SUCCESS;
  if (enter_surely(reserve, stream, admission)) return CUDA_SUCCESS;

  admission->in_turn = take_turn(reserve);
  CUresult result = shed_excess(reserve) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    if (has_room(reserve, bytes)) exchange_idle(reserve, growth_for(reserve, bytes));
    result = penstock_reserve_admit_growth(reserve, bytes, &admission->bound);
  }
  if (result != CUDA_SUCCESS) {
    end_turn(reserve, admission);
    return result;
  }
  penstock_lock_acquire(&reserve->lock);
  reserve->used += bytes;
  reserve->under_way++;
  penstock_lock_release(&reserve->lock);
  return CUDA_SUCCESS;
}

void penstock_reserve_cancel(penstock_reserve *reserve, const penstock_admission *admission) {
  if (reserve->free_of_charge) return;
  penstock_reserve_cancel_growth(reserve, admission->bound);
  leave(reserve, admission, false);
}

bool penstock_reserve_complete(penstock_reserve *reserve, penstock_admission *admission) {
  if (reserve->free_of_charge) return true;
  bool held = admission->sure || penstock_reserve_settle(reserve, admission->bound);
  if (held) leave(reserve, admission, true);
  return held;
}

void penstock_reserve_undone(penstock_reserve *reserve, penstock_admission *admission) {
  shed_excess(reserve);
  leave(reserve, admission, false);
}

bool penstock_reserve_adopt(penstock_reserve *reserve, uint64_t bytes) {
  if (reserve->free_of_charge) return true;
  uint64_t held;
  if (!read_reserve(reserve, &held) || !penstock_reserve_settle(reserve, 0)) return false;
  penstock_lock_acquire(&reserve->lock);
  reserve->used += bytes;
  penstock_lock_release(&reserve->lock);
  return true;
}

/* A destroyed pool without memory takes part in its share no more; once. */
static void drop_share(penstock_reserve *reserve) {
  uint64_t share = 0;
  penstock_lock_acquire(&reserve->lock);
  if (is_destroyed(reserve) && reserve->charged == 0 && reserve->used == 0) {
    share = reserve->share;
    reserve->share = 0;
  }
  penstock_lock_release(&reserve->lock);
  penstock_shares_drop(share);
}

void penstock_reserves_changed(void) {
  reserve_table *t = table();
  if (t) __atomic_store_n(&t->slack, 1, __ATOMIC_RELEASE);
}

void penstock_reserve_unuse(penstock_reserve *reserve, uint64_t bytes, uint64_t stream) {
  if (reserve->free_of_charge) return;
  uint64_t back = 0;
  bool is_elsewhere =
      is_destroyed(reserve) &&
      (reserve->handed_out || penstock_shares_is_held_elsewhere(reserve->share, reserve->grant));
  penstock_lock_acquire(&reserve->lock);
  uint64_t share = reserve->share; /* who frees the last block besides may drop it right after */
  reserve->used -= bytes < reserve->used ? bytes : reserve->used;
  if (is_destroyed(reserve) && reserve->used == 0) { /* until then the driver keeps all of it */
    if (!is_elsewhere) back = reserve->charged;      /* else it stays charged */
    reserve->charged = 0;
  }
  add_shape(reserve, bytes, stream);
  penstock_lock_release(&reserve->lock);
  penstock_uncharge_in(share, reserve->grant, back);
  drop_share(reserve);
  penstock_reserves_changed();
}

/* Before the driver's call: another thread may get the same handle for a new pool right after it,
 * and one that makes room for an allocation of its own may be trimming this pool. */
void penstock_reserve_retire(penstock_reserve *reserve) {
  penstock_lock_acquire(&reserve->lock);
  __atomic_store_n(&reserve->destroyed, true, __ATOMIC_RELEASE);
  penstock_lock_release(&reserve->lock);
  await_visits(reserve);
}

CUresult penstock_reserve_retired(penstock_reserve *reserve, CUresult result) {
  if (result == CUDA_SUCCESS) {
    penstock_reserve_unuse(reserve, 0, PENSTOCK_NO_STREAM);
    drop_share(reserve);
  } else {
    __atomic_store_n(&reserve->destroyed, false, __ATOMIC_RELEASE);
  }
  return result;
}

bool penstock_reserves_settle(void) {
  static __thread bool settling; /* a settlement that charges does not begin another */
  reserve_table *t = table();
  if (!t || settling || !__atomic_exchange_n(&t->slack, 0, __ATOMIC_ACQ_REL)) return false;
  bool came_back = false;
  settling = true;
  penstock_graph_memory_reserves();
  for (penstock_reserve *reserve = newest(t); reserve; reserve = reserve->older) {
    charged before = charged_of(reserve);
    bool empty = before.bytes == 0 && before.excess == 0 && reserve->pool;
    if (empty || !visit(reserve)) continue; /* graphs may have taken some unannounced */
    if (before.excess) {
      shed_excess(reserve);
    } else {
      penstock_reserve_settle(reserve, 0);
    }
    end_visit(reserve);
    charged after = charged_of(reserve);
    came_back |= after.bytes < before.bytes;
    /* The driver may keep it for a while yet: look again next time. */
    if (after.slack) __atomic_store_n(&t->slack, 1, __ATOMIC_RELEASE);
  }
  settling = false;
  return came_back;
}

bool penstock_reserves_trim(void) {
  reserve_table *t = table();
  bool trimmed = false;
  for (penstock_reserve *reserve = t ? newest(t) : NULL; reserve; reserve = reserve->older) {
    if (!reserve->pool || !charged_of(reserve).slack || !visit(reserve)) continue;
    trimmed |= REAL(cuMemPoolTrimTo)(reserve->pool, 0) == CUDA_SUCCESS;
    end_visit(reserve);
  }
  if (trimmed) __atomic_store_n(&t->slack, 1, __ATOMIC_RELEASE);
  return trimmed && penstock_reserves_settle();
}
