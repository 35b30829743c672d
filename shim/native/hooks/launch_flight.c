/* Device time in flight, that is, admitted and not charged yet. It is known by estimate or by the
 * time for which the work has been running. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "mechanism/slots.h"
#include "mechanism/working.h"

/* Work that runs longer than its estimate by more than this counts as the time that it has run so
 * far. A smaller excess is normal, because windows are settled a little after their end, and
 * because under contention they also contain time slices of other processes. */
#define LIVE_SLACK_NS 2000000
#define LIVE_CONTENDED_SLACK_NS 20000000

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

penstock_gate_slot *gate_slot(penstock_process *process, gate_state *state, int grant) {
  penstock_region *region = &process->region;
  int slot = penstock_slot_own(region);
  return slot < 0 ? &state->spare[grant] : &region->usage->slots[slot].gate[grant];
}

/* Returns the time in flight of one process. This is its estimate or, if longer, the time for which
 * its oldest work has been running, divided by `share`, the known number of processes on the
 * device. */
static uint64_t slot_ns(const penstock_gate_slot *slot, uint64_t now_ns, uint64_t share) {
  uint64_t estimate = load(&slot->estimate_ns), since = load(&slot->busy_since_ns);
  if (__builtin_expect(!since || now_ns <= since, 1)) return estimate;
  uint64_t slack = share > 1 ? LIVE_CONTENDED_SLACK_NS : LIVE_SLACK_NS;
  uint64_t ran = (now_ns - since) / share;
  return ran > estimate + slack ? ran - slack : estimate;
}

/* The sum is computed each time, because few processes have work, and a stale sum would let each of
 * them overshoot by a burst. */
uint64_t gate_other_slots_ns(penstock_process *process, int grant, const penstock_gate_slot *own,
                             uint64_t now_ns) {
  penstock_usage_page *usage = process->region.usage;
  const penstock_gate_device *gate = gate_device(process, grant);
  uint64_t ns = 0, share = 0;
  if (now_ns) penstock_working_scan(usage, (unsigned)grant, now_ns);
  for (penstock_working at = penstock_working_begin(usage, (unsigned)grant);
       penstock_working_next(gate, &at);) {
    const penstock_gate_slot *slot = &usage->slots[at.slot].gate[grant];
    if (slot == own) continue;
    if (!share) share = 1 + gate_neighbours(process, grant) + (load(&own->estimate_ns) != 0);
    uint64_t one = slot_ns(slot, now_ns, share);
    share += one != 0;
    ns += one;
  }
  return ns;
}

uint64_t gate_others_ns(penstock_process *process, gate_state *state, int grant, uint64_t now_ns) {
  return gate_other_slots_ns(process, grant, gate_slot(process, state, grant), now_ns);
}

void gate_admitted(penstock_process *process, penstock_gate_slot *slot, int grant, uint64_t ns) {
  __atomic_fetch_add(&slot->estimate_ns, ns, __ATOMIC_SEQ_CST);
  int number = penstock_slot_owned(&process->region);
  if (number >= 0) penstock_working_note(gate_device(process, grant), (uint32_t)number);
}

/* Returns the slot's number, or for a process without a slot a number that no slot has. */
static uint32_t own_number(const penstock_process *process) {
  int slot = penstock_slot_owned(&process->region);
  return slot < 0 ? PENSTOCK_MAX_SLOTS + 1 : (uint32_t)slot + 1;
}

bool gate_others_settled(const penstock_process *process, int grant) {
  uint32_t last = __atomic_load_n(&gate_device(process, grant)->settled_by, __ATOMIC_RELAXED);
  return last && last != own_number(process);
}

void gate_settled(const penstock_process *process, int grant) {
  uint32_t *last = &gate_device(process, grant)->settled_by, own = own_number(process);
  if (__atomic_load_n(last, __ATOMIC_RELAXED) != own) {
    __atomic_store_n(last, own, __ATOMIC_RELAXED);
  }
}

uint32_t gate_busy_processes(penstock_process *process, gate_state *state, int grant) {
  const penstock_usage_page *usage = process->region.usage;
  const penstock_gate_device *gate = gate_device(process, grant);
  const penstock_gate_slot *own = gate_slot(process, state, grant);
  uint32_t count = 1;
  for (penstock_working at = penstock_working_begin(usage, (unsigned)grant);
       penstock_working_next(gate, &at);) {
    const penstock_gate_slot *slot = &usage->slots[at.slot].gate[grant];
    count += slot != own && load(&slot->estimate_ns) != 0;
  }
  return count;
}

/* Because streams run in parallel, the time in flight is at least that of the stream that is busy
 * longest according to learned costs. */
uint64_t gate_in_flight_ns(penstock_process *process, gate_state *state, int grant,
                           uint64_t now_ns) {
  const penstock_gate_slot *slot = gate_slot(process, state, grant);
  uint64_t others = gate_other_slots_ns(process, grant, slot, now_ns);
  uint64_t share = 1 + gate_neighbours(process, grant) + (others != 0);
  uint64_t own = slot_ns(slot, now_ns, share);
  uint64_t drained = load(&state->drained_ns[grant]);
  uint64_t left = drained > now_ns ? (drained - now_ns) / share : 0;
  return others + (own > left ? own : left);
}

uint64_t gate_estimates_ns(penstock_process *process, gate_state *state, int grant) {
  return load(&gate_slot(process, state, grant)->estimate_ns) +
         gate_others_ns(process, state, grant, 0);
}
