#include "mechanism/working.h"

#define GROUPS (PENSTOCK_MAX_SLOTS / PENSTOCK_WORKING_SLOTS)

_Static_assert(GROUPS == 8 * sizeof((penstock_gate_device *)0)->working, "a bit for each group");

static bool any_work(const penstock_usage_page *usage, unsigned device, uint32_t group) {
  for (uint32_t i = 0; i < PENSTOCK_WORKING_SLOTS; i++) {
    const penstock_gate_slot *slot = &usage->slots[group * PENSTOCK_WORKING_SLOTS + i].gate[device];
    if (__atomic_load_n(&slot->estimate_ns, __ATOMIC_SEQ_CST) ||
        __atomic_load_n(&slot->busy_since_ns, __ATOMIC_SEQ_CST)) {
      return true;
    }
  }
  return false;
}

static void check_group(penstock_usage_page *usage, unsigned device, uint32_t group) {
  uint64_t *word = &usage->gate[device].working[group / 64], bit = (uint64_t)1 << group % 64;
  bool known = __atomic_load_n(word, __ATOMIC_RELAXED) & bit;
  bool works = any_work(usage, device, group);
  if (known && !works) {
    __atomic_fetch_and(word, ~bit, __ATOMIC_SEQ_CST);
    known = false;
    /* A process that added work meanwhile may have seen the bit still set. */
    works = any_work(usage, device, group);
  }
  if (works && !known) __atomic_fetch_or(word, bit, __ATOMIC_SEQ_CST);
}

/* Scans the slots below the high mark, and those above it if their group has a bit, which should
 * not occur. */
void penstock_working_scan(penstock_usage_page *usage, unsigned device, uint64_t now_ns) {
  penstock_gate_device *gate = &usage->gate[device];
  uint32_t scanned = __atomic_load_n(&gate->working_scanned, __ATOMIC_RELAXED);
  uint32_t now = (uint32_t)(now_ns / PENSTOCK_WORKING_TICK_NS); /* wraps around after 52 days */
  bool early = now - scanned < PENSTOCK_WORKING_SCAN_NS / PENSTOCK_WORKING_TICK_NS;
  if (__builtin_expect(early, 1)) return;
  if (!__atomic_compare_exchange_n(&gate->working_scanned, &scanned, now, false, __ATOMIC_RELAXED,
                                   __ATOMIC_RELAXED)) {
    return;
  }
  uint64_t high = __atomic_load_n(&usage->slots_high, __ATOMIC_ACQUIRE);
  for (uint32_t group = 0; group < GROUPS; group++) {
    uint64_t bits = __atomic_load_n(&gate->working[group / 64], __ATOMIC_RELAXED);
    bool used = (uint64_t)group * PENSTOCK_WORKING_SLOTS < high;
    if (used || (bits >> group % 64 & 1)) check_group(usage, device, group);
  }
}
