/* Charging and learning. Intervals are added to the ring of busy time, samples to the learned
 * costs. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"

const penstock_cost *gate_measured(const gate_part *part) {
  static const penstock_cost nothing;
  bool known = !gate_kind_is_gone(part->kind, part->generation) &&
               !__atomic_load_n(&part->kind->estimated, __ATOMIC_RELAXED);
  return known ? &part->kind->cost : &nothing;
}

uint64_t gate_learned_ns(const gate_window *window) {
  uint64_t ns = window->rest_ns;
  for (uint32_t i = 0; i < window->part_count; i++) {
    const gate_part *part = &window->parts[i];
    uint64_t each_ns = penstock_cost_ns(&part->kind->cost, GATE_UNKNOWN_NS);
    /* The entry's cost belonged to another kind. */
    bool gone = gate_kind_is_gone(part->kind, part->generation);
    ns += gone ? part->cost_ns : part->launches * each_ns;
  }
  return ns;
}

/* Returns the sum of the mean deviations of the window's launches from their learned costs. */
static uint64_t spread_ns(const gate_window *window) {
  uint64_t ns = 0;
  for (uint32_t i = 0; i < window->part_count; i++) {
    const gate_part *part = &window->parts[i];
    ns += part->launches * __atomic_load_n(&gate_measured(part)->spread_ns, __ATOMIC_RELAXED);
  }
  return ns;
}

bool gate_is_even(const gate_window *window) {
  return spread_ns(window) < gate_learned_ns(window) / 16;
}

uint64_t gate_latest_ns(const gate_window *window, uint64_t begin_ns) {
  uint64_t longest = window->rest_ns;
  for (uint32_t i = 0; i < window->part_count; i++) {
    const gate_part *part = &window->parts[i];
    longest += part->launches * __atomic_load_n(&gate_measured(part)->longest_ns, __ATOMIC_RELAXED);
  }
  return begin_ns + longest + longest / 8 + GATE_LONGEST_WAKE_NS;
}

bool gate_may_be_much_longer(const gate_window *window) {
  enum { UNEVEN = 4, UNEVEN_NS = 1000000 };
  uint64_t cost_ns = gate_learned_ns(window);
  return gate_latest_ns(window, 0) >= UNEVEN * cost_ns + UNEVEN_NS;
}

/* Divides a measured time among the window's kinds, in proportion to their learned costs. */
void gate_learn(gate_state *state, const gate_window *window, uint64_t time_ns, bool disturbed,
                uint64_t now_ns) {
  if (window->rest_ns || !window->part_count) return;
  double expected = (double)gate_learned_ns(window);
  uint32_t arrivals = __atomic_load_n(&state->arrivals, __ATOMIC_RELAXED);
  penstock_lock_acquire(&state->kinds_lock);
  for (uint32_t i = 0; i < window->part_count; i++) {
    const gate_part *part = &window->parts[i];
    gate_kind *kind = part->kind;
    if (gate_kind_is_gone(kind, part->generation) || !part->launches) continue;
    double share =
        window->part_count == 1
            ? 1
            : part->launches * (double)penstock_cost_ns(&kind->cost, GATE_UNKNOWN_NS) / expected;
    uint64_t part_ns = (uint64_t)((double)time_ns * share);
    if (kind->arrivals != arrivals) penstock_cost_doubt(&kind->cost);
    kind->arrivals = arrivals;
    if (part->version == kind->version) {
      penstock_cost_learn(&kind->cost, part_ns, part->launches, disturbed, now_ns);
      __atomic_store_n(&kind->changed, false, __ATOMIC_RELAXED);
      __atomic_store_n(&kind->doubted, false, __ATOMIC_RELAXED);
      gate_kind_learned(kind);
    } else if (kind->changed) { /* the cost before the change is the best estimate */
      __atomic_store_n(&kind->cost.mean_ns, part_ns / part->launches + 1, __ATOMIC_RELAXED);
    }
    uint64_t mean = penstock_cost_ns(&kind->cost, 0);
    uint64_t typical = state->typical_ns ? (7 * state->typical_ns + mean) / 8 : mean;
    __atomic_store_n(&state->typical_ns, typical, __ATOMIC_RELAXED);
  }
  penstock_lock_release(&state->kinds_lock);
}

void gate_doubt_first(gate_state *state, const gate_window *window) {
  penstock_lock_acquire(&state->kinds_lock);
  for (uint32_t i = 0; i < window->part_count; i++) {
    const gate_part *part = &window->parts[i];
    gate_kind *kind = part->kind;
    bool first = kind->cost.launches <= part->launches;
    if (!first || gate_kind_is_gone(kind, part->generation)) continue;
    penstock_cost_forget(&kind->cost);
    __atomic_store_n(&kind->doubted, true, __ATOMIC_RELAXED);
  }
  penstock_lock_release(&state->kinds_lock);
}

/* Learns which part of the learned cost was new busy time. Admission scales estimates by that part,
 * because work that overlaps on the device uses its time only once. */
static void note_overlap(gate_state *state, uint64_t charged_ns, uint64_t cost_ns) {
  enum { LEAST = GATE_FULL_SCALE / 128, MOST = GATE_FULL_SCALE };
  const double kept = 63.0 / 64.0;
  penstock_lock_acquire(&state->lock);
  state->charged_ns = state->charged_ns * kept + (double)charged_ns;
  state->cost_ns = state->cost_ns * kept + (double)cost_ns;
  double scale = state->cost_ns > 0 ? state->charged_ns / state->cost_ns * GATE_FULL_SCALE : MOST;
  uint32_t overlap = scale < LEAST ? LEAST : scale > MOST ? MOST : (uint32_t)scale;
  __atomic_store_n(&state->overlap, overlap, __ATOMIC_RELAXED);
  penstock_lock_release(&state->lock);
}

void gate_charge_fresh(gate_state *state, penstock_process *process, int grant, uint64_t ns,
                       uint64_t cost_ns) {
  penstock_gate_charge(gate_device(process, grant), gate_permille(process, grant), ns);
  note_overlap(state, ns, cost_ns);
}

void gate_charge(gate_state *state, gate_stream *stream, uint64_t begin_ns, uint64_t end_ns,
                 uint64_t cost_ns) {
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  if (!process || grant < 0) return;
  uint64_t fresh = penstock_gate_mark(gate_device(process, grant), begin_ns, end_ns, UINT64_MAX);
  gate_charge_fresh(state, process, grant, fresh, cost_ns);
}

void gate_charge_somewhere(gate_state *state, const gate_stream *stream, uint64_t ns) {
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  if (!process || grant < 0) return;
  uint64_t overlap = __atomic_load_n(&state->overlap, __ATOMIC_RELAXED);
  penstock_gate_charge(gate_device(process, grant), gate_permille(process, grant),
                       ns * overlap / GATE_FULL_SCALE);
}

/* Returns the part of an interval that no other process's work can explain. This part is charged
 * whatever the learned cost. An example is a kernel that runs for seconds. */
static uint64_t unexplained_ns(uint64_t length_ns, uint64_t cost_ns, uint64_t others_ns,
                               uint64_t tenants) {
  enum { SLICES_NS = 30000000 };
  uint64_t explained = tenants * (2 * (cost_ns + others_ns) + SLICES_NS);
  return length_ns > explained ? length_ns / tenants : 0;
}

/* Returns the smallest part of the time covered by the tenant's work that must be charged, in
 * thousandths.
 *
 * If only processes of this tenant are on the device, the rest of the time is context switches: a
 * small part, which is larger if launches are waited for, and large if each launch is waited for.
 * In the last case the undisturbed samples must show that the window's kinds vary little, because
 * otherwise the learned cost says nothing. With other tenants on the device, the part is at least
 * what alternating processes would get, unless most samples show that the device was otherwise
 * idle. */
static uint32_t least_permille(penstock_process *process, gate_state *state, int grant,
                               const gate_window *window) {
  enum { EVEN = 250, WAITED = 940, QUEUED = 980, CLUSTERED = 100, ALTERNATING = 800 };
  uint32_t neighbours = gate_neighbours_of(process, grant, window);
  uint64_t now_ns = gate_tick_ns();
  bool even = window->part_count > 0, clustered = even;
  for (uint32_t i = 0; i < window->part_count; i++) {
    const penstock_cost *cost = gate_measured(&window->parts[i]);
    even = even && penstock_cost_is_even(cost, now_ns);
    clustered = clustered && penstock_cost_is_clustered(cost);
  }
  if (!neighbours) return even ? EVEN : window->waited ? WAITED : QUEUED;
  if (clustered) return CLUSTERED;
  uint32_t own = gate_busy_processes(process, state, grant);
  return ALTERNATING * own / (own + neighbours);
}

/* Charges an interval of unknown ownership: the device alternates between processes, so it is
 * unknown which part of the interval is this tenant's. The tenant is charged the learned cost,
 * within what the union of the intervals allows. */
void gate_charge_contended(gate_state *state, gate_stream *stream, const gate_window *window,
                           uint64_t begin_ns, uint64_t end_ns, uint64_t cost_ns) {
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  if (!process || grant < 0) return;
  penstock_gate_device *gate = gate_device(process, grant);
  uint32_t permille = gate_permille(process, grant);
  if (end_ns <= begin_ns) { /* there was no wait and no measurement */
    penstock_gate_mark(gate, begin_ns, begin_ns + cost_ns, UINT64_MAX);
    penstock_gate_charge(gate, permille, cost_ns);
    return;
  }
  uint64_t others = gate_others_ns(process, state, grant, 0);
  uint64_t long_ns = unexplained_ns(end_ns - begin_ns, cost_ns, others,
                                    1 + gate_neighbours_of(process, grant, window));
  uint64_t covered = penstock_gate_mark(gate, begin_ns, end_ns, UINT64_MAX);
  penstock_gate_charge_within(gate, permille, covered, cost_ns > long_ns ? cost_ns : long_ns,
                              least_permille(process, state, grant, window));
}

/* Returns when a window would end if its launches were the longest of their kinds, or 0 if that is
 * much longer than their learned costs. */
static uint64_t longest_end_ns(const gate_stream *stream, const gate_window *window) {
  uint64_t last_ns = stream->last_end_ns, opened_ns = window->opened_ns;
  uint64_t begin_ns = last_ns > opened_ns ? last_ns : opened_ns;
  uint64_t latest_ns = gate_latest_ns(window, begin_ns);
  return latest_ns < begin_ns + 2 * gate_learned_ns(window) ? latest_ns : 0;
}

static void note_contention(gate_state *state, int grant, bool contended) {
  bool was = __atomic_exchange_n(&state->contended[grant], contended, __ATOMIC_RELAXED);
  if (contended && !was) __atomic_fetch_add(&state->arrivals, 1, __ATOMIC_RELAXED);
}

/* Another process that was active in the last second still counts, because the device may have to
 * switch from its context first, and the window then includes that switch. */
bool gate_is_contended(gate_state *state, const gate_stream *stream, const gate_window *window) {
  enum { LATELY_NS = 1000000000 };
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  uint64_t now_ns = gate_tick_ns();
  if (!process) return true;
  uint64_t others = gate_others_ns(process, state, grant, now_ns);
  bool alone = gate_neighbours_of(process, grant, window) == 0;
  note_contention(state, grant, !alone);
  if (window->calibrating) {
    bool still = gate_calibration_settled(process, state, grant, gate_now_ns(),
                                          longest_end_ns(stream, window));
    if (still && alone && !others && !window->contended) return false;
  }
  if (others || window->contended || gate_others_settled(process, grant)) {
    __atomic_store_n(&state->others_seen_ns[grant], now_ns, __ATOMIC_RELAXED);
    return true;
  }
  uint64_t seen_ns = __atomic_load_n(&state->others_seen_ns[grant], __ATOMIC_RELAXED);
  return !alone || (seen_ns && now_ns < seen_ns + LATELY_NS);
}
