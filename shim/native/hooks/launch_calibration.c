/* Calibration slices. For a few milliseconds one process of a tenant launches alone, to measure
 * costs undisturbed. Calibration slices are independent of the time slices between tenants
 * (launch_slice.c).
 *
 * Processes of one tenant that run at the same time also measure the switches between their
 * contexts, and a program that launches and waits never has the device for two launches in a row.
 * So after the gate has opened, the first process to launch may keep the others waiting for a few
 * launches. From its second launch on, its context is on the device and it measures only itself.
 * The others wait until the slice ends, never for work to complete. */
#include "hooks/launch_state.h"
#include "mechanism/slots.h"

#define LEAST_NS 1000000
#define MOST_NS 10000000
#define LAUNCHES 6 /* settled windows after which the slice ends early; the first one warms up */
#define PAUSE_NS 30000000
#define OWN_PAUSE_NS 120000000
/* A process's first slices come sooner, because until its launches are measured it is charged for
 * the switches as well. The same applies to a process that has had no slice for a long time. */
#define FIRST_TURNS 4
#define SOON_NS 8000000
#define FIRST_OWN_PAUSE_NS 20000000
#define LATELY_NS 1000000000

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

static uint64_t own_number(penstock_process *process) {
  int slot = penstock_slot_own(&process->region);
  return slot < 0 ? 0 : (uint64_t)slot + 1;
}

bool gate_calibration_forbids(penstock_process *process, gate_state *state, int grant,
                              uint64_t now_ns, uint64_t *wait_ns) {
  (void)state;
  penstock_gate_device *gate = gate_device(process, grant);
  uint64_t until = load(&gate->calibration_until_ns);
  if (__builtin_expect(now_ns >= until, 1)) return false;
  if (until > now_ns + MOST_NS || load(&gate->calibration_slot) == own_number(process))
    return false;
  *wait_ns = until - now_ns;
  return true;
}

void gate_calibration_begin(penstock_process *process, gate_state *state, int grant,
                            uint64_t now_ns) {
  uint64_t seen = load(&state->others_seen_ns[grant]);
  if (__builtin_expect(!seen, 1) || now_ns > seen + LATELY_NS)
    return; /* not contended, so nothing disturbs measurements */
  uint64_t next_ns = state->calibration_next_ns[grant];
  if (now_ns < next_ns || gate_estimates_ns(process, state, grant)) return;
  penstock_gate_device *gate = gate_device(process, grant);
  uint64_t until = load(&gate->calibration_until_ns), number = own_number(process);
  bool first = load(&state->calibrations[grant]) < FIRST_TURNS;
  bool soon = first || now_ns > next_ns + LATELY_NS;
  if (!number || now_ns < until + (soon ? SOON_NS : PAUSE_NS)) return;
  uint64_t length = 4 * __atomic_load_n(&state->typical_ns, __ATOMIC_RELAXED);
  if (length > MOST_NS) return; /* compared with such long kernels a switch is negligible */
  if (length < LEAST_NS) length = LEAST_NS;
  if (!__atomic_compare_exchange_n(&gate->calibration_until_ns, &until, now_ns + length, false,
                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    return;
  }
  __atomic_store_n(&gate->calibration_slot, number, __ATOMIC_RELAXED);
  state->calibration_next_ns[grant] = now_ns + (first ? FIRST_OWN_PAUSE_NS : OWN_PAUSE_NS);
  __atomic_fetch_add(&state->calibrations[grant], 1, __ATOMIC_RELAXED);
  __atomic_store_n(&state->calibration_settled[grant], 0, __ATOMIC_RELAXED);
}

bool gate_calibration_is_ours(penstock_process *process, int grant, uint64_t now_ns) {
  const penstock_gate_device *gate = gate_device(process, grant);
  return now_ns < load(&gate->calibration_until_ns) &&
         load(&gate->calibration_slot) == own_number(process);
}

bool gate_calibration_settled(penstock_process *process, gate_state *state, int grant,
                              uint64_t now_ns, uint64_t latest_ns) {
  penstock_gate_device *gate = gate_device(process, grant);
  uint64_t until = load(&gate->calibration_until_ns);
  if (now_ns >= until || load(&gate->calibration_slot) != own_number(process)) return false;
  uint32_t settled = __atomic_add_fetch(&state->calibration_settled[grant], 1, __ATOMIC_RELAXED);
  bool counts = settled > 1 && latest_ns <= until;
  if (settled < LAUNCHES) return counts;
  __atomic_compare_exchange_n(&gate->calibration_until_ns, &until, now_ns, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
  return counts;
}
