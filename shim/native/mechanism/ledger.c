#include "mechanism/ledger.h"

#include <errno.h>
#include <string.h>

#include "mechanism/lock.h"
#include "mechanism/reap.h"

void penstock_ledger_begin(penstock_ledger_op *op, penstock_usage_page *usage, unsigned device,
                           uint32_t slot, int64_t delta_units, uint64_t limit_units) {
  op->device = &usage->ledger[device];
  op->slots = usage->slots;
  op->device_index = device;
  op->slot = slot;
  op->delta_units = delta_units;
  op->limit_units =
      limit_units < PENSTOCK_LEDGER_MAX_UNITS ? limit_units : PENSTOCK_LEDGER_MAX_UNITS;
  op->state = PENSTOCK_LEDGER_READ_CHARGED;
}

static penstock_ledger_slot *own_words(const penstock_ledger_op *op) {
  return &op->slots[op->slot].ledger[op->device_index];
}

/* Returns the `ack` word of the slot whose operation is the last one in `total`. */
static uint64_t *last_ack(const penstock_ledger_op *op) {
  return &op->slots[penstock_ledger_slot_of(op->total)].ledger_ack[op->device_index];
}

static uint64_t next_seq(const penstock_ledger_op *op) {
  return (penstock_ledger_seq(op->charged) + 1) & PENSTOCK_LEDGER_SEQ_MASK;
}

/* Returns units + delta, clamped to the range of the word. In a valid page it never has to
 * clamp. */
static uint64_t moved(uint64_t units, int64_t delta) {
  if (delta < 0 && (uint64_t)-delta > units) return 0;
  uint64_t sum = units + (uint64_t)delta;
  return sum < PENSTOCK_LEDGER_MAX_UNITS ? sum : PENSTOCK_LEDGER_MAX_UNITS;
}

static bool fits(const penstock_ledger_op *op) {
  if (op->delta_units <= 0) return true;
  uint64_t units = penstock_ledger_units(op->total);
  return units <= op->limit_units && (uint64_t)op->delta_units <= op->limit_units - units;
}

static bool ack_is_recorded(const penstock_ledger_op *op) {
  return penstock_ledger_seq(op->ack) == penstock_ledger_seq(op->total);
}

static penstock_ledger_state step(penstock_ledger_op *op) {
  penstock_ledger_slot *mine = own_words(op);
  uint64_t expected, desired;
  switch (op->state) {
    case PENSTOCK_LEDGER_READ_CHARGED:
      op->charged = __atomic_load_n(&mine->charged, __ATOMIC_RELAXED);
      return PENSTOCK_LEDGER_WRITE_INTENT;

    case PENSTOCK_LEDGER_WRITE_INTENT:
      desired = penstock_ledger_pack((uint64_t)op->delta_units, 0, next_seq(op));
      __atomic_store_n(&mine->intent, desired, __ATOMIC_RELEASE);
      return PENSTOCK_LEDGER_READ_TOTAL;

    case PENSTOCK_LEDGER_READ_TOTAL:
      op->total = __atomic_load_n(&op->device->total, __ATOMIC_ACQUIRE);
      return fits(op) ? PENSTOCK_LEDGER_READ_ACK : PENSTOCK_LEDGER_ROLL_BACK;

    case PENSTOCK_LEDGER_READ_ACK:
      op->ack = __atomic_load_n(last_ack(op), __ATOMIC_ACQUIRE);
      return ack_is_recorded(op) ? PENSTOCK_LEDGER_APPLY : PENSTOCK_LEDGER_CHECK_TOTAL;

    case PENSTOCK_LEDGER_CHECK_TOTAL:
      return __atomic_load_n(&op->device->total, __ATOMIC_ACQUIRE) == op->total
                 ? PENSTOCK_LEDGER_WRITE_ACK
                 : PENSTOCK_LEDGER_READ_TOTAL;

    case PENSTOCK_LEDGER_WRITE_ACK:
      expected = op->ack;
      desired = (op->ack & ~PENSTOCK_LEDGER_SEQ_MASK) + PENSTOCK_LEDGER_SEQ_MASK + 1 +
                penstock_ledger_seq(op->total);
      return __atomic_compare_exchange_n(last_ack(op), &expected, desired, 0, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED)
                 ? PENSTOCK_LEDGER_APPLY
                 : PENSTOCK_LEDGER_READ_TOTAL;

    case PENSTOCK_LEDGER_APPLY:
      expected = op->total;
      desired = penstock_ledger_pack(moved(penstock_ledger_units(op->total), op->delta_units),
                                     op->slot, next_seq(op));
      return __atomic_compare_exchange_n(&op->device->total, &expected, desired, 0,
                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)
                 ? PENSTOCK_LEDGER_FOLD
                 : PENSTOCK_LEDGER_READ_TOTAL;

    case PENSTOCK_LEDGER_FOLD:
      desired = penstock_ledger_pack(moved(penstock_ledger_units(op->charged), op->delta_units), 0,
                                     next_seq(op));
      __atomic_store_n(&mine->charged, desired, __ATOMIC_RELEASE);
      return op->delta_units > 0 ? PENSTOCK_LEDGER_RAISE_PEAK : PENSTOCK_LEDGER_DONE;

    case PENSTOCK_LEDGER_RAISE_PEAK:
      desired =
          moved(penstock_ledger_units(op->total), op->delta_units) * PENSTOCK_LEDGER_UNIT_BYTES;
      expected = __atomic_load_n(&op->device->peak_bytes, __ATOMIC_RELAXED);
      while (expected < desired &&
             !__atomic_compare_exchange_n(&op->device->peak_bytes, &expected, desired, 0,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      }
      return PENSTOCK_LEDGER_DONE;

    case PENSTOCK_LEDGER_ROLL_BACK:
      desired = penstock_ledger_pack(0, 0, penstock_ledger_seq(op->charged));
      __atomic_store_n(&mine->intent, desired, __ATOMIC_RELEASE);
      return PENSTOCK_LEDGER_REFUSED;

    case PENSTOCK_LEDGER_DONE:
    case PENSTOCK_LEDGER_REFUSED:
      break;
  }
  return op->state;
}

penstock_ledger_state penstock_ledger_step(penstock_ledger_op *op) { return op->state = step(op); }

/* Runs all steps of an operation. The compiler unrolls the loop into straight-line code. */
static bool run(penstock_ledger_op *op) {
  while (op->state < PENSTOCK_LEDGER_DONE) op->state = step(op);
  return op->state == PENSTOCK_LEDGER_DONE;
}

uint64_t penstock_ledger_limit(const penstock_region *region, unsigned device) {
  const penstock_limits *limits = penstock_region_limits(region);
  if (device >= penstock_region_device_count(region)) return 0;
  uint64_t bytes = __atomic_load_n(&limits->devices[device].memory_bytes, __ATOMIC_RELAXED);
  return bytes / PENSTOCK_LEDGER_UNIT_BYTES * PENSTOCK_LEDGER_UNIT_BYTES;
}

/* Makes one attempt at a reservation under the limit currently in force. */
static bool reserve_units(penstock_region *region, unsigned device, uint32_t slot, uint64_t units) {
  uint64_t limit = penstock_ledger_limit(region, device) / PENSTOCK_LEDGER_UNIT_BYTES;
  if (units > limit || units > (PENSTOCK_LEDGER_MAX_UNITS >> 1)) return false;
  penstock_ledger_op op;
  penstock_ledger_begin(&op, region->usage, device, slot, (int64_t)units, limit);
  penstock_lock_acquire(&region->claim->device_locks[device]);
  bool reserved = run(&op);
  penstock_lock_release(&region->claim->device_locks[device]);
  return reserved;
}

penstock_error penstock_ledger_attempt_in(penstock_region *region, uint32_t slot, unsigned device,
                                          uint64_t bytes) {
  uint64_t units = penstock_ledger_to_units(bytes);
  if (reserve_units(region, device, slot, units)) return PENSTOCK_OK;
  return penstock_reap_for_refusal(region, device) && reserve_units(region, device, slot, units)
             ? PENSTOCK_OK
             : PENSTOCK_E_OVER_LIMIT;
}

penstock_error penstock_ledger_attempt(penstock_region *region, unsigned device, uint64_t bytes) {
  if (bytes == 0) return PENSTOCK_OK;
  if (device >= PENSTOCK_MAX_DEVICES) return PENSTOCK_E_INVALID;
  int slot = penstock_slot_own(region);
  if (slot < 0) return (penstock_error)-slot;
  return penstock_ledger_attempt_in(region, (uint32_t)slot, device, bytes);
}

void penstock_ledger_count_refusal(penstock_region *region, unsigned device, uint64_t bytes) {
  if (device >= PENSTOCK_MAX_DEVICES) return;
  penstock_ledger_device *words = &region->usage->ledger[device];
  __atomic_fetch_add(&words->refusals, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&words->refused_bytes, bytes, __ATOMIC_RELAXED);
}

penstock_error penstock_ledger_reserve(penstock_region *region, unsigned device, uint64_t bytes) {
  penstock_error error = penstock_ledger_attempt(region, device, bytes);
  if (error == PENSTOCK_E_OVER_LIMIT) penstock_ledger_count_refusal(region, device, bytes);
  return error;
}

void penstock_ledger_release_in(penstock_region *region, uint32_t slot, unsigned device,
                                uint64_t bytes) {
  uint64_t units = penstock_ledger_to_units(bytes);
  penstock_ledger_slot *words = &region->usage->slots[slot].ledger[device];
  penstock_lock_acquire(&region->claim->device_locks[device]);
  uint64_t held = penstock_ledger_units(__atomic_load_n(&words->charged, __ATOMIC_RELAXED));
  if (units > held) units = held;
  if (units > 0) {
    penstock_ledger_op op;
    penstock_ledger_begin(&op, region->usage, device, slot, -(int64_t)units, 0);
    run(&op);
  }
  penstock_lock_release(&region->claim->device_locks[device]);
}

void penstock_ledger_release(penstock_region *region, unsigned device, uint64_t bytes) {
  if (bytes == 0 || device >= PENSTOCK_MAX_DEVICES) return;
  int slot = penstock_slot_owned(region);
  if (slot >= 0) penstock_ledger_release_in(region, (uint32_t)slot, device, bytes);
}

uint64_t penstock_ledger_total(const penstock_region *region, unsigned device) {
  if (device >= PENSTOCK_MAX_DEVICES) return 0;
  uint64_t word = __atomic_load_n(&region->usage->ledger[device].total, __ATOMIC_ACQUIRE);
  return penstock_ledger_units(word) * PENSTOCK_LEDGER_UNIT_BYTES;
}

uint64_t penstock_ledger_charged(const penstock_region *region, unsigned device, uint32_t slot) {
  if (device >= PENSTOCK_MAX_DEVICES || slot >= PENSTOCK_MAX_SLOTS) return 0;
  const penstock_ledger_slot *words = &region->usage->slots[slot].ledger[device];
  uint64_t word = __atomic_load_n(&words->charged, __ATOMIC_ACQUIRE);
  return penstock_ledger_units(word) * PENSTOCK_LEDGER_UNIT_BYTES;
}

uint64_t penstock_ledger_own(const penstock_region *region, unsigned device) {
  int slot = penstock_slot_owned(region);
  return slot < 0 ? 0 : penstock_ledger_charged(region, device, (uint32_t)slot);
}
