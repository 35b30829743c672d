/* Brackets settled: what their events say, or a wait, or experience; charged and learned. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "mechanism/starved.h"

/* An end that the device passed this soon after it was recorded was recorded on an idle stream: it
 * says when the host came round to it, not when the work ended. */
#define LOOSE_NS 2500
/* Placed on the host's clock an interval is exact to some microseconds: shorter ones teach nothing
 * unless they are samples. */
#define SHORT_NS 300000
/* A sample whose launch call was held up is uncertain by that much: it teaches nothing unless that
 * is at most one part in so many of it. Long launches of several tenants come one by one, after a
 * sleep each, so most of their calls are held up. */
#define HELD_UP_PART 256
/* An unseen end that may be so much later than by experience: the next ones are to be seen. */
#define UNCLEAR_NS 1000000
/* Less than that is not worth asking what the host kept a thread from. */
#define WORTH_A_LOOK_NS 1000000
/* A sample that seems shorter than the error of its begin is taken to be this long. */
#define SHORTEST_NS 500
/* From so many late ends more than others on they are no chance any more, and are learned from; and
 * how far they are counted. */
#define LATE_ENDS_EACH_TIME 32
#define LATE_ENDS_MOST 64
/* What a wait returned later than by any launch that was measured, up to so much, looks like a
 * hold-up of the host. */
#define LATE_NS 4000000

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* With some work always out, the oldest is looked for now and then. */
static void note_settled(gate_state *state, penstock_gate_slot *slot, int grant) {
  enum { COARSE_NS = 100000000 };
  uint64_t done = __atomic_load_n(&slot->done, __ATOMIC_RELAXED);
  if (done == __atomic_load_n(&slot->submitted, __ATOMIC_RELAXED)) {
    __atomic_store_n(&slot->unsettled_since_ns, 0, __ATOMIC_RELAXED);
  } else if (gate_tick_ns() >
             __atomic_load_n(&slot->unsettled_since_ns, __ATOMIC_RELAXED) + COARSE_NS) {
    __atomic_store_n(&slot->unsettled_since_ns, gate_oldest_ns(state, grant), __ATOMIC_RELAXED);
  }
}

void gate_give_up(gate_state *state, const gate_stream *stream, uint64_t ns, uint32_t launches,
                  uint32_t brackets) {
  penstock_process *process = penstock_process_get();
  if (!process) return;
  int grant = stream->context->grant;
  penstock_gate_slot *slot = gate_slot(process, state, grant);
  uint64_t have = __atomic_load_n(&slot->estimate_ns, __ATOMIC_RELAXED), left;
  do {
    left = have > ns ? have - ns : 0;
  } while (!__atomic_compare_exchange_n(&slot->estimate_ns, &have, left, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  if (!left) {
    __atomic_store_n(&state->drained_ns[grant], 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->busy_since_ns, 0, __ATOMIC_RELAXED);
  }
  __atomic_fetch_add(&slot->done, brackets, __ATOMIC_RELAXED);
  if (brackets) {
    note_settled(state, slot, grant);
    gate_settled(process, grant);
  }
  __atomic_fetch_add(&gate_device(process, grant)->launches, launches, __ATOMIC_RELAXED);
}

/* What is out began no earlier than what was in its way ended. */
static void note_begun(gate_state *state, int grant, uint64_t end_ns) {
  penstock_process *process = penstock_process_get();
  if (!process || grant < 0) return;
  penstock_gate_slot *slot = gate_slot(process, state, grant);
  uint64_t since_ns = __atomic_load_n(&slot->busy_since_ns, __ATOMIC_RELAXED);
  if (!since_ns || since_ns >= end_ns) return;
  __atomic_compare_exchange_n(&slot->busy_since_ns, &since_ns, end_ns, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
}

/* Its estimate is replaced by what was charged; the stream's further course follows from its end.
 */
static void finish(gate_state *state, gate_stream *stream, gate_bracket *bracket, uint64_t end_ns,
                   bool exact) {
  gate_overrun_outlasts(state, stream, bracket);
  gate_give_up(state, stream, bracket->estimate_ns, bracket->launches, 1);
  note_begun(state, stream->context->grant, end_ns);
  penstock_lock_acquire(&stream->lock);
  uint64_t left = stream->queued_ns > bracket->cost_ns ? stream->queued_ns - bracket->cost_ns : 0;
  stream->queued_ns = left;
  stream->queued -= earlier(stream->queued, bracket->launches);
  stream->last_end_ns = end_ns;
  stream->exact = exact;
  uint64_t drained = end_ns + left;
  if (exact || drained > stream->drained_ns) stream->drained_ns = drained;
  penstock_lock_release(&stream->lock);
  gate_marker_put(stream->context, bracket->start);
  gate_marker_put(stream->context, bracket->end);
  gate_bracket_put(state, bracket);
}

static uint64_t begin_ns(const gate_stream *stream, const gate_bracket *bracket) {
  return later(stream->last_end_ns, bracket->opened_ns + GATE_START_NS);
}

/* Whoever waits first while this thread settles moves it on. */
static uint64_t waited_since_ns(const gate_stream *stream) {
  return __atomic_load_n(&stream->waited_since_ns, __ATOMIC_RELAXED);
}

/* Were launches of all its kinds ever measured? */
static bool is_measured(const gate_bracket *bracket) {
  uint32_t i = 0;
  while (i < bracket->part_count && penstock_cost_ns(gate_measured(&bracket->parts[i]), 0)) i++;
  return i && i == bracket->part_count;
}

typedef struct interval {
  uint64_t begin_ns;
  uint64_t end_ns;
} interval;

/* Is it so of what is known of all its kinds? */
static bool of_all_kinds(const gate_bracket *bracket,
                         int (*is_so)(const penstock_cost *, uint64_t)) {
  uint64_t now_ns = gate_tick_ns();
  for (uint32_t i = 0; i < bracket->part_count; i++) {
    if (!is_so(gate_measured(&bracket->parts[i]), now_ns)) return false;
  }
  return !bracket->rest_ns;
}

/* By how much the driver and the host may be late with what is asked of them at `at_ns`, when the
 * work should have been over before. The longer before, the less likely did it end just then,
 * rather than that they were held up; least of all where launches take alike. */
static uint64_t long_over_ns(const gate_stream *stream, const gate_bracket *bracket,
                             uint64_t at_ns) {
  enum { PART_IF_EVEN = 16, PART = 128, MOST_NS = 1000000 };
  uint64_t due_ns = begin_ns(stream, bracket) + gate_learned_ns(bracket);
  if (at_ns <= due_ns) return 0;
  uint64_t part = of_all_kinds(bracket, penstock_cost_is_even) ? PART_IF_EVEN : PART;
  return earlier((at_ns - due_ns) / part, MOST_NS);
}

/* When the stream ran dry, as a wait for it tells that returned at `waited_ns`; 0: it does not, the
 * end was there before the wait. */
static uint64_t seen_end(const gate_state *state, const gate_stream *stream,
                         const gate_bracket *bracket, uint64_t waited_ns) {
  uint64_t wake = __atomic_load_n(&state->wake_ns, __ATOMIC_RELAXED);
  uint64_t since = waited_since_ns(stream);
  uint64_t slack = GATE_DRY_SLACK_NS + long_over_ns(stream, bracket, since);
  return waited_ns > since + wake + slack ? waited_ns - wake : 0;
}

/* Its process may have been stopped and gone on, which nothing tells: not the kernel's counts, and
 * where nobody measured the end, not the device. The first such wait in a while is taken for it,
 * and those that were under way with it. Kinds whose launches do not take alike may well have had a
 * long one; so may others, but then samples find the next ones. */
static bool looks_stopped(gate_state *state, const gate_stream *stream, const gate_bracket *bracket,
                          uint64_t waited_ns, uint64_t late_ns) {
  const uint64_t seldom_ns = 60000000000;
  if (late_ns < GATE_STALL_NS || !of_all_kinds(bracket, penstock_cost_is_even)) return false;
  uint64_t last_ns = __atomic_load_n(&state->forgiven_ns, __ATOMIC_RELAXED);
  if (last_ns && waited_since_ns(stream) <= last_ns) return true;
  if (last_ns && waited_ns < last_ns + seldom_ns) return false;
  __atomic_store_n(&state->forgiven_ns, waited_ns, __ATOMIC_RELAXED);
  return true;
}

/* When the wait for a bracket returned, or would have if the host had let this thread run: what is
 * beyond all launches of its kinds that were ever measured need not be the device's doing. */
static uint64_t without_hold_up(gate_state *state, const gate_stream *stream,
                                const gate_bracket *bracket, uint64_t begin, uint64_t waited_ns) {
  uint64_t latest = gate_latest_ns(bracket, begin);
  if (waited_ns <= latest + LATE_NS || !is_measured(bracket)) return waited_ns;
  if (bracket->lost || !seen_end(state, stream, bracket, waited_ns)) return waited_ns;
  uint64_t late = waited_ns - latest;
  late -= earlier(late, penstock_starved_ns(bracket->opened_ns));
  return looks_stopped(state, stream, bracket, waited_ns, late) ? latest : latest + late;
}

/* The interval of a bracket of which no end was measured, from the wait for its stream. It took
 * what it takes by experience, if launches of its kinds take alike, of late all of them; else, or
 * if nothing was ever measured of them, until the wait returned. What is longer than any that was
 * measured looks like a hold-up of the host, up to a few milliseconds: the samples, drawn without
 * regard to length, see to it that nothing is gained by that. */
static interval by_wait(const gate_state *state, const gate_stream *stream,
                        const gate_bracket *bracket, uint64_t begin, uint64_t waited_ns) {
  interval out = {.begin_ns = begin};
  uint64_t cost = gate_learned_ns(bracket), seen = seen_end(state, stream, bracket, waited_ns);
  uint64_t latest = gate_latest_ns(bracket, out.begin_ns);
  /* An end that the wait did not see may still lie a little behind its begin. */
  uint64_t unseen = later(waited_since_ns(stream), out.begin_ns) + GATE_DRY_SLACK_NS;
  uint64_t last = seen ? waited_ns : later(out.begin_ns, earlier(unseen, waited_ns));
  out.end_ns = earlier(out.begin_ns + cost, last);
  if (seen && (seen > latest + LATE_NS || !is_measured(bracket))) {
    out.end_ns = seen;
  } else if (bracket->lost || (gate_is_even(bracket) && !gate_may_be_much_longer(bracket))) {
    if (bracket->lost && seen) out.end_ns = seen;
    out.begin_ns = out.end_ns > cost ? out.end_ns - cost : 0;
  } else if (seen && seen < latest) {
    out.end_ns = seen;
  }
  return out;
}

/* Nobody saw its end, nor waited for it. If it may have been much longer, it may have been so up to
 * now: long launches behind which nobody looks must not pass as short ones. Nor must the time in
 * which this thread was not let go on launching pass as work. */
static uint64_t unseen_end(const gate_bracket *bracket, uint64_t begin_ns, uint64_t cost_ns) {
  uint64_t latest = gate_latest_ns(bracket, begin_ns), even = begin_ns + cost_ns;
  if (!gate_may_be_much_longer(bracket)) return even;
  uint64_t now_ns = gate_now_ns();
  if (now_ns > even + WORTH_A_LOOK_NS) now_ns -= penstock_starved_ns(bracket->opened_ns);
  return later(even, earlier(latest, now_ns));
}

/* Of streams on which no event may be recorded waits and questions alone tell what launches take.
 */
static void learn_asked(gate_state *state, const gate_stream *stream, const gate_bracket *bracket,
                        uint64_t length_ns) {
  bool crowd = gate_in_crowd(state, stream, bracket);
  if (!bracket->lost && length_ns) gate_learn(state, bracket, length_ns, crowd, gate_now_ns());
}

/* It may run long after it was opened. */
static bool is_behind_a_wait(const gate_bracket *bracket) {
  return bracket->lost || (bracket->start && !bracket->sample);
}

/* When a bracket began of which no end was measured. Behind a wait that may be long after it was
 * opened: then its start tells, which costs a call. */
static uint64_t presumed_begin_ns(gate_stream *stream, const gate_bracket *bracket,
                                  uint64_t waited_ns) {
  uint64_t begin = begin_ns(stream, bracket), started, wrong;
  if (!bracket->start || waited_ns <= gate_latest_ns(bracket, begin) + LATE_NS) return begin;
  CUstreamCaptureMode mode = gate_relax();
  bool known = gate_clock_place(stream, bracket->start, &started, &wrong);
  gate_restore(mode);
  gate_called(stream, 1);
  return known ? later(begin, started) : begin;
}

void gate_settle_presumed(gate_state *state, gate_stream *stream, gate_bracket *bracket,
                          uint64_t waited_ns) {
  uint64_t begin = presumed_begin_ns(stream, bracket, waited_ns), cost = gate_learned_ns(bracket);
  interval own = {.begin_ns = begin};
  bracket->waited = waited_ns != 0;
  uint64_t seen_ns = waited_ns ? seen_end(state, stream, bracket, waited_ns) : 0;
  if (seen_ns && gate_is_asked(state, stream)) {
    own.end_ns = later(begin, seen_ns); /* there is no better measure */
    learn_asked(state, stream, bracket, own.end_ns - begin);
  } else if (waited_ns) {
    waited_ns = without_hold_up(state, stream, bracket, begin, waited_ns);
    own = by_wait(state, stream, bracket, begin, waited_ns);
  } else {
    own.end_ns = unseen_end(bracket, begin, cost);
    uint64_t now_ns = gate_tick_ns();
    if (own.end_ns > begin + cost + UNCLEAR_NS) stream->unclear_ns = now_ns;
    if (gate_is_unseen_pause(own.end_ns, now_ns)) {
      __atomic_store_n(&state->unseen_ns, now_ns, __ATOMIC_RELAXED);
    }
  }
  if (gate_in_crowd(state, stream, bracket)) {
    uint64_t end_ns = seen_ns ? later(waited_ns, begin) : own.end_ns;
    gate_charge_in_crowd(state, stream, bracket, begin, waited_ns ? end_ns : begin, cost);
  } else if (!waited_ns && is_behind_a_wait(bracket)) {
    gate_charge_somewhere(state, stream, own.end_ns - own.begin_ns);
  } else if (own.end_ns > own.begin_ns) {
    gate_charge(state, stream, own.begin_ns, own.end_ns, bracket->cost_ns);
  }
  finish(state, stream, bracket, own.end_ns, false);
}

/* What the events of a bracket say. */
typedef struct measure {
  uint64_t begin_ns;
  uint64_t end_ns;
  uint64_t passed_ns; /* when the device passed the end, on the host's clock … */
  uint64_t wrong_ns;  /* … by how much that may be wrong */
  bool exact;         /* its length is */
} measure;

static bool measure_sample(gate_stream *stream, const gate_bracket *bracket, uint64_t waited_ns,
                           measure *out) {
  int64_t elapsed;
  if (!gate_elapsed_ns(bracket->start, bracket->end, &elapsed) || elapsed < 0) return false;
  uint64_t between = gate_clock_passed_ns(stream, (uint64_t)elapsed, &out->wrong_ns);
  uint64_t told = gate_marker_told_ns(bracket->start);
  uint64_t lead = bracket->opened_ns - told + GATE_START_NS;
  uint64_t length = between > lead ? between - lead : SHORTEST_NS;
  out->begin_ns = bracket->opened_ns + GATE_START_NS;
  out->end_ns = out->begin_ns + length;
  out->passed_ns = told + between;
  if (waited_ns && gate_marker_is_slow(bracket->start)) { /* it may have been passed long before */
    out->end_ns = later(out->begin_ns + SHORTEST_NS, earlier(out->end_ns, waited_ns));
  }
  out->exact = bracket->held_ns <= length / HELD_UP_PART;
  return true;
}

/* Did the device pass the end before the call for it returned? Then it may have been told of it
 * late: calls are held up. */
static bool is_late(const gate_marker *end, const measure *seen) {
  uint64_t slack = gate_marker_is_slow(end) ? LOOSE_NS + seen->wrong_ns : 0;
  return end->took_ns > LOOSE_NS && seen->passed_ns < end->recorded_ns + end->took_ns + slack;
}

/* Counts late ends, of all streams, and others against them. How many had there been before? */
static uint32_t note_late(gate_state *state, bool late) {
  uint32_t before = __atomic_load_n(&state->late_ends, __ATOMIC_RELAXED), after = before + 1;
  if (!late) after = before ? before - 1 : 0;
  __atomic_store_n(&state->late_ends, after < LATE_ENDS_MOST ? after : LATE_ENDS_MOST,
                   __ATOMIC_RELAXED);
  return before;
}

/* How much later it may have begun, for the host was held up on the way to its end. Not after a
 * stall behind which as much was still queued: a call that waits for room in the queue takes long
 * as well. Nor if the one before stalled too: then calls are like that while the device works. */
static uint64_t late_begin_ns(gate_stream *stream, const gate_bracket *bracket,
                              const measure *seen) {
  uint64_t late = bracket->held_ns, since = bracket->counted_ns, until = bracket->end->recorded_ns;
  uint64_t stall = since && until > since + GATE_STALL_NS ? until - since : 0;
  if (seen->end_ns <= gate_marker_told_ns(bracket->end) + stall) late += stall;
  bool again = stream->stalled;
  stream->stalled = late >= GATE_STALL_NS;
  return again && stream->stalled ? 0 : late;
}

/* Did the device pass the bracket's start as soon as it was told, and so before the launch? Then
 * the bracket is as good as a sample, though nobody knew the stream to be idle. */
static bool was_idle(const gate_bracket *bracket, uint64_t passed_ns, uint64_t wrong_ns) {
  return passed_ns < bracket->opened_ns + GATE_START_NS &&
         passed_ns < gate_marker_told_ns(bracket->start) + wrong_ns;
}

static bool measure_by_clock(gate_stream *stream, const gate_bracket *bracket, uint64_t waited_ns,
                             measure *out) {
  int64_t between;
  if (!gate_clock_place(stream, bracket->end, &out->end_ns, &out->wrong_ns)) return false;
  out->begin_ns = begin_ns(stream, bracket);
  out->exact = stream->exact && out->begin_ns == stream->last_end_ns && !bracket->lost;
  if (bracket->start && gate_elapsed_ns(bracket->start, bracket->end, &between) && between >= 0) {
    uint64_t since = out->end_ns - (uint64_t)between; /* when `start` was passed */
    bool idle = was_idle(bracket, since, out->wrong_ns);
    if (idle) {
      uint64_t end_ns = out->end_ns; /* the clock may know better how late the start was passed */
      if (!measure_sample(stream, bracket, waited_ns, out)) return false;
      out->end_ns = later(out->end_ns, end_ns);
      return true;
    }
    /* What was there before had ended then, whatever was presumed of it. */
    out->begin_ns = later(since, bracket->opened_ns + GATE_START_NS);
    out->exact = out->begin_ns == since;
  }
  out->passed_ns = out->end_ns;
  out->exact = out->exact || (out->end_ns > out->begin_ns + SHORT_NS && !bracket->lost);
  return out->end_ns > out->begin_ns;
}

/* What a wait for the stream takes to return: the median, for a host is held up now and then, and
 * just after it slept at the gate more often. */
static void note_wake(gate_state *state, uint64_t wake_ns) {
  enum { STEP_NS = 100, FIRST_NS = 1500 };
  uint64_t before = __atomic_load_n(&state->wake_ns, __ATOMIC_RELAXED);
  if (!before) before = FIRST_NS;
  uint64_t after = wake_ns > before ? before + STEP_NS : before > STEP_NS ? before - STEP_NS : 1;
  __atomic_store_n(&state->wake_ns, earlier(after, GATE_LONGEST_WAKE_NS), __ATOMIC_RELAXED);
}

/* By how much too little is thought of a bracket of that kind alone, as those of unknown kinds are;
 * that is added. Under the stream's lock. */
static uint64_t raise_one(gate_bracket *bracket, const gate_kind *kind) {
  const gate_part *part = &bracket->parts[0];
  if (bracket->part_count != 1 || bracket->rest_ns) return 0;
  if (part->kind != kind || gate_kind_is_gone(kind, part->generation)) return 0;
  uint64_t cost = gate_learned_ns(bracket);
  uint64_t more = cost > bracket->cost_ns ? cost - bracket->cost_ns : 0;
  bracket->cost_ns += more;
  bracket->estimate_ns += more;
  return more;
}

/* The slot's estimate before the lock is let go: then another thread may settle what was raised. */
static void raise_on(penstock_gate_slot *slot, gate_stream *stream, const gate_kind *kind) {
  penstock_lock_acquire(&stream->lock);
  uint64_t more = stream->open ? raise_one(stream->open, kind) : 0;
  for (gate_bracket *one = stream->oldest; one; one = one->next) more += raise_one(one, kind);
  if (more) {
    stream->queued_ns += more;
    stream->drained_ns += more;
    __atomic_fetch_add(&slot->estimate_ns, more, __ATOMIC_RELAXED);
  }
  penstock_lock_release(&stream->lock);
}

/* A kind was measured for the first time: what is queued of it on that device, on any stream, was a
 * guess. Long launches that pass for short ones keep the gate from seeing how much is out. */
static void raise_estimates(gate_state *state, int grant, const gate_bracket *first) {
  penstock_process *process = penstock_process_get();
  const gate_kind *kind = first->part_count == 1 ? first->parts[0].kind : NULL;
  if (!process || grant < 0 || !kind || !penstock_cost_ns(&kind->cost, 0)) return;
  penstock_gate_slot *slot = gate_slot(process, state, grant); /* before the locks: it may claim */
  for (unsigned i = 0; i < GATE_LISTS; i++) {
    if (!__atomic_load_n(&state->streams[i], __ATOMIC_RELAXED)) continue;
    penstock_lock_acquire(&state->lock);
    for (gate_stream *stream = state->streams[i]; stream; stream = stream->next) {
      if (stream->context->grant == grant) raise_on(slot, stream, kind);
    }
    penstock_lock_release(&state->lock);
  }
}

/* When a launch last went at the shut gate while these ran, which they may have waited for; 0: none
 * did. */
static uint64_t let_go_ns(const gate_state *state, int grant, const measure *seen) {
  uint64_t ns = __atomic_load_n(&state->let_go_ns[grant], __ATOMIC_RELAXED);
  return ns > seen->begin_ns && ns < seen->end_ns ? ns : 0;
}

/* May its launches have waited for one that was kept at the gate? One went while they ran, or they
 * are on a device that is together with others. */
static bool may_have_waited(const gate_state *state, const gate_stream *stream,
                            const measure *seen) {
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  if (!process || grant < 0) return false;
  return let_go_ns(state, grant, seen) ||
         penstock_gate_is_together(gate_device(process, grant), gate_tick_ns());
}

/* What its launches took by themselves, as far as known: not the time that the others came late. */
static uint64_t unheld_ns(const gate_state *state, const gate_stream *stream,
                          const gate_bracket *bracket, const measure *seen) {
  uint64_t length_ns = seen->end_ns - seen->begin_ns, usual = gate_usual_ns(bracket);
  if (usual == UINT64_MAX || !may_have_waited(state, stream, seen)) return length_ns;
  uint64_t went_ns = let_go_ns(state, stream->context->grant, seen);
  if (went_ns) return earlier(length_ns, later(usual, seen->end_ns - went_ns));
  return earlier(length_ns, usual + usual / 2 + SHORT_NS);
}

/* The first measurement of a kind. Of one that waited nobody knows more than of any other, but for
 * what it took after the launch went that it may have waited for. */
static uint64_t first_ns(gate_state *state, const gate_stream *stream, const gate_bracket *bracket,
                         const measure *seen, uint64_t length_ns) {
  if (!bracket->part_count || !may_have_waited(state, stream, seen)) return length_ns;
  uint64_t likely = gate_likely_ns(state, bracket->parts[0].kind) * bracket->launches;
  uint64_t went_ns = let_go_ns(state, stream->context->grant, seen);
  return earlier(length_ns, later(likely, went_ns ? seen->end_ns - went_ns : 0));
}

void gate_settle_measured(gate_state *state, gate_stream *stream, gate_bracket *bracket,
                          uint64_t waited_ns) {
  measure seen;
  bracket->waited = waited_ns != 0;
  if (!bracket->end || !bracket->ended) {
    gate_settle_presumed(state, stream, bracket, waited_ns);
    return;
  }
  CUstreamCaptureMode mode = gate_relax();
  bool measured = bracket->sample ? measure_sample(stream, bracket, waited_ns, &seen)
                                  : measure_by_clock(stream, bracket, waited_ns, &seen);
  gate_called(stream, bracket->start && !bracket->sample ? 2 : 1);
  gate_restore(mode);
  if (!measured) {
    gate_settle_presumed(state, stream, bracket, waited_ns);
    return;
  }
  uint64_t loose_ns =
      LOOSE_NS + seen.wrong_ns + long_over_ns(stream, bracket, bracket->end->recorded_ns);
  bool known = is_measured(bracket), loose = seen.passed_ns < bracket->end->recorded_ns + loose_ns;
  bool late_end = !loose && is_late(bracket->end, &seen);
  if (state->launches_block) { /* ends are recorded on idle streams, behind calls that took long */
    bracket->held_ns = bracket->counted_ns = 0;
    loose = late_end = false;
  }
  /* A watched end is a favour: late, it is none. */
  uint32_t late_before = loose || bracket->watched ? 0 : note_late(state, late_end);
  bool by_chance = late_end && !late_before; /* further ones are how the driver is */
  if (by_chance && known) {
    gate_settle_presumed(state, stream, bracket, waited_ns);
    return;
  }
  uint64_t length = seen.end_ns - seen.begin_ns, cost = gate_learned_ns(bracket);
  uint64_t late = late_begin_ns(stream, bracket, &seen), least = length - earlier(length, late);
  bool stalled = late >= GATE_STALL_NS;
  if (bracket->ended != bracket->launches) { /* it may have ended before the last of them */
    if (loose || stalled || length <= cost) {
      gate_settle_presumed(state, stream, bracket, waited_ns);
      return;
    }
    /* They take longer than was thought, on the average at least this. Of what is not known at all
     * that would be too little: let the first ones be all that is in it. */
    if (!known) length = length * bracket->launches / bracket->ended;
  }
  bool crowd = gate_in_crowd(state, stream, bracket);
  if (!known) {
    bool vague = loose || stalled || by_chance;
    uint64_t most = vague ? earlier(length, GATE_UNKNOWN_NS * bracket->launches) : length;
    most = first_ns(state, stream, bracket, &seen, most);
    if (stalled) most = later(least, most);
    gate_learn(state, bracket, most, true, gate_now_ns());
    if (most < length) gate_doubt_first(state, bracket);
    raise_estimates(state, stream->context->grant, bracket);
  } else if (seen.exact && !loose && !stalled &&
             (!late_end || late_before >= LATE_ENDS_EACH_TIME)) {
    gate_learn(state, bracket, unheld_ns(state, stream, bracket, &seen), crowd, gate_now_ns());
  }
  cost = known ? cost : gate_learned_ns(bracket);
  if (loose || late) stream->prompt = true;
  if (loose) {
    seen.end_ns = earlier(seen.end_ns, seen.begin_ns + cost);
  } else if (late) {
    seen.begin_ns = seen.end_ns - later(earlier(length, cost), least);
  } else if (bracket->sample && !crowd && waited_since_ns(stream) < seen.end_ns &&
             waited_ns > seen.end_ns) {
    note_wake(state, waited_ns - seen.end_ns);
  }
  if (crowd) {
    /* The lesser of both would be less than the mean in the mean. A guess is no experience. */
    bool sure = of_all_kinds(bracket, penstock_cost_is_sure);
    uint64_t due = sure ? cost : earlier(cost, length);
    gate_charge_in_crowd(state, stream, bracket, seen.begin_ns, seen.end_ns, due);
  } else {
    gate_charge(state, stream, seen.begin_ns, seen.end_ns, bracket->cost_ns);
  }
  finish(state, stream, bracket, seen.end_ns, !loose);
}
