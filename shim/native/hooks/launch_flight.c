/* Device time that was admitted and is not charged yet: by estimate, and as it passes. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "mechanism/slots.h"

/* Work that runs on beyond its estimate counts as it passes, from this much on: brackets are
 * settled a little after their end, and beside others they take longer by turns of the device. */
#define LIVE_SLACK_NS 2000000
#define LIVE_CROWD_SLACK_NS 20000000

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

penstock_gate_slot *gate_slot(penstock_process *process, gate_state *state, int grant) {
  penstock_region *region = &process->region;
  int slot = penstock_slot_own(region);
  return slot < 0 ? &state->spare[grant] : &region->usage->slots[slot].gate[grant];
}

/* Of one process: its estimate, or the time for which its oldest work has been running if that is
 * more. `share`: how many are on the device, as far as known. */
static uint64_t slot_ns(const penstock_gate_slot *slot, uint64_t now_ns, uint64_t share) {
  uint64_t estimate = load(&slot->estimate_ns), since = load(&slot->busy_since_ns);
  if (__builtin_expect(!since || now_ns <= since, 1)) return estimate;
  uint64_t slack = share > 1 ? LIVE_CROWD_SLACK_NS : LIVE_SLACK_NS;
  uint64_t ran = (now_ns - since) / share;
  return ran > estimate + slack ? ran - slack : estimate;
}

/* Slots are few, and a stale sum would let each of them overshoot by a burst. */
uint64_t gate_others_ns(penstock_process *process, gate_state *state, int grant, uint64_t now_ns,
                        uint64_t *settled) {
  const penstock_usage_page *usage = process->region.usage;
  const penstock_gate_slot *own = gate_slot(process, state, grant);
  uint64_t high = load(&usage->slots_high), ns = 0, count = 0, share = 1;
  if (high > PENSTOCK_MAX_SLOTS) high = PENSTOCK_MAX_SLOTS;
  share += gate_neighbours(process, grant);
  for (uint64_t i = 0; i < high; i++) {
    const penstock_gate_slot *slot = &usage->slots[i].gate[grant];
    if (slot == own) {
      share += load(&slot->estimate_ns) != 0;
      continue;
    }
    uint64_t one = slot_ns(slot, now_ns, share);
    share += one != 0;
    ns += one;
    count += load(&slot->done);
  }
  if (settled) *settled = count;
  return ns;
}

uint32_t gate_busy_processes(penstock_process *process, gate_state *state, int grant) {
  const penstock_usage_page *usage = process->region.usage;
  const penstock_gate_slot *own = gate_slot(process, state, grant);
  uint64_t high = load(&usage->slots_high);
  uint32_t count = 1;
  for (uint64_t i = 0; i < high && i < PENSTOCK_MAX_SLOTS; i++) {
    const penstock_gate_slot *slot = &usage->slots[i].gate[grant];
    count += slot != own && load(&slot->estimate_ns) != 0;
  }
  return count;
}

/* Streams side by side: at least as long as the one that is busy longest, by experience. */
uint64_t gate_in_flight_ns(penstock_process *process, gate_state *state, int grant,
                           uint64_t now_ns) {
  uint64_t others = gate_others_ns(process, state, grant, now_ns, NULL);
  uint64_t share = 1 + gate_neighbours(process, grant) + (others != 0);
  uint64_t own = slot_ns(gate_slot(process, state, grant), now_ns, share);
  uint64_t drained = load(&state->drained_ns[grant]);
  uint64_t left = drained > now_ns ? (drained - now_ns) / share : 0;
  return others + (own > left ? own : left);
}

uint64_t gate_estimates_ns(penstock_process *process, gate_state *state, int grant) {
  return load(&gate_slot(process, state, grant)->estimate_ns) +
         gate_others_ns(process, state, grant, 0, NULL);
}
