/* What is charged and learned: intervals go into the ring of busy time, samples into the costs. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"

const penstock_cost *gate_measured(const gate_part *part) {
  static const penstock_cost nothing;
  bool known = !gate_kind_is_gone(part->kind, part->generation) &&
               !__atomic_load_n(&part->kind->estimated, __ATOMIC_RELAXED);
  return known ? &part->kind->cost : &nothing;
}

uint64_t gate_learned_ns(const gate_bracket *bracket) {
  uint64_t ns = bracket->rest_ns;
  for (uint32_t i = 0; i < bracket->part_count; i++) {
    const gate_part *part = &bracket->parts[i];
    uint64_t each_ns = penstock_cost_ns(&part->kind->cost, GATE_UNKNOWN_NS);
    bool gone = gate_kind_is_gone(part->kind, part->generation); /* then that was another's */
    ns += gone ? part->cost_ns : part->launches * each_ns;
  }
  return ns;
}

/* The mean distance of its launches' costs from what they cost by experience. */
static uint64_t spread_ns(const gate_bracket *bracket) {
  uint64_t ns = 0;
  for (uint32_t i = 0; i < bracket->part_count; i++) {
    const gate_part *part = &bracket->parts[i];
    ns += part->launches * __atomic_load_n(&gate_measured(part)->spread_ns, __ATOMIC_RELAXED);
  }
  return ns;
}

bool gate_is_even(const gate_bracket *bracket) {
  return spread_ns(bracket) < gate_learned_ns(bracket) / 16;
}

uint64_t gate_latest_ns(const gate_bracket *bracket, uint64_t begin_ns) {
  uint64_t longest = bracket->rest_ns;
  for (uint32_t i = 0; i < bracket->part_count; i++) {
    const gate_part *part = &bracket->parts[i];
    longest += part->launches * __atomic_load_n(&gate_measured(part)->longest_ns, __ATOMIC_RELAXED);
  }
  return begin_ns + longest + longest / 8 + GATE_LONGEST_WAKE_NS;
}

bool gate_may_be_much_longer(const gate_bracket *bracket) {
  enum { UNEVEN = 4, UNEVEN_NS = 1000000 };
  uint64_t cost_ns = gate_learned_ns(bracket);
  return gate_latest_ns(bracket, 0) >= UNEVEN * cost_ns + UNEVEN_NS;
}

/* Shares a measured time out among the bracket's kinds, in proportion to what is known of them. */
void gate_learn(gate_state *state, const gate_bracket *bracket, uint64_t time_ns, bool disturbed,
                uint64_t now_ns) {
  if (bracket->rest_ns || !bracket->part_count) return;
  double expected = (double)gate_learned_ns(bracket);
  uint32_t arrivals = __atomic_load_n(&state->arrivals, __ATOMIC_RELAXED);
  penstock_lock_acquire(&state->kinds_lock);
  for (uint32_t i = 0; i < bracket->part_count; i++) {
    const gate_part *part = &bracket->parts[i];
    gate_kind *kind = part->kind;
    if (gate_kind_is_gone(kind, part->generation) || !part->launches) continue;
    double share =
        bracket->part_count == 1
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
    } else if (kind->changed) { /* what it was before it was changed is the best guess */
      __atomic_store_n(&kind->cost.mean_ns, part_ns / part->launches + 1, __ATOMIC_RELAXED);
    }
    uint64_t mean = penstock_cost_ns(&kind->cost, 0);
    uint64_t typical = state->typical_ns ? (7 * state->typical_ns + mean) / 8 : mean;
    __atomic_store_n(&state->typical_ns, typical, __ATOMIC_RELAXED);
  }
  penstock_lock_release(&state->kinds_lock);
}

void gate_doubt_first(gate_state *state, const gate_bracket *bracket) {
  penstock_lock_acquire(&state->kinds_lock);
  for (uint32_t i = 0; i < bracket->part_count; i++) {
    const gate_part *part = &bracket->parts[i];
    gate_kind *kind = part->kind;
    bool first = kind->cost.launches <= part->launches;
    if (!first || gate_kind_is_gone(kind, part->generation)) continue;
    penstock_cost_forget(&kind->cost);
    __atomic_store_n(&kind->doubted, true, __ATOMIC_RELAXED);
  }
  penstock_lock_release(&state->kinds_lock);
}

/* How much of the cost by experience turned out to be new busy time: admission counts with that,
 * for what overlaps on the device uses its time once. */
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

/* The part of an interval that nobody beside can explain: it is the own work's, whatever experience
 * says. A kernel that runs on for seconds is such a part. */
static uint64_t unexplained_ns(uint64_t length_ns, uint64_t cost_ns, uint64_t others_ns,
                               uint64_t tenants) {
  enum { SLICES_NS = 30000000 };
  uint64_t explained = tenants * (2 * (cost_ns + others_ns) + SLICES_NS);
  return length_ns > explained ? length_ns / tenants : 0;
}

/* How much of the time that the tenant's work covers it has used at least, in thousandths.
 *
 * Beside processes of its own the rest are switches between contexts: little, and more where
 * launches are waited for. Where each is, it is much; but then the undisturbed samples must say
 * that its kinds take alike, or experience is no guide. Beside other tenants it is at least the
 * part that going round by turns gives, unless most samples say that there was nobody on the device
 * then. */
static uint32_t least_permille(penstock_process *process, gate_state *state, int grant,
                               const gate_bracket *bracket) {
  enum { EVEN = 250, WAITED = 940, QUEUED = 980, CLUSTERED = 100, TURNS = 800 };
  uint32_t neighbours = gate_neighbours_of(process, grant, bracket);
  uint64_t now_ns = gate_tick_ns();
  bool even = bracket->part_count > 0, clustered = even;
  for (uint32_t i = 0; i < bracket->part_count; i++) {
    const penstock_cost *cost = gate_measured(&bracket->parts[i]);
    even = even && penstock_cost_is_even(cost, now_ns);
    clustered = clustered && penstock_cost_is_clustered(cost);
  }
  if (!neighbours) return even ? EVEN : bracket->waited ? WAITED : QUEUED;
  if (clustered) return CLUSTERED;
  uint32_t own = gate_busy_processes(process, state, grant);
  return TURNS * own / (own + neighbours);
}

/* The device goes round between processes: where inside an interval the own part lies nobody can
 * tell. So it is charged by experience, within what the union of the intervals allows. */
void gate_charge_in_crowd(gate_state *state, gate_stream *stream, const gate_bracket *bracket,
                          uint64_t begin_ns, uint64_t end_ns, uint64_t cost_ns) {
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  if (!process || grant < 0) return;
  penstock_gate_device *gate = gate_device(process, grant);
  uint32_t permille = gate_permille(process, grant);
  if (end_ns <= begin_ns) { /* nobody waited, nothing was measured */
    penstock_gate_mark(gate, begin_ns, begin_ns + cost_ns, UINT64_MAX);
    penstock_gate_charge(gate, permille, cost_ns);
    return;
  }
  uint64_t others = gate_others_ns(process, state, grant, 0);
  uint64_t long_ns = unexplained_ns(end_ns - begin_ns, cost_ns, others,
                                    1 + gate_neighbours_of(process, grant, bracket));
  uint64_t covered = penstock_gate_mark(gate, begin_ns, end_ns, UINT64_MAX);
  penstock_gate_charge_within(gate, permille, covered, cost_ns > long_ns ? cost_ns : long_ns,
                              least_permille(process, state, grant, bracket));
}

/* When a bracket would end if it were as long as its kinds get, where that is not far longer than
 * they mostly are; 0: it is. */
static uint64_t longest_end_ns(const gate_stream *stream, const gate_bracket *bracket) {
  uint64_t last_ns = stream->last_end_ns, opened_ns = bracket->opened_ns;
  uint64_t begin_ns = last_ns > opened_ns ? last_ns : opened_ns;
  uint64_t latest_ns = gate_latest_ns(bracket, begin_ns);
  return latest_ns < begin_ns + 2 * gate_learned_ns(bracket) ? latest_ns : 0;
}

static void note_company(gate_state *state, int grant, bool accompanied) {
  bool was = __atomic_exchange_n(&state->accompanied[grant], accompanied, __ATOMIC_RELAXED);
  if (accompanied && !was) __atomic_fetch_add(&state->arrivals, 1, __ATOMIC_RELAXED);
}

/* One that was there in the last second may still be there: its context may be the one that the
 * device must leave first, which the bracket then measures as well. */
bool gate_in_crowd(gate_state *state, const gate_stream *stream, const gate_bracket *bracket) {
  enum { LATELY_NS = 1000000000 };
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  uint64_t now_ns = gate_tick_ns();
  if (!process) return true;
  uint64_t others = gate_others_ns(process, state, grant, now_ns);
  bool alone = gate_neighbours_of(process, grant, bracket) == 0;
  note_company(state, grant, !alone);
  if (bracket->quiet) {
    bool still =
        gate_quiet_settled(process, state, grant, gate_now_ns(), longest_end_ns(stream, bracket));
    if (still && alone && !others && !bracket->crowd) return false;
  }
  if (others || bracket->crowd || gate_others_settled(process, grant)) {
    __atomic_store_n(&state->others_seen_ns[grant], now_ns, __ATOMIC_RELAXED);
    return true;
  }
  uint64_t seen_ns = __atomic_load_n(&state->others_seen_ns[grant], __ATOMIC_RELAXED);
  return !alone || (seen_ns && now_ns < seen_ns + LATELY_NS);
}
