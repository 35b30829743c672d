/* Brackets: opened, closed, settled. The caller holds the stream's `working` flag, and no lock. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"

/* What a launch call takes at most before its kernel is on the device. One that takes longer was
 * held up, as likely behind that point as before it: no sample to learn from. */
#define LONGEST_LEAD_NS 6000

bool gate_stream_claim(gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  bool mine = !stream->working && !stream->dead;
  if (mine) stream->working = true;
  penstock_lock_release(&stream->lock);
  return mine;
}

void gate_stream_release(gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  stream->working = false;
  penstock_lock_release(&stream->lock);
}

static void give_up_estimate(gate_state *state, const gate_stream *stream, uint64_t ns,
                             uint32_t launches, uint32_t brackets) {
  penstock_process *process = penstock_process_get();
  if (!process) return;
  penstock_gate_slot *slot = gate_slot(process, state, stream->context->grant);
  uint64_t have = __atomic_load_n(&slot->estimate_ns, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(&slot->estimate_ns, &have, have > ns ? have - ns : 0, true,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  __atomic_fetch_add(&slot->done, brackets, __ATOMIC_RELAXED);
  __atomic_fetch_add(&gate_device(process, stream->context->grant)->launches, launches,
                     __ATOMIC_RELAXED);
}

void gate_bracket_open(gate_state *state, gate_stream *stream, bool timed, uint64_t now_ns) {
  gate_bracket *bracket = gate_bracket_get(state);
  if (!bracket) return;
  gate_bracket *before = stream->newest;
  bool interrupted = __atomic_exchange_n(&stream->interrupted, false, __ATOMIC_RELAXED);
  bracket->opened_ns = now_ns;
  penstock_process *process = penstock_process_get();
  if (process) {
    int grant = stream->context->grant;
    bracket->crowd = gate_others_ns(process, state, grant, NULL) != 0;
    __atomic_fetch_add(&gate_slot(process, state, grant)->submitted, 1, __ATOMIC_RELAXED);
  }
  if (timed && !interrupted && before && before->end && !gate_is_through(stream, before)) {
    __atomic_fetch_add(&before->end->references, 1, __ATOMIC_RELAXED);
    bracket->start = before->end;
    bracket->chained = true;
  } else if (timed) {
    bracket->start = gate_marker_record(stream);
    gate_called(state, 1);
  }
  penstock_lock_acquire(&stream->lock);
  bracket->number = ++stream->number;
  bracket->estimate_ns = bracket->rest_ns = stream->stray_ns;
  bracket->launches = stream->stray_launches;
  stream->stray_ns = 0;
  stream->stray_launches = 0;
  stream->open = bracket;
  penstock_lock_release(&stream->lock);
}

/* What the bracket's launches cost by experience. */
static uint64_t learned_ns(const gate_bracket *bracket) {
  uint64_t ns = bracket->rest_ns;
  for (uint32_t i = 0; i < bracket->part_count; i++) {
    const gate_part *part = &bracket->parts[i];
    ns += part->launches * penstock_cost_ns(&part->kind->cost, GATE_UNKNOWN_NS);
  }
  return ns;
}

/* Shares a measured time out among the bracket's kinds, in proportion to what is known of them. */
static void learn(gate_state *state, const gate_bracket *bracket, uint64_t time_ns, bool disturbed,
                  uint64_t now_ns) {
  if (bracket->rest_ns || !bracket->part_count) return;
  double expected = (double)learned_ns(bracket);
  penstock_lock_acquire(&state->lock);
  for (uint32_t i = 0; i < bracket->part_count; i++) {
    const gate_part *part = &bracket->parts[i];
    if (part->generation != part->kind->generation || !part->launches) continue;
    double share = bracket->part_count == 1
                       ? 1
                       : part->launches *
                             (double)penstock_cost_ns(&part->kind->cost, GATE_UNKNOWN_NS) /
                             expected;
    penstock_cost_learn(&part->kind->cost, (uint64_t)((double)time_ns * share), part->launches,
                        disturbed, now_ns);
    uint64_t mean = penstock_cost_ns(&part->kind->cost, 0);
    state->typical_ns = state->typical_ns ? (7 * state->typical_ns + mean) / 8 : mean;
  }
  penstock_lock_release(&state->lock);
}

/* Charges what of [begin, end) is not charged yet, at most `most_ns`.
 *
 * In a crowd the device goes round between processes: where inside an interval the own part lies
 * nobody can tell, only that all that is in flight will have had its time by `end` and that much
 * later. So charges are packed there; what limits their sum is the wall clock alone. */
static void charge(gate_state *state, gate_stream *stream, uint64_t begin_ns, uint64_t end_ns,
                   uint64_t most_ns, bool crowd) {
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  if (!process || grant < 0) return;
  penstock_gate_device *gate = gate_device(process, grant);
  bool limited = crowd || most_ns < end_ns - begin_ns;
  if (crowd) end_ns += most_ns + gate_in_flight_ns(process, state, grant);
  uint64_t most = limited ? most_ns + stream->carry_ns : UINT64_MAX;
  uint64_t fresh = penstock_gate_mark(gate, begin_ns, end_ns, most);
  if (limited) stream->carry_ns = most % PENSTOCK_RING_BIT_NS;
  penstock_gate_charge(gate, gate_permille(process, grant), fresh);
}

/* Were others on the device during the bracket: another tenant, or a process of this one? One that
 * was there in the last second may be: its context may still be the one that the device must leave
 * first, which the bracket then measures as well. */
static bool in_crowd(gate_state *state, const gate_stream *stream, const gate_bracket *bracket) {
  enum { LATELY_NS = 1000000000 };
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  uint64_t settled = 0, now_ns = gate_tick_ns();
  if (!process || gate_others_ns(process, state, grant, &settled) || bracket->crowd ||
      settled != __atomic_load_n(&state->others_settled[grant], __ATOMIC_RELAXED)) {
    __atomic_store_n(&state->others_settled[grant], settled, __ATOMIC_RELAXED);
    __atomic_store_n(&state->others_seen_ns[grant], now_ns, __ATOMIC_RELAXED);
    return true;
  }
  uint64_t seen_ns = __atomic_load_n(&state->others_seen_ns[grant], __ATOMIC_RELAXED);
  return gate_neighbours(process, grant) || (seen_ns && now_ns < seen_ns + LATELY_NS);
}

/* A bracket without both ends: what it cost by experience, within the time that it had by the same
 * experience. Not until now: the stream may have been idle since, and others busy. */
static void settle_learned(gate_state *state, gate_stream *stream, gate_bracket *bracket) {
  uint64_t cost = learned_ns(bracket);
  uint64_t end = bracket->opened_ns + cost + PENSTOCK_RING_BIT_NS;
  charge(state, stream, bracket->opened_ns, stream->drained_ns > end ? stream->drained_ns : end,
         cost, in_crowd(state, stream, bracket));
}

/* Device time of the bracket's start on the host's clock. The base event's own time is only known
 * from below: nothing happens on the device before it was submitted. So the estimate is raised by
 * whatever starts too early, and let down a little with every renewal, since clocks drift. */
static uint64_t place(gate_stream *stream, gate_bracket *bracket) {
  enum { RENEW_NS = 1000000000, STALE_NS = 2000000000, DRIFT_NS = 20000 };
  gate_context *context = stream->context;
  penstock_lock_acquire(&context->lock);
  gate_marker *base = context->base;
  if (base) __atomic_fetch_add(&base->references, 1, __ATOMIC_RELAXED);
  penstock_lock_release(&context->lock);

  uint64_t since = stream->last_end_ns;
  bool known = base && bracket->chained && stream->last_base == base;
  if (base && !known) known = gate_elapsed_ns(base, bracket->start, &since);
  known = known && since < STALE_NS;

  gate_marker *retired = NULL;
  penstock_lock_acquire(&context->lock);
  if (context->base == base && (!known || (since > RENEW_NS && !bracket->chained))) {
    context->base_ns = known ? context->base_ns + since - DRIFT_NS : bracket->opened_ns;
    context->base = bracket->start;
    __atomic_fetch_add(&bracket->start->references, 1, __ATOMIC_RELAXED);
    retired = base;
    since = 0;
  } else if (!known || context->base != base) { /* another thread has renewed it meanwhile */
    since = bracket->opened_ns > context->base_ns ? bracket->opened_ns - context->base_ns : 0;
  }
  if (!bracket->chained && context->base_ns + since < bracket->opened_ns) {
    context->base_ns = bracket->opened_ns - since;
  }
  stream->last_base = context->base;
  stream->last_end_ns = since;
  uint64_t begin_ns = context->base_ns + since;
  penstock_lock_release(&context->lock);
  if (base) gate_marker_put(context, base);
  if (retired) gate_marker_put(context, retired);
  return begin_ns;
}

static void settle_timed(gate_state *state, gate_stream *stream, gate_bracket *bracket,
                         uint64_t now_ns) {
  uint64_t length;
  if (!gate_elapsed_ns(bracket->start, bracket->end, &length)) {
    settle_learned(state, stream, bracket);
    return;
  }
  gate_called(state, bracket->chained ? 3 : 4);
  uint64_t begin = place(stream, bracket);
  stream->last_end_ns += length;
  uint64_t lead = bracket->lead_ns;
  bool held_up = lead > LONGEST_LEAD_NS;
  if (held_up) lead = LONGEST_LEAD_NS;
  if (lead > length / 2) lead = length / 2;
  bool crowd = in_crowd(state, stream, bracket);
  bool known = bracket->part_count && penstock_cost_ns(&bracket->parts[0].kind->cost, 0);
  if (!(held_up && known)) learn(state, bracket, length - lead, crowd, now_ns);
  uint64_t most = crowd ? learned_ns(bracket) : length;
  charge(state, stream, begin + lead, begin + length, most < length - lead ? most : length - lead,
         crowd);
}

/* Has the stream run dry behind the bracket, by experience? An end that is recorded now would
 * measure the idle time as well. */
static bool is_past(const gate_stream *stream, const gate_bracket *bracket) {
  return !stream->newest &&
         gate_now_ns() > stream->drained_ns + GATE_DRY_SLACK_NS + bracket->estimate_ns / 8;
}

void gate_bracket_close(gate_state *state, gate_stream *stream, bool timed) {
  gate_bracket *bracket = stream->open;
  if (!bracket) return;
  if (timed && bracket->start && gate_may_mark(state, stream) && !is_past(stream, bracket)) {
    bracket->end = gate_marker_record(stream);
  }
  if (bracket->end) {
    gate_word_write(stream, bracket);
    gate_called(state, 2);
  }
  penstock_lock_acquire(&stream->lock);
  stream->open = NULL;
  if (bracket->end) {
    if (stream->newest) {
      stream->newest->next = bracket;
    } else {
      stream->oldest = bracket;
    }
    stream->newest = bracket;
  }
  penstock_lock_release(&stream->lock);
  if (bracket->end) return;
  settle_learned(state, stream, bracket);
  give_up_estimate(state, stream, bracket->estimate_ns, bracket->launches, 1);
  if (bracket->start) gate_marker_put(stream->context, bracket->start);
  gate_bracket_put(state, bracket);
}

void gate_bracket_expire(gate_state *state, gate_stream *stream) {
  if (stream->open && is_past(stream, stream->open)) gate_bracket_close(state, stream, false);
}

void gate_bracket_settle(gate_state *state, gate_stream *stream, uint64_t now_ns) {
  for (;;) {
    gate_bracket *bracket = stream->oldest;
    if (!bracket || !gate_is_through(stream, bracket)) return;
    penstock_lock_acquire(&stream->lock);
    stream->oldest = bracket->next;
    if (!stream->oldest) stream->newest = NULL;
    penstock_lock_release(&stream->lock);
    CUstreamCaptureMode mode = gate_relax();
    settle_timed(state, stream, bracket, now_ns);
    gate_restore(mode);
    give_up_estimate(state, stream, bracket->estimate_ns, bracket->launches, 1);
    gate_marker_put(stream->context, bracket->start);
    gate_marker_put(stream->context, bracket->end);
    gate_bracket_put(state, bracket);
  }
}

static void abandon(gate_state *state, gate_stream *stream, gate_bracket *bracket) {
  settle_learned(state, stream, bracket);
  give_up_estimate(state, stream, bracket->estimate_ns, bracket->launches, 1);
  gate_marker_put(stream->context, bracket->start);
  gate_marker_put(stream->context, bracket->end);
  gate_bracket_put(state, bracket);
}

void gate_stream_abandon(gate_state *state, gate_stream *stream) {
  if (stream->open) abandon(state, stream, stream->open);
  for (gate_bracket *bracket; (bracket = stream->oldest);) {
    stream->oldest = bracket->next;
    abandon(state, stream, bracket);
  }
  give_up_estimate(state, stream, stream->stray_ns, stream->stray_launches, 0);
  stream->open = stream->newest = NULL;
  stream->stray_ns = 0;
}
