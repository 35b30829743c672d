/* The memory ledger: how many bytes a tenant's processes hold on each granted device.
 *
 * Exact and lock-free between processes: the total never exceeds the limit, not for an instant, and
 * after a kill between any two instructions it can still be decided which charges were applied.
 *
 * Protocol. Slot s applies operation k (its operations are numbered without gaps) of d units:
 *   1. intent[s] = (d, k)                          only s, or its reaper, writes this word
 *   2. W = total = (units, s', k')                 the operation applied last, by any slot
 *   3. help: unless ack[s'].seq is k', make it so  (checking that total is still W: then k' is
 *      applied, and cannot be overwritten before ack says so; the count in ack makes late
 *      compare-and-swaps fail)
 *   4. total: W -> (units + d, s, k)               on failure again from 2
 *   5. charged[s] = (charged + d, k)
 * A move of bytes from slot s into a share (share.h) takes a number of s as well, and does not
 * change total. Refused (d > 0 and units + d above the limit): intent[s] = (0, k - 1); k was never
 * used.
 *
 * Operation k of a dead slot is open if intent.seq is not charged.seq, and it was applied if and
 * only if total carries (s, k) or, read after that, ack[s].seq is k: the process that overwrote it
 * in total had recorded it in ack before. That is all a reaper (reap.h) needs: it finishes or drops
 * the open operation, takes the rest back by an ordinary operation of the dead slot, and may itself
 * be killed anywhere.
 *
 * Units of 512 bytes: a request is rounded up, the limit down. The driver's own granularity is a
 * multiple of 512, so nothing is lost. A word repeats after 2^18 operations of one slot. If a
 * process sleeps between 2 and 4 for exactly that many, finds the same total, and s is killed in
 * that very window, one operation is misjudged. This is accepted.
 *
 * Inside one process a lock serialises the operations of the process's slot on one device.
 */
#pragma once

#include "mechanism/region.h"
#include "mechanism/slots.h"

/* Charges `bytes` on `device` (index of the grant). Returns PENSTOCK_OK; PENSTOCK_E_OVER_LIMIT when
 * they do not fit, even after dead processes' charges were taken back (counted as a refusal); or
 * the reason why there is no slot to charge. 0 bytes always fit. Keeps errno. */
penstock_error penstock_ledger_reserve(penstock_region *region, unsigned device, uint64_t bytes);

/* Gives back `bytes` that this process reserved. An amount above what the process holds is cut to
 * that; a process without a slot (a fork's child) gives back nothing. Never fails, also when the
 * limit has meanwhile been set below the use. Keeps errno. */
void penstock_ledger_release(penstock_region *region, unsigned device, uint64_t bytes);

/* Reserves without counting a refusal: for callers that have an alternative. */
penstock_error penstock_ledger_attempt(penstock_region *region, unsigned device, uint64_t bytes);
void penstock_ledger_count_refusal(penstock_region *region, unsigned device, uint64_t bytes);

/* Attempt and release for another slot whose operations only this process makes (share.h). */
penstock_error penstock_ledger_attempt_in(penstock_region *region, uint32_t slot, unsigned device,
                                          uint64_t bytes);
void penstock_ledger_release_in(penstock_region *region, uint32_t slot, unsigned device,
                                uint64_t bytes);

/* Bytes charged to the tenant on `device`. */
uint64_t penstock_ledger_total(const penstock_region *region, unsigned device);

/* Bytes charged to one slot, without its open operation. */
uint64_t penstock_ledger_charged(const penstock_region *region, unsigned device, uint32_t slot);

/* Bytes charged to this process; 0 without a slot. */
uint64_t penstock_ledger_own(const penstock_region *region, unsigned device);

/* The limit in force, rounded down to units. */
uint64_t penstock_ledger_limit(const penstock_region *region, unsigned device);

/* One operation as a sequence of steps, each with at most one access to shared memory. The product
 * runs them in a loop; tests stop, interleave and kill between any two. */
typedef enum penstock_ledger_state {
  PENSTOCK_LEDGER_READ_CHARGED,
  PENSTOCK_LEDGER_WRITE_INTENT,
  PENSTOCK_LEDGER_READ_TOTAL,
  PENSTOCK_LEDGER_READ_ACK,
  PENSTOCK_LEDGER_CHECK_TOTAL,
  PENSTOCK_LEDGER_WRITE_ACK,
  PENSTOCK_LEDGER_APPLY,
  PENSTOCK_LEDGER_FOLD,
  PENSTOCK_LEDGER_RAISE_PEAK,
  PENSTOCK_LEDGER_ROLL_BACK,
  PENSTOCK_LEDGER_DONE,
  PENSTOCK_LEDGER_REFUSED,
} penstock_ledger_state;

typedef struct penstock_ledger_op {
  penstock_ledger_device *device;
  penstock_slot *slots; /* the whole table: helping touches other slots' ack */
  uint32_t device_index;
  uint32_t slot;
  int64_t delta_units;
  uint64_t limit_units; /* used when delta_units > 0 */
  penstock_ledger_state state;
  uint64_t charged; /* words as last read */
  uint64_t total;
  uint64_t ack;
} penstock_ledger_op;

void penstock_ledger_begin(penstock_ledger_op *op, penstock_usage_page *usage, unsigned device,
                           uint32_t slot, int64_t delta_units, uint64_t limit_units);

/* Runs one step and returns the state reached; DONE and REFUSED stay. */
penstock_ledger_state penstock_ledger_step(penstock_ledger_op *op);

/* Packing of words. */
#define PENSTOCK_LEDGER_MAX_UNITS (((uint64_t)1 << 36) - 1)
#define PENSTOCK_LEDGER_SEQ_MASK (((uint64_t)1 << 18) - 1)
static inline uint64_t penstock_ledger_pack(uint64_t units, uint32_t slot, uint64_t seq) {
  return units << 28 | (uint64_t)(slot & 0x3ff) << 18 | (seq & PENSTOCK_LEDGER_SEQ_MASK);
}
static inline uint64_t penstock_ledger_units(uint64_t word) { return word >> 28; }
static inline int64_t penstock_ledger_delta(uint64_t word) { return (int64_t)word >> 28; }
static inline uint32_t penstock_ledger_slot_of(uint64_t word) { return word >> 18 & 0x3ff; }
static inline uint64_t penstock_ledger_seq(uint64_t word) {
  return word & PENSTOCK_LEDGER_SEQ_MASK;
}
/* Round up; never overflows. */
static inline uint64_t penstock_ledger_to_units(uint64_t bytes) {
  return bytes / PENSTOCK_LEDGER_UNIT_BYTES + (bytes % PENSTOCK_LEDGER_UNIT_BYTES != 0);
}
