/* Brackets: opened, ended, settled. The caller holds the stream's `working` flag, and no lock. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"

/* An end that the device passed this soon after it was recorded was recorded on an idle stream: it
 * says when the host came round to it, not when the work ended. */
#define LOOSE_NS 2500
/* Placed on the host's clock an interval is exact to some microseconds: shorter ones teach nothing
 * unless they are samples. */
#define SHORT_NS 300000
/* A sample whose first event was held up is uncertain by that much: it teaches nothing unless that
 * is at most one part in so many of it. Long launches of several tenants come one by one, after a
 * sleep each, so most of their events are held up. */
#define HELD_UP_PART 256
/* So many brackets must be ended by events before a stream counts as one that fills them. */
#define LEFT_OPEN 16

bool gate_stream_claim(gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  bool mine = !stream->working && !stream->dead;
  if (mine) stream->working = true;
  penstock_lock_release(&stream->lock);
  return mine;
}

bool gate_stream_claim_busy(gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  bool busy = stream->oldest || stream->open || stream->stray_launches;
  bool mine = busy && !stream->working && !stream->dead;
  if (mine) stream->working = true;
  penstock_lock_release(&stream->lock);
  return mine;
}

void gate_stream_release(gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  stream->working = false;
  penstock_lock_release(&stream->lock);
}

uint64_t gate_stream_entering(const gate_stream *stream) {
  uint64_t left = __atomic_load_n(&stream->left, __ATOMIC_ACQUIRE);
  return stream->launched > left ? stream->launched - left : 0;
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* What others charge should this process end before it settles. */
static void note_unsettled(penstock_gate_slot *slot, uint64_t now_ns) {
  uint64_t submitted = __atomic_load_n(&slot->submitted, __ATOMIC_RELAXED);
  if (!__atomic_load_n(&slot->unsettled_since_ns, __ATOMIC_RELAXED) ||
      submitted == __atomic_load_n(&slot->done, __ATOMIC_RELAXED)) {
    __atomic_store_n(&slot->unsettled_since_ns, now_ns, __ATOMIC_RELAXED);
  }
}

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

static void give_up_estimate(gate_state *state, const gate_stream *stream, uint64_t ns,
                             uint32_t launches, uint32_t brackets) {
  penstock_process *process = penstock_process_get();
  if (!process) return;
  int grant = stream->context->grant;
  penstock_gate_slot *slot = gate_slot(process, state, grant);
  uint64_t have = __atomic_load_n(&slot->estimate_ns, __ATOMIC_RELAXED), left;
  do {
    left = have > ns ? have - ns : 0;
  } while (!__atomic_compare_exchange_n(&slot->estimate_ns, &have, left, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  if (!left) __atomic_store_n(&state->drained_ns[grant], 0, __ATOMIC_RELAXED);
  __atomic_fetch_add(&slot->done, brackets, __ATOMIC_RELAXED);
  if (brackets) note_settled(state, slot, grant);
  __atomic_fetch_add(&gate_device(process, grant)->launches, launches, __ATOMIC_RELAXED);
}

static gate_bracket *bracket_make(gate_state *state, const gate_stream *stream, uint64_t now_ns) {
  gate_bracket *bracket = gate_bracket_get(state);
  if (!bracket) return NULL;
  int grant = stream->context->grant;
  penstock_process *process = penstock_process_get();
  if (process) {
    bracket->crowd = gate_others_ns(process, state, grant, now_ns, NULL) != 0;
    bracket->quiet = gate_quiet_is_ours(process, grant, now_ns);
    penstock_gate_slot *slot = gate_slot(process, state, grant);
    note_unsettled(slot, now_ns);
    __atomic_fetch_add(&slot->submitted, 1, __ATOMIC_RELAXED);
  }
  bracket->opened_ns = now_ns;
  return bracket;
}

/* Launches are counted in it from now on, the strays first: those may have been made before its
 * start was marked, which then tells nothing. */
static void publish(gate_stream *stream, gate_bracket *bracket, bool sample, bool interrupted) {
  gate_marker *vain = NULL;
  penstock_lock_acquire(&stream->lock);
  if (stream->stray_launches) {
    vain = bracket->start;
    bracket->start = NULL;
    bracket->held_ns = 0;
    bracket->opened_ns = earlier(bracket->opened_ns, stream->stray_since_ns);
  }
  bracket->sample = sample && bracket->start && !interrupted;
  bracket->lost = interrupted && !bracket->start;
  bracket->number = ++stream->number;
  bracket->estimate_ns = stream->stray_ns;
  bracket->cost_ns = bracket->rest_ns = stream->stray_cost_ns;
  bracket->launches = stream->stray_launches;
  stream->stray_ns = stream->stray_cost_ns = 0;
  stream->stray_launches = 0;
  stream->open = bracket;
  penstock_lock_release(&stream->lock);
  gate_marker_put(stream->context, vain);
}

void gate_bracket_adopt(gate_state *state, gate_stream *stream, uint64_t now_ns) {
  penstock_lock_acquire(&stream->lock);
  bool due = stream->stray_launches && !stream->open;
  penstock_lock_release(&stream->lock);
  gate_bracket *bracket = due ? bracket_make(state, stream, now_ns) : NULL;
  if (!bracket) return;
  bool interrupted = __atomic_exchange_n(&stream->interrupted, false, __ATOMIC_RELAXED);
  publish(stream, bracket, false, interrupted);
}

void gate_bracket_open(gate_state *state, gate_stream *stream, bool sample, uint64_t now_ns) {
  gate_bracket *bracket = bracket_make(state, stream, now_ns);
  if (!bracket) return;
  gate_clock_renew(stream, now_ns);
  bool interrupted = __atomic_exchange_n(&stream->interrupted, false, __ATOMIC_RELAXED);
  if (sample ||
      (interrupted && gate_may_mark(state, stream) && gate_may_call(stream, now_ns, 4, 16))) {
    bracket->start = gate_marker_record(stream->context, stream->handle);
    gate_called(stream, 1);
    if (bracket->start && bracket->start->took_ns > GATE_HELD_UP_NS) {
      bracket->held_ns = bracket->start->took_ns;
    }
    bracket->opened_ns = gate_now_ns();
  }
  publish(stream, bracket, sample, interrupted);
}

/* Its estimate is replaced by what was charged; the stream's further course follows from its end.
 */
static void finish(gate_state *state, gate_stream *stream, gate_bracket *bracket, uint64_t end_ns,
                   bool exact) {
  give_up_estimate(state, stream, bracket->estimate_ns, bracket->launches, 1);
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

/* When the stream ran dry, as a wait for it tells that returned at `waited_ns`; 0: it does not, the
 * end was there before the wait. */
static uint64_t seen_end(const gate_state *state, const gate_stream *stream, uint64_t waited_ns) {
  uint64_t wake = __atomic_load_n(&state->wake_ns, __ATOMIC_RELAXED);
  bool waited = waited_ns > waited_since_ns(stream) + wake + GATE_DRY_SLACK_NS;
  return waited ? waited_ns - wake : 0;
}

/* Was a launch of its first kind ever measured? */
static bool is_measured(const gate_bracket *bracket) {
  return bracket->part_count && penstock_cost_ns(&bracket->parts[0].kind->cost, 0);
}

typedef struct interval {
  uint64_t begin_ns;
  uint64_t end_ns;
} interval;

/* The interval of a bracket of which no end was measured, from the wait for its stream. It took
 * what it takes by experience, if launches of its kinds take alike; else until the wait returned.
 * So it did if nothing was ever measured of its kinds. What is longer than any that was measured
 * looks like a hold-up of the host, up to a few milliseconds: the samples, drawn without regard to
 * length, see to it that nothing is gained by that. */
static interval by_wait(const gate_state *state, const gate_stream *stream,
                        const gate_bracket *bracket, uint64_t waited_ns) {
  enum { HOLD_UP_NS = 4000000 };
  interval out = {.begin_ns = begin_ns(stream, bracket)};
  uint64_t cost = gate_learned_ns(bracket), seen = seen_end(state, stream, waited_ns);
  uint64_t latest = gate_latest_ns(bracket, out.begin_ns);
  uint64_t last = seen ? waited_ns : later(waited_since_ns(stream), out.begin_ns);
  out.end_ns = earlier(out.begin_ns + cost, last);
  if (seen && (seen > latest + HOLD_UP_NS || !is_measured(bracket))) {
    out.end_ns = seen;
  } else if (bracket->lost || gate_is_even(bracket)) {
    if (bracket->lost && seen) out.end_ns = seen;
    out.begin_ns = out.end_ns > cost ? out.end_ns - cost : 0;
  } else if (seen && seen < latest) {
    out.end_ns = seen;
  }
  return out;
}

/* Nobody saw its end, nor waited for it. Where launches of its kinds were much longer of late, it
 * may have been as long, up to now: long launches behind which nobody looks must not pass as short
 * ones. */
static uint64_t unseen_end(const gate_bracket *bracket, uint64_t begin_ns, uint64_t cost_ns) {
  enum { UNEVEN = 4, UNEVEN_NS = 1000000 };
  uint64_t latest = gate_latest_ns(bracket, begin_ns), even = begin_ns + cost_ns;
  if (latest < begin_ns + UNEVEN * cost_ns + UNEVEN_NS) return even;
  return later(even, earlier(latest, gate_now_ns()));
}

/* Settles a bracket of which no end was measured. */
static void settle_presumed(gate_state *state, gate_stream *stream, gate_bracket *bracket,
                            uint64_t waited_ns) {
  uint64_t begin = begin_ns(stream, bracket), cost = gate_learned_ns(bracket);
  interval own = {begin, unseen_end(bracket, begin, cost)};
  bracket->waited = waited_ns != 0;
  if (waited_ns) own = by_wait(state, stream, bracket, waited_ns);
  if (gate_in_crowd(state, stream, bracket)) {
    gate_charge_in_crowd(state, stream, bracket, begin, later(waited_ns, begin), cost);
  } else if (own.end_ns > own.begin_ns) {
    gate_charge(state, stream, own.begin_ns, own.end_ns, bracket->cost_ns);
  }
  finish(state, stream, bracket, own.end_ns, false);
}

/* What the events of a bracket say. */
typedef struct measure {
  uint64_t begin_ns;
  uint64_t end_ns;
  bool exact; /* its length is */
  bool loose; /* the work ended then, or before */
} measure;

static bool measure_sample(const gate_bracket *bracket, measure *out) {
  int64_t between;
  if (!gate_elapsed_ns(bracket->start, bracket->end, &between) || between < 0) return false;
  uint64_t lead = bracket->opened_ns - bracket->start->recorded_ns + GATE_START_NS;
  uint64_t until_end_call = bracket->end->recorded_ns - bracket->start->recorded_ns;
  uint64_t length = (uint64_t)between > lead ? (uint64_t)between - lead : 500;
  out->begin_ns = bracket->opened_ns + GATE_START_NS;
  out->end_ns = out->begin_ns + length;
  out->loose = (uint64_t)between < until_end_call + LOOSE_NS;
  out->exact = bracket->held_ns <= length / HELD_UP_PART;
  return true;
}

static bool measure_by_clock(gate_stream *stream, const gate_bracket *bracket, measure *out) {
  int64_t between;
  if (!gate_clock_place(stream, bracket->end, &out->end_ns)) return false;
  out->begin_ns = begin_ns(stream, bracket);
  out->exact = stream->exact && out->begin_ns == stream->last_end_ns;
  if (bracket->start && gate_elapsed_ns(bracket->start, bracket->end, &between) && between >= 0) {
    uint64_t since = out->end_ns - (uint64_t)between; /* when `start` was passed */
    out->begin_ns = later(since, out->begin_ns);
    out->exact = since >= bracket->opened_ns + GATE_START_NS;
  }
  out->loose = out->end_ns < bracket->end->recorded_ns + LOOSE_NS;
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

static void settle_measured(gate_state *state, gate_stream *stream, gate_bracket *bracket,
                            uint64_t waited_ns) {
  measure seen;
  bracket->waited = waited_ns != 0;
  if (!bracket->end || !bracket->ended) {
    settle_presumed(state, stream, bracket, waited_ns);
    return;
  }
  CUstreamCaptureMode mode = gate_relax();
  bool measured =
      bracket->sample ? measure_sample(bracket, &seen) : measure_by_clock(stream, bracket, &seen);
  gate_called(stream, bracket->start && !bracket->sample ? 2 : 1);
  gate_restore(mode);
  if (!measured) {
    settle_presumed(state, stream, bracket, waited_ns);
    return;
  }
  uint64_t length = seen.end_ns - seen.begin_ns, cost = gate_learned_ns(bracket);
  bool known = is_measured(bracket);
  if (bracket->ended != bracket->launches) { /* it may have ended before the last of them */
    if (seen.loose || length <= cost) {
      settle_presumed(state, stream, bracket, waited_ns);
      return;
    }
    /* They take longer than was thought, on the average at least this. Of what is not known at all
     * that would be too little: let the first ones be all that is in it. */
    if (!known) length = length * bracket->launches / bracket->ended;
  }
  bool crowd = gate_in_crowd(state, stream, bracket);
  if (!known) {
    uint64_t most = seen.loose ? earlier(length, GATE_UNKNOWN_NS * bracket->launches) : length;
    gate_learn(state, bracket, most, true, gate_now_ns());
  } else if (seen.exact && !seen.loose) {
    gate_learn(state, bracket, length, crowd, gate_now_ns());
  }
  cost = known ? cost : gate_learned_ns(bracket);
  if (seen.loose || bracket->held_ns) stream->prompt = true;
  if (seen.loose) {
    seen.end_ns = earlier(seen.end_ns, seen.begin_ns + cost);
  } else if (bracket->held_ns) { /* it ended then, and began up to so much later */
    uint64_t least = length > bracket->held_ns ? length - bracket->held_ns : 0;
    seen.begin_ns = seen.end_ns - later(earlier(length, cost), least);
  } else if (bracket->sample && !crowd && waited_since_ns(stream) < seen.end_ns &&
             waited_ns > seen.end_ns) {
    note_wake(state, waited_ns - seen.end_ns);
  }
  if (crowd) {
    gate_charge_in_crowd(state, stream, bracket, seen.begin_ns, seen.end_ns, earlier(cost, length));
  } else {
    gate_charge(state, stream, seen.begin_ns, seen.end_ns, bracket->cost_ns);
  }
  finish(state, stream, bracket, seen.end_ns, !seen.loose);
}

/* Has the stream run dry behind the open bracket or its strays, by experience? */
static bool is_past(gate_stream *stream, uint64_t now_ns) {
  penstock_lock_acquire(&stream->lock);
  uint64_t cost_ns = stream->open ? stream->open->cost_ns : stream->stray_cost_ns;
  bool past = (stream->open || stream->stray_launches) && !stream->newest &&
              now_ns > stream->drained_ns + GATE_DRY_SLACK_NS + cost_ns / 8;
  penstock_lock_release(&stream->lock);
  return past;
}

/* So far: other threads' launches may join the open bracket meanwhile. `*made`: how many of them
 * are certainly behind their driver calls. */
static uint32_t launches_in(gate_stream *stream, const gate_bracket *bracket, uint32_t *made) {
  penstock_lock_acquire(&stream->lock);
  uint32_t launches = bracket->launches;
  *made = launches - (uint32_t)earlier(launches, gate_stream_entering(stream));
  penstock_lock_release(&stream->lock);
  return launches;
}

static gate_bracket *take_open(gate_stream *stream, bool queue) {
  penstock_lock_acquire(&stream->lock);
  gate_bracket *bracket = stream->open;
  stream->open = NULL;
  if (bracket && queue) {
    *(stream->newest ? &stream->newest->next : &stream->oldest) = bracket;
    stream->newest = bracket;
  }
  penstock_lock_release(&stream->lock);
  return bracket;
}

/* After a bracket was settled whose end the device has passed: is nothing queued behind it? Then
 * the stream is dry, whatever experience said of when it would be. */
static void note_idle(gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  bool none = !stream->oldest && !stream->open && !stream->stray_launches;
  if (none && !gate_stream_entering(stream)) {
    stream->idle = true;
    stream->drained_ns = earlier(stream->drained_ns, stream->last_end_ns);
  }
  penstock_lock_release(&stream->lock);
}

void gate_bracket_presume(gate_state *state, gate_stream *stream) {
  gate_bracket *bracket = take_open(stream, false);
  if (!bracket) return;
  if (bracket->sample) stream->prompt = true;
  stream->left_open = LEFT_OPEN;
  settle_presumed(state, stream, bracket, 0);
}

void gate_bracket_roll(gate_state *state, gate_stream *stream) {
  uint32_t made;
  gate_bracket *bracket = stream->open;
  if (!bracket || (launches_in(stream, bracket, &made) == bracket->ended && bracket->end)) return;
  gate_marker_put(stream->context, bracket->end);
  bracket->end = NULL;
  if (!gate_may_mark(state, stream)) return;
  bracket->ended = made;
  bracket->end = gate_marker_record(stream->context, stream->handle);
  gate_called(stream, 1);
}

void gate_bracket_end(gate_state *state, gate_stream *stream, bool word) {
  gate_bracket *bracket = stream->open;
  if (!bracket) return;
  gate_bracket_roll(state, stream);
  if (!bracket->end || !gate_may_mark(state, stream)) {
    gate_bracket_presume(state, stream);
    return;
  }
  if (stream->left_open) stream->left_open--;
  if (word) {
    gate_word_write(stream, bracket);
    gate_called(stream, 1);
  }
  bracket->by_event = !word; /* another thread's launches may keep the wait from telling */
  take_open(stream, true);
}

void gate_bracket_close(gate_state *state, gate_stream *stream, bool handle_is_ours) {
  uint32_t made;
  gate_bracket *bracket = stream->open;
  if (!bracket) return;
  if (!bracket->end || bracket->ended != launches_in(stream, bracket, &made)) {
    gate_bracket_presume(state, stream);
    return;
  }
  gate_called(stream, 1);
  if (gate_marker_is_passed(bracket->end)) {
    take_open(stream, false);
    settle_measured(state, stream, bracket, 0);
    note_idle(stream);
  } else if (handle_is_ours) { /* it takes longer than it should */
    gate_bracket_end(state, stream, true);
  } else {
    bracket->by_event = true;
    take_open(stream, true);
  }
}

void gate_bracket_expire(gate_state *state, gate_stream *stream, uint64_t now_ns) {
  if (!is_past(stream, now_ns)) return;
  gate_bracket_adopt(state, stream, now_ns);
  gate_bracket_close(state, stream, !stream->thread && !stream->owner);
}

static gate_bracket *take_oldest(gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  gate_bracket *bracket = stream->oldest;
  if (bracket) stream->oldest = bracket->next;
  if (!stream->oldest) stream->newest = NULL;
  penstock_lock_release(&stream->lock);
  return bracket;
}

void gate_bracket_settle(gate_state *state, gate_stream *stream) {
  bool any = false;
  while (stream->oldest && gate_is_through(stream, stream->oldest)) {
    settle_measured(state, stream, take_oldest(stream), 0);
    any = true;
  }
  if (any) note_idle(stream);
}

void gate_bracket_drained(gate_state *state, gate_stream *stream, uint64_t waited_ns) {
  for (gate_bracket *bracket; (bracket = take_oldest(stream));) {
    settle_measured(state, stream, bracket, stream->oldest ? 0 : waited_ns);
  }
  gate_bracket *open = take_open(stream, false);
  if (open) settle_measured(state, stream, open, waited_ns);
  penstock_lock_acquire(&stream->lock);
  if (!stream->open && !stream->stray_launches && !gate_stream_entering(stream)) {
    stream->drained_ns = earlier(stream->drained_ns, waited_ns);
    stream->last_end_ns = earlier(stream->last_end_ns, waited_ns);
    stream->queued_ns = stream->queued = 0;
    stream->idle = true;
  }
  penstock_lock_release(&stream->lock);
}

void gate_stream_finish(gate_state *state, gate_stream *stream) {
  gate_bracket_adopt(state, stream, gate_now_ns());
  gate_bracket_end(state, stream, true);
  gate_bracket_settle(state, stream);
}

static void unmark(gate_context *context, gate_bracket *bracket) {
  gate_marker_put(context, bracket->start);
  gate_marker_put(context, bracket->end);
  bracket->start = bracket->end = NULL;
}

void gate_bracket_unmark(gate_stream *stream) {
  for (gate_bracket *bracket = stream->oldest; bracket; bracket = bracket->next) {
    unmark(stream->context, bracket);
  }
  if (stream->open) unmark(stream->context, stream->open);
}

void gate_stream_abandon(gate_state *state, gate_stream *stream) {
  for (gate_bracket *bracket; (bracket = take_oldest(stream));) {
    settle_presumed(state, stream, bracket, 0);
  }
  gate_bracket *open = take_open(stream, false);
  if (open) settle_presumed(state, stream, open, 0);
  penstock_lock_acquire(&stream->lock);
  uint64_t stray_ns = stream->stray_ns;
  uint32_t launches = stream->stray_launches;
  stream->stray_ns = stream->stray_cost_ns = stream->stray_launches = 0;
  penstock_lock_release(&stream->lock);
  give_up_estimate(state, stream, stray_ns, launches, 0);
}
