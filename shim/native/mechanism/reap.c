#include "mechanism/reap.h"

#include <errno.h>
#include <string.h>

#include "mechanism/clock.h"
#include "mechanism/gate.h"
#include "mechanism/share.h"

/* Minimum times between two checks for dead processes. After a slow check the pause is longer,
 * namely sixteen times the duration of that check, so that a process that is refused in a loop
 * spends at most a sixteenth of its time on checks. */
#define QUICK_REAP_PERIOD_NS 20000
#define THOROUGH_REAP_PERIOD_NS 10000000
#define REAP_PAUSE_FACTOR 16

/* the ring of busy time reaches no further back */
#define LONGEST_UNSETTLED_NS 4000000000u

static void begin_as(penstock_reap_op *op, penstock_usage_page *usage, uint32_t slot,
                     uint64_t victim, uint64_t owner) {
  memset(op, 0, sizeof *op);
  op->usage = usage;
  op->slot = slot;
  op->victim = victim;
  op->owner = owner;
}

void penstock_reap_begin(penstock_reap_op *op, penstock_usage_page *usage,
                         const penstock_identity *self, uint32_t slot, uint64_t victim) {
  begin_as(op, usage, slot, victim,
           penstock_owner_pack(PENSTOCK_SLOT_REAPING, self->pid_namespace, self->pid,
                               penstock_owner_generation(victim), self->start_ticks));
}

static penstock_reap_state next_device(penstock_reap_op *op) {
  op->device++;
  return op->device < PENSTOCK_MAX_DEVICES ? PENSTOCK_REAP_READ_INTENT : PENSTOCK_REAP_CLEAR;
}

/* Takes back the rest of the charge by an operation of its own, once the open operation is decided.
 */
static penstock_reap_state take_back_rest(penstock_reap_op *op) {
  uint64_t units = penstock_ledger_units(op->charged);
  if (units == 0) return next_device(op);
  penstock_ledger_begin(&op->take_back, op->usage, op->device, op->slot, -(int64_t)units, 0);
  return PENSTOCK_REAP_TAKE_BACK;
}

static uint64_t take(uint64_t *word) { return __atomic_exchange_n(word, 0, __ATOMIC_ACQ_REL); }

/* Charges the device time that was admitted but never settled because the process ended. The work
 * ran at most until its end was noticed, so the time up to then is charged, except what was charged
 * already. The words are cleared first, so that a reaper that is killed here loses one charge
 * instead of charging twice. */
static void charge_unsettled(penstock_reap_op *op, unsigned device) {
  penstock_gate_slot *words = &op->usage->slots[op->slot].gate[device];
  penstock_gate_device *gate = &op->usage->gate[device];
  uint64_t since = take(&words->unsettled_since_ns), ns = take(&words->estimate_ns);
  if (ns > LONGEST_UNSETTLED_NS) ns = LONGEST_UNSETTLED_NS;
  uint64_t until = op->noticed_ns;
  if (since < op->released_ns && op->released_ns < until) until = op->released_ns;
  if (since && since < until) {
    uint64_t earliest = until - LONGEST_UNSETTLED_NS;
    if (until > LONGEST_UNSETTLED_NS && since < earliest) since = earliest;
    ns = penstock_gate_mark(gate, since, until, UINT64_MAX);
  }
  uint64_t permille = __atomic_load_n(&gate->overdraft_permille, __ATOMIC_RELAXED);
  if (!permille || permille > PENSTOCK_GATE_FULL_PERMILLE) permille = PENSTOCK_GATE_FULL_PERMILLE;
  penstock_gate_charge(gate, (uint32_t)permille, ns);
}

/* Clears the slot except its ledger words, which the next owner continues to number. */
static void clear_rest(penstock_slot *slot) {
  __atomic_store_n(&slot->image, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->claimed_ns, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->share_key, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->share_maker, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->share_mark, 0, __ATOMIC_RELAXED);
  memset(slot->command, 0, sizeof slot->command);
  uint64_t *gate = (uint64_t *)slot->gate;
  for (size_t i = 0; i < sizeof slot->gate / 8; i++) {
    __atomic_store_n(&gate[i], 0, __ATOMIC_RELAXED);
  }
}

static penstock_reap_state step(penstock_reap_op *op) {
  penstock_slot *slot = &op->usage->slots[op->slot];
  penstock_ledger_slot *words = &slot->ledger[op->device];
  uint64_t seq = penstock_ledger_seq(op->intent);
  uint64_t word;
  switch (op->state) {
    case PENSTOCK_REAP_TAKE:
      word = op->victim;
      return __atomic_compare_exchange_n(&slot->owner, &word, op->owner, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_RELAXED)
                 ? PENSTOCK_REAP_READ_HOLDERS
                 : PENSTOCK_REAP_LOST;

    case PENSTOCK_REAP_READ_HOLDERS:
      if (!penstock_share_is_held(slot)) return PENSTOCK_REAP_READ_INTENT;
      word = op->owner;
      __atomic_compare_exchange_n(&slot->owner, &word,
                                  penstock_owner_with_state(op->owner, PENSTOCK_SLOT_SHARED), 0,
                                  __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
      return PENSTOCK_REAP_LOST;

    case PENSTOCK_REAP_READ_INTENT:
      op->intent = __atomic_load_n(&words->intent, __ATOMIC_ACQUIRE);
      return PENSTOCK_REAP_READ_CHARGED;

    case PENSTOCK_REAP_READ_CHARGED:
      op->charged = __atomic_load_n(&words->charged, __ATOMIC_ACQUIRE);
      if (seq == penstock_ledger_seq(op->charged)) return take_back_rest(op);
      return penstock_ledger_slot_of(op->intent) ? PENSTOCK_REAP_EMPTY_TARGET
                                                 : PENSTOCK_REAP_READ_TOTAL;

    case PENSTOCK_REAP_EMPTY_TARGET:
      words = &op->usage->slots[penstock_ledger_slot_of(op->intent)].ledger[op->device];
      word = __atomic_load_n(&words->charged, __ATOMIC_RELAXED);
      __atomic_store_n(&words->charged, penstock_ledger_pack(0, 0, penstock_ledger_seq(word)),
                       __ATOMIC_RELEASE);
      return PENSTOCK_REAP_ROLL_BACK;

    case PENSTOCK_REAP_READ_TOTAL:
      word = __atomic_load_n(&op->usage->ledger[op->device].total, __ATOMIC_ACQUIRE);
      return penstock_ledger_slot_of(word) == op->slot && penstock_ledger_seq(word) == seq
                 ? PENSTOCK_REAP_FOLD
                 : PENSTOCK_REAP_READ_ACK;

    case PENSTOCK_REAP_READ_ACK:
      word = __atomic_load_n(&slot->ledger_ack[op->device], __ATOMIC_ACQUIRE);
      return penstock_ledger_seq(word) == seq ? PENSTOCK_REAP_FOLD : PENSTOCK_REAP_ROLL_BACK;

    case PENSTOCK_REAP_FOLD: {
      int64_t units =
          (int64_t)penstock_ledger_units(op->charged) + penstock_ledger_delta(op->intent);
      op->charged = penstock_ledger_pack(units > 0 ? (uint64_t)units : 0, 0, seq);
      __atomic_store_n(&words->charged, op->charged, __ATOMIC_RELEASE);
      return take_back_rest(op);
    }

    case PENSTOCK_REAP_ROLL_BACK:
      word = penstock_ledger_pack(0, 0, penstock_ledger_seq(op->charged));
      __atomic_store_n(&words->intent, word, __ATOMIC_RELEASE);
      return take_back_rest(op);

    case PENSTOCK_REAP_TAKE_BACK:
      return penstock_ledger_step(&op->take_back) < PENSTOCK_LEDGER_DONE ? PENSTOCK_REAP_TAKE_BACK
                                                                         : next_device(op);

    case PENSTOCK_REAP_CLEAR:
      for (unsigned i = 0; i < PENSTOCK_MAX_DEVICES; i++) charge_unsettled(op, i);
      clear_rest(slot);
      penstock_share_forget(op->usage, op->slot);
      return PENSTOCK_REAP_FREE;

    case PENSTOCK_REAP_FREE:
      word = op->owner;
      return __atomic_compare_exchange_n(
                 &slot->owner, &word,
                 penstock_owner_pack(PENSTOCK_SLOT_FREE, 0, 0, penstock_owner_generation(op->owner),
                                     0),
                 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)
                 ? PENSTOCK_REAP_DONE
                 : PENSTOCK_REAP_LOST;

    case PENSTOCK_REAP_DONE:
    case PENSTOCK_REAP_LOST:
      break;
  }
  return op->state;
}

penstock_reap_state penstock_reap_step(penstock_reap_op *op) { return op->state = step(op); }

static bool reap_slot(penstock_usage_page *usage, const penstock_quota_page *quota,
                      const penstock_identity *self, uint32_t slot, uint64_t victim) {
  penstock_reap_op op;
  /* the reaper of the slot that sends the bytes must run first */
  if (penstock_share_is_arriving(usage, slot)) return false;
  penstock_reap_begin(&op, usage, self, slot, victim);
  op.noticed_ns = penstock_now_ns();
  if (quota) {
    const penstock_limits *limits =
        &quota->copies[__atomic_load_n(&quota->current, __ATOMIC_ACQUIRE) & 1];
    op.released_ns = __atomic_load_n(&limits->released_ns, __ATOMIC_RELAXED);
  }
  while (penstock_reap_step(&op) < PENSTOCK_REAP_DONE) {
  }
  return op.state == PENSTOCK_REAP_DONE;
}

bool penstock_reap_slot(penstock_usage_page *usage, const penstock_identity *self, uint32_t slot,
                        uint64_t victim) {
  return reap_slot(usage, NULL, self, slot, victim);
}

static bool has_shares(const penstock_usage_page *usage) {
  return __atomic_load_n(&usage->shares_made, __ATOMIC_ACQUIRE) != 0;
}

unsigned penstock_reap_all(penstock_usage_page *usage, const penstock_quota_page *quota) {
  int saved_errno = errno;
  penstock_identity self;
  penstock_identity_read(usage, &self);
  unsigned reaped = 0;
  uint32_t high = penstock_slots_high(usage);
  /* two passes, because a share is dead only once the last process that held it has been reaped */
  for (int pass = 0; pass < (has_shares(usage) ? 2 : 1); pass++) {
    for (uint32_t slot = 0; slot < high; slot++) {
      uint64_t owner = __atomic_load_n(&usage->slots[slot].owner, __ATOMIC_ACQUIRE);
      if (penstock_slot_is_dead(usage, quota, &self, slot, owner, true)) {
        reaped += reap_slot(usage, quota, &self, slot, owner);
      }
    }
  }
  reaped += penstock_shares_look(usage, &self);
  errno = saved_errno;
  return reaped;
}

/* Returns whether the slot holds memory or admitted device time on the device, or has an open
 * operation, which may have been applied. */
static bool holds_something(const penstock_slot *slot, unsigned device) {
  const penstock_ledger_slot *words = &slot->ledger[device];
  if (__atomic_load_n(&slot->gate[device].estimate_ns, __ATOMIC_RELAXED) != 0) return true;
  uint64_t charged = __atomic_load_n(&words->charged, __ATOMIC_ACQUIRE);
  uint64_t intent = __atomic_load_n(&words->intent, __ATOMIC_ACQUIRE);
  return penstock_ledger_units(charged) != 0 ||
         penstock_ledger_seq(intent) != penstock_ledger_seq(charged);
}

/* Finds the slots that hold a share or are making one, because their own words may show no
 * charge. */
static void find_holders(const penstock_usage_page *usage, uint64_t *holders) {
  memset(holders, 0, PENSTOCK_MAX_SLOTS / 8);
  if (!has_shares(usage)) return;
  uint32_t high = penstock_slots_high(usage);
  for (uint32_t slot = 1; slot < high; slot++) {
    const penstock_slot *share = &usage->slots[slot];
    uint64_t owner = __atomic_load_n(&share->owner, __ATOMIC_ACQUIRE);
    if (penstock_owner_state(owner) == PENSTOCK_SLOT_FREE) continue;
    for (unsigned i = 0; i < PENSTOCK_MAX_SLOTS / 64; i++) {
      holders[i] |= __atomic_load_n(&share->holders[i], __ATOMIC_RELAXED);
    }
  }
}

static bool reap_pass(penstock_region *region, unsigned device, bool thorough) {
  const penstock_claim *claim = region->claim;
  penstock_usage_page *usage = region->usage;
  uint64_t holders[PENSTOCK_MAX_SLOTS / 64];
  find_holders(usage, holders);
  bool reaped = false;
  uint32_t high = penstock_slots_high(usage);
  for (uint32_t slot = 0; slot < high; slot++) {
    uint64_t owner = __atomic_load_n(&usage->slots[slot].owner, __ATOMIC_ACQUIRE);
    if (slot == claim->slot || penstock_owner_state(owner) == PENSTOCK_SLOT_FREE) continue;
    if (!holds_something(&usage->slots[slot], device) && !(holders[slot / 64] >> slot % 64 & 1)) {
      continue;
    }
    if (penstock_slot_is_dead(usage, region->quota, &claim->identity, slot, owner, thorough)) {
      reaped |= reap_slot(usage, region->quota, &claim->identity, slot, owner);
    }
  }
  return reaped;
}

static uint64_t next_time(uint64_t now, uint64_t took_ns, uint64_t period_ns) {
  uint64_t pause_ns = took_ns * REAP_PAUSE_FACTOR;
  return now + (pause_ns > period_ns ? pause_ns : period_ns);
}

bool penstock_reap_for_refusal(penstock_region *region, unsigned device) {
  if (device >= PENSTOCK_MAX_DEVICES || penstock_slot_owned(region) < 0) return false;
  penstock_claim *claim = region->claim;
  penstock_usage_page *usage = region->usage;
  uint64_t began = penstock_now_ns();
  if (began < __atomic_load_n(&claim->next_quick_reap_ns, __ATOMIC_RELAXED)) return false;
  bool thorough = began >= __atomic_load_n(&claim->next_thorough_reap_ns, __ATOMIC_RELAXED);
  int saved_errno = errno;
  bool reaped = reap_pass(region, device, thorough);
  /* shares can be reaped only after their holders */
  if (reaped && has_shares(usage)) reap_pass(region, device, thorough);
  uint64_t ended = penstock_now_ns();
  __atomic_store_n(
      thorough ? &claim->next_thorough_reap_ns : &claim->next_quick_reap_ns,
      next_time(ended, ended - began, thorough ? THOROUGH_REAP_PERIOD_NS : QUICK_REAP_PERIOD_NS),
      __ATOMIC_RELAXED);
  errno = saved_errno;
  return reaped;
}
