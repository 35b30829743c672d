#include "memory/reserve.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hooks/launch.h"
#include "loading/driver.h"
#include "mechanism/lock.h"
#include "memory/charge.h"
#include "memory/reserve_internal.h"
#include "memory/shares.h"

#define GROWTH_LOCK_TIMEOUT_NS 50000000

/* Reads how much the driver has reserved. Returns false if the driver does not report it. The
 * thread switches to relaxed capture mode so that the call does not break a capture that another
 * thread has open. */
static bool read_bytes(const penstock_reserve *reserve, uint64_t *bytes) {
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

static uint64_t round_up(uint64_t bytes, uint64_t step) {
  uint64_t padded;
  if (__builtin_add_overflow(bytes, step - 1, &padded)) return UINT64_MAX;
  return padded - padded % step;
}

/* ---- blocks known to be free (the caller holds the lock) ---- */

static penstock_free_blocks *find_free(penstock_reserve *reserve, uint64_t bytes, uint64_t stream) {
  for (int i = 0; i < PENSTOCK_FREE_BLOCK_LISTS; i++) {
    penstock_free_blocks *blocks = &reserve->free_blocks[i];
    if (blocks->count && blocks->bytes == bytes && blocks->stream == stream) return blocks;
  }
  return NULL;
}

static void forget_free(penstock_reserve *reserve, const penstock_free_blocks *except) {
  for (int i = 0; i < PENSTOCK_FREE_BLOCK_LISTS; i++) {
    if (&reserve->free_blocks[i] != except) reserve->free_blocks[i].count = 0;
  }
}

/* Notes a free block, unless an allocation is in flight, which might take the block. */
static void add_free(penstock_reserve *reserve, uint64_t bytes, uint64_t stream) {
  if (stream == PENSTOCK_NO_STREAM || bytes == 0 || reserve->in_flight) return;
  penstock_free_blocks *blocks = find_free(reserve, bytes, stream);
  for (int i = 0; !blocks && i < PENSTOCK_FREE_BLOCK_LISTS; i++) {
    if (reserve->free_blocks[i].count == 0) {
      blocks = &reserve->free_blocks[i];
      *blocks = (penstock_free_blocks){.stream = stream, .bytes = bytes};
    }
  }
  if (blocks) blocks->count++;
}

/* Takes a block that is known to be free. Whichever free block the driver takes, it is no larger
 * than this size. The driver may have split blocks of other sizes, so they are forgotten. */
static bool take_free(penstock_reserve *reserve, uint64_t bytes, uint64_t stream) {
  penstock_free_blocks *blocks = find_free(reserve, bytes, stream);
  forget_free(reserve, blocks);
  if (!blocks) return false;
  blocks->count--;
  return true;
}

/* ---- growth ---- */

/* Returns the most that the reserve grows by for a request. */
static uint64_t growth_for(penstock_reserve *reserve, uint64_t bytes) {
  penstock_lock_acquire(&reserve->lock);
  uint64_t step = reserve->step;
  penstock_lock_release(&reserve->lock);
  uint64_t wanted = round_up(bytes, step), chunk = penstock_reserve_chunk(reserve);
  return wanted > chunk ? wanted : chunk;
}

CUresult penstock_reserve_admit_growth(penstock_reserve *reserve, uint64_t bytes, uint64_t *bound) {
  uint64_t wanted = growth_for(reserve, bytes);
  *bound = 0;
  if (!penstock_reserve_shed_excess(reserve)) return CUDA_ERROR_OUT_OF_MEMORY;
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

penstock_charged penstock_reserve_charged(penstock_reserve *reserve) {
  penstock_lock_acquire(&reserve->lock);
  penstock_charged now = {.bytes = reserve->charged,
                          .with_bounds = reserve->charged + reserve->pending,
                          .excess = reserve->excess,
                          .may_shrink = reserve->charged > reserve->used || reserve->excess};
  penstock_lock_release(&reserve->lock);
  return now;
}

/* Returns idle memory to the device: the memory beyond the charge or, if that is not enough, all of
 * it. */
static void trim(penstock_reserve *reserve) {
  if (reserve->pool) {
    REAL(cuMemPoolTrimTo)(reserve->pool, penstock_reserve_charged(reserve).bytes);
    uint64_t bytes;
    if (read_bytes(reserve, &bytes) && bytes > penstock_reserve_charged(reserve).with_bounds)
      REAL(cuMemPoolTrimTo)(reserve->pool, 0);
  } else {
    REAL(cuDeviceGraphMemTrim)(reserve->device);
  }
}

/* Reads the reserve's size, and reads it again if other threads have settled in between. Returns
 * with the lock held. */
static bool read_and_lock(penstock_reserve *reserve, uint64_t *bytes) {
  for (int attempt = 0;; attempt++) {
    uint64_t version = __atomic_load_n(&reserve->version, __ATOMIC_ACQUIRE);
    bool known = read_bytes(reserve, bytes);
    penstock_lock_acquire(&reserve->lock);
    if (reserve->version == version || attempt == 8) {
      __atomic_store_n(&reserve->version, reserve->version + 1, __ATOMIC_RELEASE);
      return known;
    }
    penstock_lock_release(&reserve->lock);
  }
}

/* Learns a larger growth after the driver mapped more than the bound. What the driver maps for a
 * small request is learned for all pools at once, because otherwise each pool would have to exceed
 * the quota to learn it. The caller holds the lock. */
static void learn_growth(penstock_reserve *reserve, uint64_t growth, uint64_t bound) {
  if (reserve->pool && bound == penstock_reserve_chunk(reserve)) {
    penstock_reserves_learn_chunk(growth);
  } else if (growth > reserve->step) {
    reserve->step = growth;
  }
}

bool penstock_reserve_settle(penstock_reserve *reserve, uint64_t bound) {
  if (reserve->free_of_charge) return true;
  uint64_t bytes;
  /* Another process may still map memory that this pool has released, which the driver does not
   * report. */
  bool may_shrink =
      !reserve->handed_out && !penstock_shares_has_other_holder(reserve->share, reserve->grant);
  bool known = read_and_lock(reserve, &bytes);
  uint64_t held = reserve->charged + bound; /* charge that covers what this call has read */
  reserve->pending -= bound;
  if (!known) bytes = held;
  if (reserve->managed && bytes < reserve->used) bytes = reserve->used;
  uint64_t growth = bytes > reserve->charged ? bytes - reserve->charged : 0;
  bool alone = reserve->pending == 0 && reserve->in_flight <= 1;
  if (bound && alone && growth > bound) learn_growth(reserve, growth, bound);
  if (!known || bytes < reserve->charged) forget_free(reserve, NULL);
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

bool penstock_reserve_shed_excess(penstock_reserve *reserve) {
  if (penstock_reserve_charged(reserve).excess == 0) return true;
  trim(reserve);
  return penstock_reserve_settle(reserve, 0);
}

/* ---- allocations ---- */

/* Takes the growth lock. Returns false on timeout; the caller then proceeds without the lock, so
 * that a driver call that never returns does not block other threads for good. */
static bool take_growth_lock(penstock_reserve *reserve) {
  const struct timespec at_most = {0, GROWTH_LOCK_TIMEOUT_NS};
  for (;;) {
    uint32_t taken = __atomic_exchange_n(&reserve->growth_lock, 1, __ATOMIC_ACQUIRE);
    if (!taken) return true;
    int saved_errno = errno;
    long woken =
        syscall(SYS_futex, &reserve->growth_lock, FUTEX_WAIT_PRIVATE, 1, &at_most, NULL, 0);
    bool too_long = woken < 0 && errno == ETIMEDOUT;
    errno = saved_errno;
    if (too_long) return false;
  }
}

static void release_growth_lock(penstock_reserve *reserve, const penstock_admission *admission) {
  if (!admission->holds_growth_lock) return;
  __atomic_store_n(&reserve->growth_lock, 0, __ATOMIC_RELEASE);
  int saved_errno = errno;
  syscall(SYS_futex, &reserve->growth_lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  errno = saved_errno;
}

static void end_allocation(penstock_reserve *reserve, const penstock_admission *admission,
                           bool in_use) {
  penstock_lock_acquire(&reserve->lock);
  reserve->in_flight--;
  if (!in_use) {
    reserve->used -= admission->bytes < reserve->used ? admission->bytes : reserve->used;
  }
  penstock_lock_release(&reserve->lock);
  release_growth_lock(reserve, admission);
}

/* Returns the bytes that are charged and not in use. The caller holds the lock. */
static uint64_t room_of(const penstock_reserve *reserve) {
  return reserve->charged > reserve->used ? reserve->charged - reserve->used : 0;
}

/* Counts the allocation as in use if a block is known to be free for it. */
static bool try_reuse(penstock_reserve *reserve, uint64_t stream, penstock_admission *admission) {
  penstock_lock_acquire(&reserve->lock);
  bool fits = reserve->excess == 0 && room_of(reserve) >= admission->bytes;
  admission->is_reuse = take_free(reserve, admission->bytes, stream) && fits;
  if (admission->is_reuse) {
    reserve->used += admission->bytes;
    reserve->in_flight++;
  }
  penstock_lock_release(&reserve->lock);
  return admission->is_reuse;
}

static bool has_room(penstock_reserve *reserve, uint64_t bytes) {
  penstock_lock_acquire(&reserve->lock);
  bool has = room_of(reserve) >= bytes;
  penstock_lock_release(&reserve->lock);
  return has;
}

/* Returns idle memory of the reserve to the device if the quota has no room for growth by `bytes`.
 * If the driver then does not find its block there, it maps as much again. */
static void trim_for_growth(penstock_reserve *reserve, uint64_t bytes) {
  if (penstock_charge_if_it_fits(reserve->share, reserve->grant, bytes)) {
    penstock_uncharge_in(reserve->share, reserve->grant, bytes);
    return;
  }
  uint64_t held = penstock_reserve_charged(reserve).bytes;
  REAL(cuMemPoolTrimTo)(reserve->pool, held > bytes ? held - bytes : 0);
  penstock_reserve_settle(reserve, 0);
}

CUresult penstock_reserve_admit(penstock_reserve *reserve, uint64_t bytes, uint64_t stream,
                                penstock_admission *admission) {
  *admission = (penstock_admission){.bytes = bytes};
  if (reserve->free_of_charge) return CUDA_SUCCESS;
  if (try_reuse(reserve, stream, admission)) return CUDA_SUCCESS;

  admission->holds_growth_lock = take_growth_lock(reserve);
  CUresult result = penstock_reserve_shed_excess(reserve) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    if (has_room(reserve, bytes)) trim_for_growth(reserve, growth_for(reserve, bytes));
    result = penstock_reserve_admit_growth(reserve, bytes, &admission->bound);
  }
  if (result != CUDA_SUCCESS) {
    release_growth_lock(reserve, admission);
    return result;
  }
  penstock_lock_acquire(&reserve->lock);
  reserve->used += bytes;
  reserve->in_flight++;
  penstock_lock_release(&reserve->lock);
  return CUDA_SUCCESS;
}

void penstock_reserve_cancel(penstock_reserve *reserve, const penstock_admission *admission) {
  if (reserve->free_of_charge) return;
  penstock_reserve_cancel_growth(reserve, admission->bound);
  end_allocation(reserve, admission, false);
}

bool penstock_reserve_complete(penstock_reserve *reserve, penstock_admission *admission) {
  if (reserve->free_of_charge) return true;
  bool held = admission->is_reuse || penstock_reserve_settle(reserve, admission->bound);
  if (held) end_allocation(reserve, admission, true);
  return held;
}

void penstock_reserve_undone(penstock_reserve *reserve, penstock_admission *admission) {
  penstock_reserve_shed_excess(reserve);
  end_allocation(reserve, admission, false);
}

bool penstock_reserve_adopt(penstock_reserve *reserve, uint64_t bytes) {
  if (reserve->free_of_charge) return true;
  uint64_t held;
  if (!read_bytes(reserve, &held) || !penstock_reserve_settle(reserve, 0)) return false;
  penstock_lock_acquire(&reserve->lock);
  reserve->used += bytes;
  penstock_lock_release(&reserve->lock);
  return true;
}

/* Leaves the share of a destroyed pool once none of its memory is charged or in use. */
static void drop_share(penstock_reserve *reserve) {
  uint64_t share = 0;
  penstock_lock_acquire(&reserve->lock);
  if (penstock_reserve_is_destroyed(reserve) && reserve->charged == 0 && reserve->used == 0) {
    share = reserve->share;
    reserve->share = 0;
  }
  penstock_lock_release(&reserve->lock);
  penstock_shares_drop(share);
}

void penstock_reserve_unuse(penstock_reserve *reserve, uint64_t bytes, uint64_t stream) {
  if (reserve->free_of_charge) return;
  uint64_t back = 0;
  bool is_elsewhere =
      penstock_reserve_is_destroyed(reserve) &&
      (reserve->handed_out || penstock_shares_is_held_elsewhere(reserve->share, reserve->grant));
  penstock_lock_acquire(&reserve->lock);
  /* Another thread that frees the last block may drop the share right after this. */
  uint64_t share = reserve->share;
  reserve->used -= bytes < reserve->used ? bytes : reserve->used;
  /* The driver keeps all memory of a destroyed pool until its last block is freed. */
  if (penstock_reserve_is_destroyed(reserve) && reserve->used == 0) {
    if (!is_elsewhere) back = reserve->charged; /* otherwise the memory stays charged */
    reserve->charged = 0;
  }
  add_free(reserve, bytes, stream);
  penstock_lock_release(&reserve->lock);
  penstock_uncharge_in(share, reserve->grant, back);
  drop_share(reserve);
  penstock_reserves_changed();
}

/* Marks the pool as destroyed. This happens before the driver's call because right after that call
 * another thread may get the same handle for a new pool. Waits for threads that are trimming this
 * pool to make room. */
void penstock_reserve_retire(penstock_reserve *reserve) {
  penstock_lock_acquire(&reserve->lock);
  __atomic_store_n(&reserve->destroyed, true, __ATOMIC_RELEASE);
  penstock_lock_release(&reserve->lock);
  penstock_reserve_wait_until_unpinned(reserve);
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
