#include "memory/shares.h"

#include "common/log.h"
#include "mechanism/lock.h"
#include "mechanism/reap.h"
#include "mechanism/share.h"
#include "memory/charge.h"
#include "process/fork_wiped.h"
#include "process/process.h"

#define UNTIL_EXIT UINT64_MAX /* stands for a mark: charged until exit */

static uint64_t kept_open; /* total number of objects ever kept open */

/* Returns the lock under which the count of holders and this process's bit change together. The
 * lock lies in memory that a fork wipes. */
static uint32_t *lock(void) {
  static penstock_fork_wiped memory;
  return penstock_fork_wiped_get(&memory, sizeof(uint32_t));
}

uint64_t penstock_shares_key(const void *handle, uint64_t bytes) {
  const unsigned char *at = handle;
  uint64_t key = 0xcbf29ce484222325u;
  for (uint64_t i = 0; i < bytes; i++) key = (key ^ at[i]) * 0x100000001b3u;
  return key ? key : 1;
}

/* Changes the number of holders in this process. Returns true if the number was 0 or is 0 now. The
 * caller holds the lock. */
static bool count(uint64_t share, int64_t change) {
  penstock_object entry = {.key = share, .grant = -1, .kind = PENSTOCK_SHARE};
  penstock_object_take(PENSTOCK_SHARE, share, &entry);
  bool was_none = entry.bytes == 0;
  entry.bytes += (uint64_t)change;
  bool is_none = entry.bytes == 0;
  if (!is_none && !penstock_object_put(&entry))
    penstock_log("no host memory left to record a share");
  return was_none || is_none;
}

/* Makes a new share and moves `bytes` of this process's charge to it. Returns 0 if no slot is
 * free. */
static uint64_t make(int grant, uint64_t bytes, uint64_t key) {
  penstock_process *process = penstock_process_get();
  uint32_t *guard = lock();
  if (!process || !guard || grant < 0 || key == 0) return 0;
  penstock_lock_acquire(guard);
  penstock_share share = penstock_share_make(&process->region, (unsigned)grant, bytes, key);
  if (share) count(share, 1);
  penstock_lock_release(guard);
  return share;
}

void penstock_shares_make(penstock_object *object, uint64_t key) {
  if (object->share || !object->bytes) return;
  object->share = make(object->grant, object->in_slab ? 0 : object->bytes, key);
}

/* Returns the key of a fabric handle, or 0 for a descriptor and for another system's handle. */
static uint64_t key_of(const void *shareable, CUmemAllocationHandleType type) {
  return shareable && type == CU_MEM_HANDLE_TYPE_FABRIC
             ? penstock_shares_key(shareable, sizeof(CUmemFabricHandle))
             : 0;
}

/* Keeps a share charged until this process ends, because a descriptor without a mark cannot be seen
 * to close. */
static void keep_until_exit(uint64_t share) {
  penstock_log(
      "a descriptor of device memory cannot be marked, so the memory stays charged until this "
      "process ends");
  penstock_shares_hold(share);
}

static void mark_share(uint64_t share, int descriptor) {
  penstock_process *process = penstock_process_get();
  if (process && !penstock_share_mark(&process->region, share, descriptor)) keep_until_exit(share);
}

/* Marks a descriptor for an object that has no share because no slot was free: the charge and the
 * mark stay with the object. */
static void mark_object(penstock_object *object, int descriptor) {
  if (!object->mark) object->mark = penstock_mark_draw();
  if (penstock_mark_put(descriptor, object->mark)) return;
  penstock_log(
      "a descriptor of device memory cannot be marked, so the memory stays charged until this "
      "process ends");
  object->mark = UNTIL_EXIT;
}

void penstock_shares_keep_for(penstock_object *object, int descriptor) {
  penstock_shares_make(object, penstock_mark_draw());
  if (object->share) {
    mark_share(object->share, descriptor);
  } else {
    mark_object(object, descriptor);
  }
}

void penstock_shares_hand_out(penstock_object *object, const void *shareable,
                              CUmemAllocationHandleType type) {
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    penstock_shares_keep_for(object, *(const int *)shareable);
  } else if (key_of(shareable, type)) {
    penstock_shares_make(object, key_of(shareable, type));
  }
}

uint64_t penstock_shares_make_empty(int grant) { return make(grant, 0, penstock_mark_draw()); }

void penstock_shares_hand_out_pool(uint64_t share, const void *shareable,
                                   CUmemAllocationHandleType type) {
  penstock_process *process = penstock_process_get();
  uint64_t key = key_of(shareable, type);
  if (!process || !share) return;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    mark_share(share, *(const int *)shareable);
  } else if (key) {
    penstock_share_rename(&process->region, share, key);
  }
}

uint64_t penstock_shares_join(uint64_t key) {
  penstock_process *process = penstock_process_get();
  uint32_t *guard = lock();
  if (!process || !guard) return 0;
  penstock_lock_acquire(guard);
  penstock_share share = penstock_share_join(&process->region, key);
  if (share) count(share, 1);
  penstock_lock_release(guard);
  return share;
}

/* The driver takes a descriptor by value, and other handles by address. */
uint64_t penstock_shares_join_handle(const void *shareable, CUmemAllocationHandleType type) {
  return penstock_shares_join(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                  ? penstock_mark_of((int)(intptr_t)shareable)
                                  : key_of(shareable, type));
}

uint64_t penstock_shares_bytes(uint64_t share, int grant) {
  penstock_process *process = penstock_process_get();
  return process && share && grant >= 0
             ? penstock_share_bytes(&process->region, share, (unsigned)grant)
             : 0;
}

/* A holder that has ended may not have been reaped yet, so this function reaps such holders and
 * looks again. */
bool penstock_shares_has_other_holder(uint64_t share, int grant) {
  penstock_process *process = penstock_process_get();
  if (!process || !share || grant < 0) return false;
  return penstock_share_has_other_holder(&process->region, share) &&
         (!penstock_reap_for_refusal(&process->region, (unsigned)grant) ||
          penstock_share_has_other_holder(&process->region, share));
}

bool penstock_shares_is_held_elsewhere(uint64_t share, int grant) {
  penstock_process *process = penstock_process_get();
  return process && share &&
         (penstock_shares_has_other_holder(share, grant) ||
          penstock_share_is_held_elsewhere(&process->region, share));
}

/* ---- freed objects that an open descriptor keeps ---- */

static bool is_open(penstock_mark_look *look, uint64_t offset) {
  return penstock_mark_is_open(look, &(penstock_mark){.offset = offset});
}

static void put_kept_open(penstock_object left) {
  left.kept_kind = left.kind;
  left.kind = PENSTOCK_KEPT_OPEN;
  left.detail = left.key;
  left.key = left.mark != UNTIL_EXIT ? left.mark : penstock_mark_draw();
  left.context = NULL; /* the memory outlives its context */
  if (!penstock_object_put(&left)) penstock_log("no host memory left to record an allocation");
  __atomic_fetch_add(&kept_open, 1, __ATOMIC_RELEASE);
}

bool penstock_shares_keep_open(const penstock_object *object) {
  penstock_mark_look look = {0};
  if (!object->mark) return false;
  bool is_open_still = object->mark == UNTIL_EXIT || is_open(&look, object->mark);
  penstock_mark_look_end(&look);
  if (is_open_still) put_kept_open(*object);
  return is_open_still;
}

bool penstock_shares_charge_for(int grant, uint64_t bytes, int descriptor) {
  penstock_object kept = {
      .bytes = bytes, .grant = (int16_t)grant, .kind = PENSTOCK_EXTERNAL_MEMORY};
  if (penstock_charge(grant, bytes) != CUDA_SUCCESS) return false;
  uint64_t share = make(grant, bytes, penstock_mark_draw());
  if (share) {
    mark_share(share, descriptor);
    penstock_shares_drop(share); /* the descriptor alone holds the share */
  } else {
    mark_object(&kept, descriptor);
    put_kept_open(kept);
  }
  return true;
}

typedef struct closed_search {
  penstock_mark_look look;
  penstock_object found;
  bool has_found;
} closed_search;

static bool take_closed(penstock_object *object, void *argument) {
  closed_search *s = argument;
  if (s->has_found || object->mark == UNTIL_EXIT || is_open(&s->look, object->mark)) return false;
  s->found = *object;
  return s->has_found = true;
}

/* Uncharges memory whose descriptors are closed, one object at a time, because uncharging takes
 * locks that must not be taken under the table's lock. */
static bool give_back_closed(void) {
  closed_search s = {.has_found = false};
  bool came_back = false;
  do {
    s.has_found = false;
    penstock_object_each(PENSTOCK_KEPT_OPEN, take_closed, &s);
    if (!s.has_found) break;
    s.found.kind = s.found.kept_kind;
    s.found.key = s.found.detail;
    s.found.mark = 0;
    penstock_give_back(&s.found);
    came_back = true;
  } while (s.has_found);
  penstock_mark_look_end(&s.look);
  return came_back;
}

bool penstock_shares_look_after(void) {
  penstock_process *process = penstock_process_get();
  if (!process || penstock_slot_owned(&process->region) < 0) return false;
  bool came_back =
      penstock_shares_look(process->region.usage, &process->region.claim->identity) != 0;
  if (__atomic_load_n(&kept_open, __ATOMIC_ACQUIRE)) came_back |= give_back_closed();
  return came_back;
}

void penstock_shares_hold(uint64_t share) {
  uint32_t *guard = lock();
  if (!share || !guard) return;
  penstock_lock_acquire(guard);
  count(share, 1);
  penstock_lock_release(guard);
}

void penstock_shares_drop(uint64_t share) {
  penstock_process *process = penstock_process_get();
  uint32_t *guard = lock();
  if (!share || !process || !guard) return;
  penstock_lock_acquire(guard);
  /* The child of a fork has an empty table because it holds no share. */
  if (penstock_object_find(PENSTOCK_SHARE, share, NULL) && count(share, -1)) {
    penstock_share_leave(&process->region, share);
  }
  penstock_lock_release(guard);
}
