/* Records which processes of a tenant have gate work now, so that a launch checks only those and
 * not all slots that were ever used. Most of the slots may be shares, or belong to processes that
 * are gone or idle.
 *
 * A bit in the device's gate words stands for a few adjacent slots. A process that admits a launch
 * stores its work first and then sets the bit. Only a *scan* of all slots clears a bit: it clears
 * the bit first and then checks for work once more. The first launch after PENSTOCK_WORKING_SCAN_NS
 * makes a scan. Work without a bit is therefore found by the next scan at the latest, whether the
 * process was killed between the two stores or runs a release that knows no bits. A bit without
 * work costs a check of its slots until the next scan.
 */
#pragma once

#include "mechanism/region.h"

#define PENSTOCK_WORKING_SCAN_NS (96 * PENSTOCK_WORKING_TICK_NS)

/* Records that the process of `slot` has just added to its estimate on the device. */
static inline void penstock_working_note(penstock_gate_device *gate, uint32_t slot) {
  uint32_t group = slot / PENSTOCK_WORKING_SLOTS;
  uint64_t *word = &gate->working[group / 64], bit = (uint64_t)1 << group % 64;
  if (__builtin_expect(!(__atomic_load_n(word, __ATOMIC_SEQ_CST) & bit), 0)) {
    __atomic_fetch_or(word, bit, __ATOMIC_SEQ_CST);
  }
}

/* Checks all slots, unless another thread or process did so recently. */
void penstock_working_scan(penstock_usage_page *usage, unsigned device, uint64_t now_ns);

/* Iterator over the slots that may have work:
 *   for (penstock_working at = penstock_working_begin(usage, device);
 *        penstock_working_next(gate, &at);)
 *     … at.slot … */
typedef struct penstock_working {
  uint64_t bits; /* bits of the current word that are still to be visited */
  uint32_t word;
  uint32_t slot; /* current slot, always below PENSTOCK_MAX_SLOTS */
  uint32_t high; /* high mark: `slot` is below it, except for the first slot of a group */
} penstock_working;

static inline penstock_working penstock_working_begin(const penstock_usage_page *usage,
                                                      unsigned device) {
  penstock_working at = {.slot = PENSTOCK_WORKING_SLOTS - 1};
  at.bits = __atomic_load_n(&usage->gate[device].working[0], __ATOMIC_SEQ_CST);
  at.high = (uint32_t)__atomic_load_n(&usage->slots_high, __ATOMIC_ACQUIRE);
  return at;
}

static inline bool penstock_working_next(const penstock_gate_device *gate, penstock_working *at) {
  enum { WORDS = sizeof gate->working / sizeof *gate->working };
  if (++at->slot % PENSTOCK_WORKING_SLOTS && at->slot < at->high) return true;
  while (!at->bits) {
    if (++at->word >= WORDS) return false;
    at->bits = __atomic_load_n(&gate->working[at->word], __ATOMIC_SEQ_CST);
  }
  at->slot = (at->word * 64 + (uint32_t)__builtin_ctzll(at->bits)) * PENSTOCK_WORKING_SLOTS;
  at->bits &= at->bits - 1;
  return true;
}
