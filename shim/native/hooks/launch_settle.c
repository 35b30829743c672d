/* Settlement of timing windows: finds their intervals by events, by a wait or by learned cost, then
 * charges them and learns from them. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "mechanism/starved.h"

/* Delay below which an end event is *loose*. If the device passed the event this soon after it was
 * recorded, the stream was idle, and the event shows when the host recorded it and not when the
 * work ended. */
#define LOOSE_NS 2500
/* Shortest interval on the host's clock from which costs are learned, except from samples, because
 * such intervals are exact only to some microseconds. */
#define SHORT_NS 300000
/* Largest part of a sample by which its launch call may be held up if costs are to be learned from
 * it, because the delay makes the sample uncertain. Under contention, long launches come one at a
 * time, each after a sleep, so most of their calls are held up. */
#define HELD_UP_PART 256
/* If a presumed end may be this much later than the learned cost says, the next ends are
 * measured. */
#define UNCLEAR_NS 1000000
/* Time below which it is not worth asking the kernel how long the thread could not run. */
#define WORTH_A_READ_NS 1000000
/* Length of a sample that seems shorter than the error of its start. */
#define SHORTEST_NS 500
/* If late ends outnumber others by this many, lateness is normal for the driver, and costs are
 * learned from late ends. The second number bounds the count. */
#define LATE_ENDS_EACH_TIME 32
#define LATE_ENDS_MOST 64
/* A wait that returns up to this much later than the longest measured launch explains was probably
 * held up by the host. */
#define LATE_NS 4000000

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Updates the time since which the slot has had unsettled work. While there is always some
 * unfinished work, the oldest is searched from time to time. */
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
                  uint32_t windows) {
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
  __atomic_fetch_add(&slot->done, windows, __ATOMIC_RELAXED);
  if (windows) {
    note_settled(state, slot, grant);
    gate_settled(process, grant);
  }
  __atomic_fetch_add(&gate_device(process, grant)->launches, launches, __ATOMIC_RELAXED);
}

/* Notes that work that is still unfinished started no earlier than the work before it ended. */
static void note_begun(gate_state *state, int grant, uint64_t end_ns) {
  penstock_process *process = penstock_process_get();
  if (!process || grant < 0) return;
  penstock_gate_slot *slot = gate_slot(process, state, grant);
  uint64_t since_ns = __atomic_load_n(&slot->busy_since_ns, __ATOMIC_RELAXED);
  if (!since_ns || since_ns >= end_ns) return;
  __atomic_compare_exchange_n(&slot->busy_since_ns, &since_ns, end_ns, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
}

/* Replaces the window's estimate by what was charged, predicts the stream from the window's end,
 * and frees the window. */
static void finish(gate_state *state, gate_stream *stream, gate_window *window, uint64_t end_ns,
                   bool exact) {
  gate_overrun_outlasts(state, stream, window);
  gate_give_up(state, stream, window->estimate_ns, window->launches, 1);
  note_begun(state, stream->context->grant, end_ns);
  penstock_lock_acquire(&stream->lock);
  uint64_t left = stream->queued_ns > window->cost_ns ? stream->queued_ns - window->cost_ns : 0;
  stream->queued_ns = left;
  stream->queued -= earlier(stream->queued, window->launches);
  stream->last_end_ns = end_ns;
  stream->exact = exact;
  uint64_t drained = end_ns + left;
  if (exact || drained > stream->drained_ns) stream->drained_ns = drained;
  penstock_lock_release(&stream->lock);
  gate_marker_put(stream->context, window->start);
  gate_marker_put(stream->context, window->end);
  gate_window_put(state, window);
}

static uint64_t begin_ns(const gate_stream *stream, const gate_window *window) {
  return later(stream->last_end_ns, window->opened_ns + GATE_START_NS);
}

/* Returns when the program started to wait. The first thread that starts to wait may change this
 * value at any time. */
static uint64_t waited_since_ns(const gate_stream *stream) {
  return __atomic_load_n(&stream->waited_since_ns, __ATOMIC_RELAXED);
}

/* Returns true if launches of all the window's kinds were ever measured. */
static bool is_measured(const gate_window *window) {
  uint32_t i = 0;
  while (i < window->part_count && penstock_cost_ns(gate_measured(&window->parts[i]), 0)) i++;
  return i && i == window->part_count;
}

typedef struct interval {
  uint64_t begin_ns;
  uint64_t end_ns;
} interval;

/* Returns true if `is_so` holds for the measured costs of all the window's kinds. */
static bool of_all_kinds(const gate_window *window, int (*is_so)(const penstock_cost *, uint64_t)) {
  uint64_t now_ns = gate_tick_ns();
  for (uint32_t i = 0; i < window->part_count; i++) {
    if (!is_so(gate_measured(&window->parts[i]), now_ns)) return false;
  }
  return !window->rest_ns;
}

/* Returns how late the driver and the host may be with a call at `at_ns` if the work should have
 * ended before it. The longer before, the less likely the work ended just then, and the more likely
 * driver and host were held up, above all if the window's launches vary little. */
static uint64_t long_over_ns(const gate_stream *stream, const gate_window *window, uint64_t at_ns) {
  enum { PART_IF_EVEN = 16, PART = 128, MOST_NS = 1000000 };
  uint64_t due_ns = begin_ns(stream, window) + gate_learned_ns(window);
  if (at_ns <= due_ns) return 0;
  uint64_t part = of_all_kinds(window, penstock_cost_is_even) ? PART_IF_EVEN : PART;
  return earlier((at_ns - due_ns) / part, MOST_NS);
}

/* Returns when the stream ran dry, according to a wait that returned at `waited_ns`, or 0 if that
 * is unknown because the stream had run dry before the wait. */
static uint64_t seen_end(const gate_state *state, const gate_stream *stream,
                         const gate_window *window, uint64_t waited_ns) {
  uint64_t wake = __atomic_load_n(&state->wake_ns, __ATOMIC_RELAXED);
  uint64_t since = waited_since_ns(stream);
  uint64_t slack = GATE_DRY_SLACK_NS + long_over_ns(stream, window, since);
  return waited_ns > since + wake + slack ? waited_ns - wake : 0;
}

/* Returns true if the process was probably stopped and continued. Neither the kernel's counters
 * nor, if the end was not measured, the device shows that. So the first such late wait in a minute
 * is attributed to a stop, with the waits that were under way at the same time. Kinds that vary are
 * excluded, because they may well have had a long launch. Other kinds may have had one too, but
 * samples then find the next ones. */
static bool was_probably_stopped(gate_state *state, const gate_stream *stream,
                                 const gate_window *window, uint64_t waited_ns, uint64_t late_ns) {
  const uint64_t seldom_ns = 60000000000;
  if (late_ns < GATE_STALL_NS || !of_all_kinds(window, penstock_cost_is_even)) return false;
  uint64_t last_ns = __atomic_load_n(&state->forgiven_ns, __ATOMIC_RELAXED);
  if (last_ns && waited_since_ns(stream) <= last_ns) return true;
  if (last_ns && waited_ns < last_ns + seldom_ns) return false;
  __atomic_store_n(&state->forgiven_ns, waited_ns, __ATOMIC_RELAXED);
  return true;
}

/* Returns when the wait for a window returned, or would have returned if the host had let this
 * thread run. Time beyond all measured launches of the window's kinds may not be device time. */
static uint64_t without_hold_up(gate_state *state, const gate_stream *stream,
                                const gate_window *window, uint64_t begin, uint64_t waited_ns) {
  uint64_t latest = gate_latest_ns(window, begin);
  if (waited_ns <= latest + LATE_NS || !is_measured(window)) return waited_ns;
  if (window->lost || !seen_end(state, stream, window, waited_ns)) return waited_ns;
  uint64_t late = waited_ns - latest;
  late -= earlier(late, penstock_starved_ns(window->opened_ns));
  return was_probably_stopped(state, stream, window, waited_ns, late) ? latest : latest + late;
}

/* Returns the interval of a window without a measured end, according to the wait for its stream. If
 * launches of its kinds vary little, the interval has their learned cost. Otherwise, or if they
 * were never measured, it lasts until the wait returned. If that is up to a few milliseconds longer
 * than any measured launch, the host was probably held up. A program gains nothing by that, because
 * samples are drawn regardless of length. */
static interval by_wait(const gate_state *state, const gate_stream *stream,
                        const gate_window *window, uint64_t begin, uint64_t waited_ns) {
  interval out = {.begin_ns = begin};
  uint64_t cost = gate_learned_ns(window), seen = seen_end(state, stream, window, waited_ns);
  uint64_t latest = gate_latest_ns(window, out.begin_ns);
  /* If the wait did not see the end, the end may still be a little later than the start of the
   * wait. */
  uint64_t unseen = later(waited_since_ns(stream), out.begin_ns) + GATE_DRY_SLACK_NS;
  uint64_t last = seen ? waited_ns : later(out.begin_ns, earlier(unseen, waited_ns));
  out.end_ns = earlier(out.begin_ns + cost, last);
  if (seen && (seen > latest + LATE_NS || !is_measured(window))) {
    out.end_ns = seen;
  } else if (window->lost || (gate_is_even(window) && !gate_may_be_much_longer(window))) {
    if (window->lost && seen) out.end_ns = seen;
    out.begin_ns = out.end_ns > cost ? out.end_ns - cost : 0;
  } else if (seen && seen < latest) {
    out.end_ns = seen;
  }
  return out;
}

/* Returns the presumed end of a window that was neither measured nor waited for. If the window may
 * have been much longer than its learned cost, it may have lasted until now, because long launches
 * must not count as short ones just because their ends are not measured. Time for which this thread
 * could not run does not count. */
static uint64_t unseen_end(const gate_window *window, uint64_t begin_ns, uint64_t cost_ns) {
  uint64_t latest = gate_latest_ns(window, begin_ns), even = begin_ns + cost_ns;
  if (!gate_may_be_much_longer(window)) return even;
  uint64_t now_ns = gate_now_ns();
  if (now_ns > even + WORTH_A_READ_NS) now_ns -= penstock_starved_ns(window->opened_ns);
  return later(even, earlier(latest, now_ns));
}

/* Learns costs from a wait or a query, the only source on streams without events. */
static void learn_asked(gate_state *state, const gate_stream *stream, const gate_window *window,
                        uint64_t length_ns) {
  bool contended = gate_is_contended(state, stream, window);
  if (!window->lost && length_ns) gate_learn(state, window, length_ns, contended, gate_now_ns());
}

/* Returns true if the window may have started long after it was opened. */
static bool is_behind_a_wait(const gate_window *window) {
  return window->lost || (window->start && !window->sample);
}

/* Returns the start of a window without a measured end. After a wait on the device, the start can
 * be long after the window was opened; its start event then shows it, which costs a call. */
static uint64_t presumed_begin_ns(gate_stream *stream, const gate_window *window,
                                  uint64_t waited_ns) {
  uint64_t begin = begin_ns(stream, window), started, wrong;
  if (!window->start || waited_ns <= gate_latest_ns(window, begin) + LATE_NS) return begin;
  CUstreamCaptureMode mode = gate_relax();
  bool known = gate_clock_place(stream, window->start, &started, &wrong);
  gate_restore(mode);
  gate_called(stream, 1);
  return known ? later(begin, started) : begin;
}

void gate_settle_presumed(gate_state *state, gate_stream *stream, gate_window *window,
                          uint64_t waited_ns) {
  uint64_t begin = presumed_begin_ns(stream, window, waited_ns), cost = gate_learned_ns(window);
  interval own = {.begin_ns = begin};
  uint64_t released_ns = gate_release_after(window->opened_ns);
  if (released_ns) waited_ns = earlier(waited_ns, released_ns); /* it ended by then */
  window->waited = waited_ns != 0;
  uint64_t seen_ns = waited_ns ? seen_end(state, stream, window, waited_ns) : 0;
  if (seen_ns && gate_is_asked(state, stream)) {
    own.end_ns = later(begin, seen_ns); /* there is no better measure */
    learn_asked(state, stream, window, own.end_ns - begin);
  } else if (waited_ns) {
    waited_ns = without_hold_up(state, stream, window, begin, waited_ns);
    own = by_wait(state, stream, window, begin, waited_ns);
  } else {
    own.end_ns = unseen_end(window, begin, cost);
    uint64_t now_ns = gate_tick_ns();
    if (own.end_ns > begin + cost + UNCLEAR_NS) stream->unclear_ns = now_ns;
    if (gate_is_unseen_pause(own.end_ns, now_ns)) {
      __atomic_store_n(&state->unseen_ns, now_ns, __ATOMIC_RELAXED);
    }
  }
  if (released_ns) own.end_ns = later(own.begin_ns, earlier(own.end_ns, released_ns));
  if (gate_is_contended(state, stream, window)) {
    uint64_t end_ns = seen_ns ? later(waited_ns, begin) : own.end_ns;
    gate_charge_contended(state, stream, window, begin, waited_ns ? end_ns : begin, cost);
  } else if (!waited_ns && is_behind_a_wait(window)) {
    gate_charge_somewhere(state, stream, own.end_ns - own.begin_ns);
  } else if (own.end_ns > own.begin_ns) {
    gate_charge(state, stream, own.begin_ns, own.end_ns, window->cost_ns);
  }
  finish(state, stream, window, own.end_ns, false);
}

/* A window's interval as measured by its events. */
typedef struct measure {
  uint64_t begin_ns;
  uint64_t end_ns;
  uint64_t passed_ns; /* time at which the device passed the end, on the host's clock */
  uint64_t wrong_ns;  /* possible error of `passed_ns` */
  bool exact;         /* the length of the interval is exact */
} measure;

static bool measure_sample(gate_stream *stream, const gate_window *window, uint64_t waited_ns,
                           measure *out) {
  int64_t elapsed;
  if (!gate_elapsed_ns(window->start, window->end, &elapsed) || elapsed < 0) return false;
  uint64_t between = gate_clock_passed_ns(stream, (uint64_t)elapsed, &out->wrong_ns);
  uint64_t told = gate_marker_told_ns(window->start);
  uint64_t lead = window->opened_ns - told + GATE_START_NS;
  uint64_t length = between > lead ? between - lead : SHORTEST_NS;
  out->begin_ns = window->opened_ns + GATE_START_NS;
  out->end_ns = out->begin_ns + length;
  out->passed_ns = told + between;
  /* The start may have been passed long before. */
  if (waited_ns && gate_marker_is_slow(window->start)) {
    out->end_ns = later(out->begin_ns + SHORTEST_NS, earlier(out->end_ns, waited_ns));
  }
  out->exact = window->held_ns <= length / HELD_UP_PART;
  return true;
}

/* Returns true if the device passed the end before the call that recorded it returned. The device
 * may then have received the event late, because the call was held up. */
static bool is_late(const gate_marker *end, const measure *seen) {
  uint64_t slack = gate_marker_is_slow(end) ? LOOSE_NS + seen->wrong_ns : 0;
  return end->took_ns > LOOSE_NS && seen->passed_ns < end->recorded_ns + end->took_ns + slack;
}

/* Counts up for a late end of any stream and down for any other end. Returns the count before the
 * change. */
static uint32_t note_late(gate_state *state, bool late) {
  uint32_t before = __atomic_load_n(&state->late_ends, __ATOMIC_RELAXED), after = before + 1;
  if (!late) after = before ? before - 1 : 0;
  __atomic_store_n(&state->late_ends, after < LATE_ENDS_MOST ? after : LATE_ENDS_MOST,
                   __ATOMIC_RELAXED);
  return before;
}

/* Returns how much later the window may have started because the host was held up before it
 * recorded the end. A stall does not count if as much work was still queued at its end, because a
 * call that waits for room in the queue takes long as well. Nor does it count if the window before
 * stalled too, because calls then take long while the device works. */
static uint64_t late_begin_ns(gate_stream *stream, const gate_window *window, const measure *seen) {
  uint64_t late = window->held_ns, since = window->counted_ns, until = window->end->recorded_ns;
  uint64_t stall = since && until > since + GATE_STALL_NS ? until - since : 0;
  if (seen->end_ns <= gate_marker_told_ns(window->end) + stall) late += stall;
  bool again = stream->stalled;
  stream->stalled = late >= GATE_STALL_NS;
  return again && stream->stalled ? 0 : late;
}

/* Returns true if the device passed the window's start as soon as it received it, and so before the
 * launch. The window is then as good as a sample, although the stream was not known to be idle. */
static bool was_idle(const gate_window *window, uint64_t passed_ns, uint64_t wrong_ns) {
  return passed_ns < window->opened_ns + GATE_START_NS &&
         passed_ns < gate_marker_told_ns(window->start) + wrong_ns;
}

static bool measure_by_clock(gate_stream *stream, const gate_window *window, uint64_t waited_ns,
                             measure *out) {
  int64_t between;
  if (!gate_clock_place(stream, window->end, &out->end_ns, &out->wrong_ns)) return false;
  out->begin_ns = begin_ns(stream, window);
  out->exact = stream->exact && out->begin_ns == stream->last_end_ns && !window->lost;
  if (window->start && gate_elapsed_ns(window->start, window->end, &between) && between >= 0) {
    uint64_t since = out->end_ns - (uint64_t)between; /* time at which `start` was passed */
    bool idle = was_idle(window, since, out->wrong_ns);
    if (idle) {
      uint64_t end_ns = out->end_ns; /* the clock may show better how late the start was passed */
      if (!measure_sample(stream, window, waited_ns, out)) return false;
      out->end_ns = later(out->end_ns, end_ns);
      return true;
    }
    /* Earlier work had ended by then, whatever was presumed. */
    out->begin_ns = later(since, window->opened_ns + GATE_START_NS);
    out->exact = out->begin_ns == since;
  }
  out->passed_ns = out->end_ns;
  out->exact = out->exact || (out->end_ns > out->begin_ns + SHORT_NS && !window->lost);
  return out->end_ns > out->begin_ns;
}

/* Learns how long a wait takes to return after the stream's end. The learned time follows the
 * median, because the host is held up now and then, more often after it slept at the gate. */
static void note_wake(gate_state *state, uint64_t wake_ns) {
  enum { STEP_NS = 100, FIRST_NS = 1500 };
  uint64_t before = __atomic_load_n(&state->wake_ns, __ATOMIC_RELAXED);
  if (!before) before = FIRST_NS;
  uint64_t after = wake_ns > before ? before + STEP_NS : before > STEP_NS ? before - STEP_NS : 1;
  __atomic_store_n(&state->wake_ns, earlier(after, GATE_LONGEST_WAKE_NS), __ATOMIC_RELAXED);
}

/* Raises the cost of a window that has launches of this kind only to its learned cost, and
 * returns the difference. Windows of unknown kinds have a single kind. The caller holds the
 * stream's lock. */
static uint64_t raise_one(gate_window *window, const gate_kind *kind) {
  const gate_part *part = &window->parts[0];
  if (window->part_count != 1 || window->rest_ns) return 0;
  if (part->kind != kind || gate_kind_is_gone(kind, part->generation)) return 0;
  uint64_t cost = gate_learned_ns(window);
  uint64_t more = cost > window->cost_ns ? cost - window->cost_ns : 0;
  window->cost_ns += more;
  window->estimate_ns += more;
  return more;
}

/* Raises the estimates of a stream's windows. The slot's estimate is raised before the lock is
 * released, because another thread can settle the windows after that. */
static void raise_on(penstock_gate_slot *slot, gate_stream *stream, const gate_kind *kind) {
  penstock_lock_acquire(&stream->lock);
  uint64_t more = stream->open ? raise_one(stream->open, kind) : 0;
  for (gate_window *one = stream->oldest; one; one = one->next) more += raise_one(one, kind);
  if (more) {
    stream->queued_ns += more;
    stream->drained_ns += more;
    __atomic_fetch_add(&slot->estimate_ns, more, __ATOMIC_RELAXED);
  }
  penstock_lock_release(&stream->lock);
}

/* Raises the estimates of a kind's queued launches on all streams of the device after the kind was
 * measured for the first time. These estimates were guesses, and otherwise the gate would not know
 * how much work is unfinished. */
static void raise_estimates(gate_state *state, int grant, const gate_window *first) {
  penstock_process *process = penstock_process_get();
  const gate_kind *kind = first->part_count == 1 ? first->parts[0].kind : NULL;
  if (!process || grant < 0 || !kind || !penstock_cost_ns(&kind->cost, 0)) return;
  penstock_gate_slot *slot = gate_slot(
      process, state, grant); /* called before the locks are taken because it can claim a slot */
  for (unsigned i = 0; i < GATE_LISTS; i++) {
    if (!__atomic_load_n(&state->streams[i], __ATOMIC_RELAXED)) continue;
    penstock_lock_acquire(&state->lock);
    for (gate_stream *stream = state->streams[i]; stream; stream = stream->next) {
      if (stream->context->grant == grant) raise_on(slot, stream, kind);
    }
    penstock_lock_release(&state->lock);
  }
}

/* Returns when the last overdraft launch was admitted while the window ran, which may have waited
 * for it, or 0 if there was none. */
static uint64_t let_go_ns(const gate_state *state, int grant, const measure *seen) {
  uint64_t ns = __atomic_load_n(&state->let_go_ns[grant], __ATOMIC_RELAXED);
  return ns > seen->begin_ns && ns < seen->end_ns ? ns : 0;
}

/* Returns true if the window's launches may have waited for a launch at the gate, which is the
 * case if an overdraft launch was admitted while they ran or if their device opens together with
 * others. */
static bool may_have_waited(const gate_state *state, const gate_stream *stream,
                            const measure *seen) {
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  if (!process || grant < 0) return false;
  return let_go_ns(state, grant, seen) ||
         penstock_gate_is_together(gate_device(process, grant), gate_tick_ns());
}

/* Returns the time that the window's launches took by themselves, as far as known, without waiting
 * for late launches. */
static uint64_t unheld_ns(const gate_state *state, const gate_stream *stream,
                          const gate_window *window, const measure *seen) {
  uint64_t length_ns = seen->end_ns - seen->begin_ns, usual = gate_usual_ns(window);
  if (usual == UINT64_MAX || !may_have_waited(state, stream, seen)) return length_ns;
  uint64_t went_ns = let_go_ns(state, stream->context->grant, seen);
  if (went_ns) return earlier(length_ns, later(usual, seen->end_ns - went_ns));
  return earlier(length_ns, usual + usual / 2 + SHORT_NS);
}

/* Returns the first measurement of a kind. If the launches may have waited, it is the typical cost
 * or, if longer, the time that they took after the last overdraft launch was admitted. */
static uint64_t first_ns(gate_state *state, const gate_stream *stream, const gate_window *window,
                         const measure *seen, uint64_t length_ns) {
  if (!window->part_count || !may_have_waited(state, stream, seen)) return length_ns;
  uint64_t likely = gate_likely_ns(state, window->parts[0].kind) * window->launches;
  uint64_t went_ns = let_go_ns(state, stream->context->grant, seen);
  return earlier(length_ns, later(likely, went_ns ? seen->end_ns - went_ns : 0));
}

void gate_settle_measured(gate_state *state, gate_stream *stream, gate_window *window,
                          uint64_t waited_ns) {
  measure seen;
  uint64_t released_ns = gate_release_after(window->opened_ns);
  if (released_ns) waited_ns = earlier(waited_ns, released_ns); /* it ended by then */
  window->waited = waited_ns != 0;
  if (!window->end || !window->ended) {
    gate_settle_presumed(state, stream, window, waited_ns);
    return;
  }
  CUstreamCaptureMode mode = gate_relax();
  bool measured = window->sample ? measure_sample(stream, window, waited_ns, &seen)
                                 : measure_by_clock(stream, window, waited_ns, &seen);
  gate_called(stream, window->start && !window->sample ? 2 : 1);
  gate_restore(mode);
  if (measured && released_ns && seen.end_ns > released_ns) {
    seen.end_ns = released_ns;
    seen.exact = false;
    measured = seen.end_ns > seen.begin_ns;
  }
  if (!measured) {
    gate_settle_presumed(state, stream, window, waited_ns);
    return;
  }
  uint64_t loose_ns =
      LOOSE_NS + seen.wrong_ns + long_over_ns(stream, window, window->end->recorded_ns);
  bool known = is_measured(window), loose = seen.passed_ns < window->end->recorded_ns + loose_ns;
  bool late_end = !loose && is_late(window->end, &seen);
  if (state->launches_block) { /* ends are recorded on idle streams, after long calls */
    window->held_ns = window->counted_ns = 0;
    loose = late_end = false;
  }
  /* A late end of a window that is only watched is neither counted nor used. */
  uint32_t late_before = loose || window->watched ? 0 : note_late(state, late_end);
  /* If there are more late ends, lateness is normal for the driver. */
  bool by_chance = late_end && !late_before;
  if (by_chance && known) {
    gate_settle_presumed(state, stream, window, waited_ns);
    return;
  }
  uint64_t length = seen.end_ns - seen.begin_ns, cost = gate_learned_ns(window);
  uint64_t late = late_begin_ns(stream, window, &seen), least = length - earlier(length, late);
  bool stalled = late >= GATE_STALL_NS;
  if (window->ended != window->launches) { /* the end may be before the last launch */
    if (loose || stalled || length <= cost) {
      gate_settle_presumed(state, stream, window, waited_ns);
      return;
    }
    /* The launches take longer than learned, at least by this much on average. For an unknown
     * kind that would be too low, so the measured length is assumed to contain only the first
     * launches. */
    if (!known) length = length * window->launches / window->ended;
  }
  bool contended = gate_is_contended(state, stream, window);
  if (!known) {
    bool vague = loose || stalled || by_chance;
    uint64_t most = vague ? earlier(length, GATE_UNKNOWN_NS * window->launches) : length;
    most = first_ns(state, stream, window, &seen, most);
    if (stalled) most = later(least, most);
    gate_learn(state, window, most, true, gate_now_ns());
    if (most < length) gate_doubt_first(state, window);
    raise_estimates(state, stream->context->grant, window);
  } else if (seen.exact && !loose && !stalled &&
             (!late_end || late_before >= LATE_ENDS_EACH_TIME)) {
    gate_learn(state, window, unheld_ns(state, stream, window, &seen), contended, gate_now_ns());
  }
  cost = known ? cost : gate_learned_ns(window);
  if (loose || late) stream->prompt = true;
  if (loose) {
    seen.end_ns = earlier(seen.end_ns, seen.begin_ns + cost);
  } else if (late) {
    seen.begin_ns = seen.end_ns - later(earlier(length, cost), least);
  } else if (window->sample && !contended && waited_since_ns(stream) < seen.end_ns &&
             waited_ns > seen.end_ns) {
    note_wake(state, waited_ns - seen.end_ns);
  }
  if (contended) {
    /* The smaller of both would on average be too low, so it is used only for unsure costs. */
    bool sure = of_all_kinds(window, penstock_cost_is_sure);
    uint64_t due = sure ? cost : earlier(cost, length);
    gate_charge_contended(state, stream, window, seen.begin_ns, seen.end_ns, due);
  } else {
    gate_charge(state, stream, seen.begin_ns, seen.end_ns, window->cost_ns);
  }
  finish(state, stream, window, seen.end_ns, !loose);
}
