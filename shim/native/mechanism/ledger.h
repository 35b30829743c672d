/* The memory ledger counts how many bytes a tenant's processes hold on each granted device.
 *
 * It is exact, and lock-free between processes. The total never exceeds the limit, not even for an
 * instant. After a process has been killed between any two instructions, it can still be determined
 * which charges were applied.
 *
 * Protocol. Slot s applies operation k, which changes its charge by d units (a slot's operations
 * are numbered without gaps):
 *   1. intent[s] = (d, k)                          only s, or its reaper, writes this word
 *   2. W = total = (units, s', k')                 the operation applied last, by any slot
 *   3. help: unless ack[s'].seq is k', make it so  (after checking that total is still W: then k'
 *      is applied, and cannot be overwritten before ack says so; the count in ack makes late
 *      compare-and-swaps fail)
 *   4. total: W -> (units + d, s, k)               on failure, continue at 2
 *   5. charged[s] = (charged + d, k)
 * A move of bytes from slot s into a share (share.h) is also numbered as an operation of s, but
 * does not change total. If the operation is refused (d > 0 and units + d exceeds the limit), then
 * intent[s] = (0, k - 1), and k counts as unused.
 *
 * Operation k of a dead slot is open if intent.seq differs from charged.seq. It was applied if and
 * only if total carries (s, k) or, read after that, ack[s].seq is k, because a process that
 * overwrites (s, k) in total records it in ack first. A reaper (reap.h) needs no more than that: it
 * finishes or drops the open operation, takes the rest of the charge back by an ordinary operation
 * of the dead slot, and may itself be killed at any point.
 *
 * The unit is 512 bytes. Requests are rounded up and the limit down. The driver's own granularity
 * is a multiple of 512, so nothing is lost. A word repeats after 2^18 operations of one slot. One
 * operation is misjudged if a process sleeps between 2 and 4 for exactly that many operations,
 * finds the same total, and s is killed within that window. We accept this.
 *
 * Within a process, a lock serialises the operations of its slot on each device.
 */
#pragma once

#include "mechanism/region.h"
#include "mechanism/slots.h"

/* Charges `bytes` on `device` (index in the grant). Returns PENSTOCK_OK if they fit. Returns
 * PENSTOCK_E_OVER_LIMIT, and counts a refusal, if they do not fit even after the charges of dead
 * processes were taken back. If the process has no slot, returns the reason. A request for 0 bytes
 * always fits. Preserves errno. */
penstock_error penstock_ledger_reserve(penstock_region *region, unsigned device, uint64_t bytes);

/* Releases `bytes` that this process reserved, or everything it holds if that is less. A process
 * without a slot (the child of a fork) releases nothing. Never fails, even if the limit has since
 * been set below the use. Preserves errno. */
void penstock_ledger_release(penstock_region *region, unsigned device, uint64_t bytes);

/* Like penstock_ledger_reserve, but does not count a refusal. For callers that have an
 * alternative. */
penstock_error penstock_ledger_attempt(penstock_region *region, unsigned device, uint64_t bytes);
void penstock_ledger_count_refusal(penstock_region *region, unsigned device, uint64_t bytes);

/* Reserves and releases for another slot, one whose operations only this process makes
 * (share.h). */
penstock_error penstock_ledger_attempt_in(penstock_region *region, uint32_t slot, unsigned device,
                                          uint64_t bytes);
void penstock_ledger_release_in(penstock_region *region, uint32_t slot, unsigned device,
                                uint64_t bytes);

/* Returns the bytes charged to the tenant on `device`. */
uint64_t penstock_ledger_total(const penstock_region *region, unsigned device);

/* Returns the bytes charged to one slot, not counting its open operation. */
uint64_t penstock_ledger_charged(const penstock_region *region, unsigned device, uint32_t slot);

/* Returns the bytes charged to this process, 0 if it has no slot. */
uint64_t penstock_ledger_own(const penstock_region *region, unsigned device);

/* Returns the limit in force, rounded down to whole units. */
uint64_t penstock_ledger_limit(const penstock_region *region, unsigned device);

/* One ledger operation as a sequence of steps, each of which accesses shared memory at most once.
 * The shim runs the steps in a loop; tests stop, interleave and kill between any two of them. */
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
  penstock_slot *slots; /* the whole table, because helping writes the ack of other slots */
  uint32_t device_index;
  uint32_t slot;
  int64_t delta_units;
  uint64_t limit_units; /* used only if delta_units > 0 */
  penstock_ledger_state state;
  uint64_t charged; /* these three words as last read */
  uint64_t total;
  uint64_t ack;
} penstock_ledger_op;

void penstock_ledger_begin(penstock_ledger_op *op, penstock_usage_page *usage, unsigned device,
                           uint32_t slot, int64_t delta_units, uint64_t limit_units);

/* Runs one step and returns the state reached. In the states DONE and REFUSED it does nothing. */
penstock_ledger_state penstock_ledger_step(penstock_ledger_op *op);

/* Functions and constants that pack and unpack ledger words. */
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
/* Converts bytes to units, rounding up, without overflow. */
static inline uint64_t penstock_ledger_to_units(uint64_t bytes) {
  return bytes / PENSTOCK_LEDGER_UNIT_BYTES + (bytes % PENSTOCK_LEDGER_UNIT_BYTES != 0);
}
