#include "mechanism/share.h"

#include <errno.h>
#include <string.h>

#include "mechanism/lock.h"
#include "mechanism/reap.h"

#define HOLDER_WORDS (PENSTOCK_MAX_SLOTS / 64)
#define SEVERAL_FILES UINT64_MAX
/* attempts while another process checks whether the share is still held */
#define JOIN_ATTEMPTS 64

static penstock_share id_of(uint32_t slot, uint64_t owner) {
  return (uint64_t)(penstock_owner_generation(owner) + 1) << 32 | slot;
}

static bool has_id(uint64_t owner, penstock_share share) {
  return penstock_owner_state(owner) == PENSTOCK_SLOT_SHARED &&
         penstock_owner_generation(owner) + 1 == share >> 32;
}

static uint64_t owner_of(const penstock_region *region, uint32_t slot) {
  return __atomic_load_n(&region->usage->slots[slot].owner, __ATOMIC_SEQ_CST);
}

static void set_bit(penstock_slot *share, uint32_t holder) {
  __atomic_fetch_or(&share->holders[holder / 64], (uint64_t)1 << holder % 64, __ATOMIC_SEQ_CST);
}

static void clear_bit(penstock_slot *share, uint32_t holder) {
  __atomic_fetch_and(&share->holders[holder / 64], ~((uint64_t)1 << holder % 64), __ATOMIC_SEQ_CST);
}

static bool has_holder(const penstock_slot *slot) {
  for (unsigned i = 0; i < HOLDER_WORDS; i++) {
    if (__atomic_load_n(&slot->holders[i], __ATOMIC_SEQ_CST)) return true;
  }
  return false;
}

static uint64_t mark_of(const penstock_slot *slot) {
  return __atomic_load_n(&slot->share_mark, __ATOMIC_SEQ_CST);
}

bool penstock_share_is_held(const penstock_slot *slot) {
  return has_holder(slot) || mark_of(slot) != 0;
}

bool penstock_share_is_arriving(const penstock_usage_page *usage, uint32_t slot) {
  uint64_t maker = __atomic_load_n(&usage->slots[slot].share_maker, __ATOMIC_ACQUIRE);
  if (maker == 0 || maker > PENSTOCK_MAX_SLOTS) return false;
  const penstock_ledger_slot *words = usage->slots[maker - 1].ledger;
  for (unsigned device = 0; device < PENSTOCK_MAX_DEVICES; device++) {
    uint64_t intent = __atomic_load_n(&words[device].intent, __ATOMIC_ACQUIRE);
    uint64_t charged = __atomic_load_n(&words[device].charged, __ATOMIC_ACQUIRE);
    if (penstock_ledger_slot_of(intent) == slot &&
        penstock_ledger_seq(intent) != penstock_ledger_seq(charged)) {
      return true;
    }
  }
  return false;
}

void penstock_share_forget(penstock_usage_page *usage, uint32_t slot) {
  if (__atomic_load_n(&usage->shares_made, __ATOMIC_ACQUIRE) == 0) return;
  uint32_t high = penstock_slots_high(usage);
  for (uint32_t i = 1; i < high; i++) {
    uint64_t word = __atomic_load_n(&usage->slots[i].holders[slot / 64], __ATOMIC_RELAXED);
    if (word >> slot % 64 & 1) clear_bit(&usage->slots[i], slot);
  }
}

/* Clears `key` from earlier shares, whose memory is gone or about to go. */
static void clear_key(penstock_usage_page *usage, uint64_t key) {
  uint32_t high = penstock_slots_high(usage);
  for (uint32_t i = 1; i < high; i++) {
    uint64_t expected = key;
    __atomic_compare_exchange_n(&usage->slots[i].share_key, &expected, 0, 0, __ATOMIC_ACQ_REL,
                                __ATOMIC_RELAXED);
  }
}

/* Moves bytes into a share: steps 2 to 4 of the protocol in share.h. */
static bool move(penstock_region *region, uint32_t from, uint32_t to, unsigned device,
                 uint64_t units) {
  penstock_ledger_slot *mine = &region->usage->slots[from].ledger[device];
  penstock_ledger_slot *share = &region->usage->slots[to].ledger[device];
  penstock_lock_acquire(&region->claim->device_locks[device]);
  uint64_t charged = __atomic_load_n(&mine->charged, __ATOMIC_RELAXED);
  uint64_t held = penstock_ledger_units(charged), seq = penstock_ledger_seq(charged) + 1;
  bool enough = held >= units;
  if (enough) {
    uint64_t seq_there = penstock_ledger_seq(__atomic_load_n(&share->charged, __ATOMIC_RELAXED));
    __atomic_store_n(&mine->intent, penstock_ledger_pack((uint64_t)-(int64_t)units, to, seq),
                     __ATOMIC_SEQ_CST);
    __atomic_store_n(&share->charged, penstock_ledger_pack(units, 0, seq_there), __ATOMIC_SEQ_CST);
    __atomic_store_n(&mine->charged, penstock_ledger_pack(held - units, 0, seq), __ATOMIC_SEQ_CST);
  }
  penstock_lock_release(&region->claim->device_locks[device]);
  return enough;
}

penstock_share penstock_share_make(penstock_region *region, unsigned device, uint64_t bytes,
                                   uint64_t key) {
  if (device >= PENSTOCK_MAX_DEVICES || key == 0) return 0;
  int own = penstock_slot_own(region);
  if (own < 0) return 0;
  int saved_errno = errno;
  uint64_t owner;
  int taken = penstock_slot_take_free(region, 1, PENSTOCK_SHARE_SLOTS, &owner);
  errno = saved_errno;
  if (taken < 0) return 0;
  penstock_usage_page *usage = region->usage;
  penstock_slot *share = &usage->slots[taken];
  __atomic_store_n(&share->share_maker, (uint64_t)own + 1, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&usage->shares_made, 1, __ATOMIC_SEQ_CST);
  uint64_t units = penstock_ledger_to_units(bytes);
  if (units && !move(region, (uint32_t)own, (uint32_t)taken, device, units)) {
    penstock_reap_slot(usage, &region->claim->identity, (uint32_t)taken, owner);
    return 0;
  }
  clear_key(usage, key);
  __atomic_store_n(&share->share_key, key, __ATOMIC_RELEASE);
  set_bit(share, (uint32_t)own);
  uint64_t shared = penstock_owner_with_state(owner, PENSTOCK_SLOT_SHARED);
  __atomic_store_n(&share->owner, shared, __ATOMIC_SEQ_CST);
  return id_of((uint32_t)taken, shared);
}

void penstock_share_rename(penstock_region *region, penstock_share share, uint64_t key) {
  clear_key(region->usage, key);
  penstock_slot *slot = &region->usage->slots[penstock_share_slot(share)];
  __atomic_store_n(&slot->share_key, key, __ATOMIC_RELEASE);
}

/* Returns the share's mark, with its file if that is a single device node. */
static penstock_mark read_mark(const penstock_slot *slot) {
  penstock_mark mark = {.offset = mark_of(slot),
                        .file = __atomic_load_n(&slot->image, __ATOMIC_ACQUIRE)};
  if (mark.file == SEVERAL_FILES) mark.file = 0;
  memcpy(mark.path, slot->command, sizeof mark.path);
  return mark;
}

/* Records the descriptor's device node, before the mark is set. If another node has been recorded
 * already, records that there are several. */
static void record_node(penstock_slot *slot, int descriptor) {
  penstock_mark mine;
  uint64_t seen = 0;
  penstock_mark_describe(descriptor, &mine);
  if (__atomic_compare_exchange_n(&slot->image, &seen, mine.file, 0, __ATOMIC_ACQ_REL,
                                  __ATOMIC_ACQUIRE)) {
    memcpy(slot->command, mine.path, sizeof slot->command);
  } else if (seen != mine.file) {
    __atomic_store_n(&slot->image, SEVERAL_FILES, __ATOMIC_RELEASE);
  }
}

bool penstock_share_mark(penstock_region *region, penstock_share share, int descriptor) {
  penstock_slot *slot = &region->usage->slots[penstock_share_slot(share)];
  uint64_t offset = penstock_mark_draw(), seen = 0;
  record_node(slot, descriptor);
  bool is_first = __atomic_compare_exchange_n(&slot->share_mark, &seen, offset, 0, __ATOMIC_SEQ_CST,
                                              __ATOMIC_SEQ_CST);
  if (penstock_mark_put(descriptor, is_first ? offset : seen)) return true;
  if (is_first) {
    __atomic_compare_exchange_n(&slot->share_mark, &offset, 0, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
  }
  return false;
}

uint64_t penstock_share_bytes(const penstock_region *region, penstock_share share,
                              unsigned device) {
  return penstock_ledger_charged(region, device, penstock_share_slot(share));
}

/* Reaps a share that has no holders and no open descriptors. Descriptors are checked before the
 * last check of the holders, because a process may have joined by a descriptor and then closed
 * it. */
static bool reap_if_closed(penstock_usage_page *usage, const penstock_identity *self,
                           uint32_t index, penstock_mark_look *with) {
  penstock_slot *slot = &usage->slots[index];
  uint64_t owner = __atomic_load_n(&slot->owner, __ATOMIC_SEQ_CST);
  penstock_mark mark = read_mark(slot);
  if (penstock_owner_state(owner) != PENSTOCK_SLOT_SHARED || has_holder(slot) ||
      penstock_mark_is_open(with, &mark) || has_holder(slot)) {
    return false;
  }
  __atomic_compare_exchange_n(&slot->share_mark, &mark.offset, 0, 0, __ATOMIC_SEQ_CST,
                              __ATOMIC_SEQ_CST);
  return penstock_reap_slot(usage, self, index, owner);
}

unsigned penstock_shares_look(penstock_usage_page *usage, const penstock_identity *self) {
  unsigned gone = 0;
  if (__atomic_load_n(&usage->shares_made, __ATOMIC_ACQUIRE) == 0) return 0;
  penstock_mark_look with = {0};
  uint32_t high = penstock_slots_high(usage);
  for (uint32_t i = 1; i < high; i++) {
    if (mark_of(&usage->slots[i])) gone += reap_if_closed(usage, self, i, &with);
  }
  penstock_mark_look_end(&with);
  return gone;
}

bool penstock_share_has_other_holder(const penstock_region *region, penstock_share share) {
  int own = penstock_slot_owned(region);
  const penstock_slot *slot = &region->usage->slots[penstock_share_slot(share)];
  for (unsigned i = 0; i < HOLDER_WORDS; i++) {
    uint64_t word = __atomic_load_n(&slot->holders[i], __ATOMIC_SEQ_CST);
    if (own >= 0 && (unsigned)own / 64 == i) word &= ~((uint64_t)1 << own % 64);
    if (word) return true;
  }
  return false;
}

bool penstock_share_is_held_elsewhere(const penstock_region *region, penstock_share share) {
  penstock_mark mark = read_mark(&region->usage->slots[penstock_share_slot(share)]);
  penstock_mark_look with = {0};
  if (penstock_share_has_other_holder(region, share)) return true;
  bool is_open = penstock_mark_is_open(&with, &mark);
  penstock_mark_look_end(&with);
  return is_open;
}

/* Joins the share in `slot`. Sets the bit first and then checks that the share still exists. */
static bool join(penstock_region *region, uint32_t slot, uint32_t own, uint64_t owner) {
  penstock_slot *share = &region->usage->slots[slot];
  for (int attempt = 0; attempt < JOIN_ATTEMPTS; attempt++) {
    set_bit(share, own);
    uint64_t now = owner_of(region, slot);
    if (has_id(now, id_of(slot, owner))) return true;
    clear_bit(share, own);
    if (penstock_owner_state(now) != PENSTOCK_SLOT_REAPING) break;
  }
  return false;
}

penstock_share penstock_share_join(penstock_region *region, uint64_t key) {
  penstock_usage_page *usage = region->usage;
  if (key == 0 || __atomic_load_n(&usage->shares_made, __ATOMIC_ACQUIRE) == 0) return 0;
  int own = penstock_slot_own(region);
  if (own < 0) return 0;
  uint32_t high = penstock_slots_high(usage);
  for (uint32_t slot = 1; slot < high; slot++) {
    if (__atomic_load_n(&usage->slots[slot].share_key, __ATOMIC_ACQUIRE) != key &&
        mark_of(&usage->slots[slot]) != key) {
      continue;
    }
    uint64_t owner = owner_of(region, slot);
    if (join(region, slot, (uint32_t)own, owner)) return id_of(slot, owner);
  }
  return 0;
}

void penstock_share_leave(penstock_region *region, penstock_share share) {
  int own = penstock_slot_owned(region);
  uint32_t slot = penstock_share_slot(share);
  if (own < 0 || share == 0 || slot >= PENSTOCK_MAX_SLOTS) return;
  uint64_t owner = owner_of(region, slot);
  clear_bit(&region->usage->slots[slot], (uint32_t)own);
  if (has_id(owner, share) && !has_holder(&region->usage->slots[slot])) {
    penstock_mark_look with = {0};
    reap_if_closed(region->usage, &region->claim->identity, slot, &with);
    penstock_mark_look_end(&with);
  }
}

penstock_error penstock_share_attempt(penstock_region *region, penstock_share share,
                                      unsigned device, uint64_t bytes) {
  return penstock_ledger_attempt_in(region, penstock_share_slot(share), device, bytes);
}

/* Checks the generation, because the slot of a share that is gone may have another owner. */
void penstock_share_release(penstock_region *region, penstock_share share, unsigned device,
                            uint64_t bytes) {
  uint32_t slot = penstock_share_slot(share);
  if (penstock_owner_generation(owner_of(region, slot)) + 1 == share >> 32) {
    penstock_ledger_release_in(region, slot, device, bytes);
  }
}
