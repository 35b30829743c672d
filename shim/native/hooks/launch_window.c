/* Opening and ending of timing windows. The caller holds the stream's `working` flag, and no
 * lock. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "mechanism/starved.h"

/* This many windows must be ended by events before the stream no longer counts as left open. */
#define LEFT_OPEN 16
/* Time after which a busy stream is queried again. */
#define ASK_AGAIN_NS 300000
#define ASK_LATER_NS 1000000

static bool claim(gate_stream *stream, bool only_busy) {
  penstock_lock_acquire(&stream->lock);
  bool busy = stream->oldest || stream->open || stream->stray_launches || stream->arrears.count;
  bool mine = (busy || !only_busy) && !stream->working && !stream->dead;
  if (mine) stream->working = true;
  penstock_lock_release(&stream->lock);
  return mine;
}

bool gate_stream_claim(gate_stream *stream) { return claim(stream, false); }
bool gate_stream_claim_busy(gate_stream *stream) { return claim(stream, true); }

void gate_stream_release(gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  stream->working = false;
  penstock_lock_release(&stream->lock);
}

uint64_t gate_stream_entering(const gate_stream *stream) {
  uint64_t left = __atomic_load_n(&stream->left, __ATOMIC_ACQUIRE);
  return stream->launched > left ? stream->launched - left : 0;
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Notes the time from which on other processes charge the work if this process dies before it
 * settles the work. */
static void note_unsettled(penstock_gate_slot *slot, uint64_t now_ns) {
  uint64_t submitted = __atomic_load_n(&slot->submitted, __ATOMIC_RELAXED);
  if (!__atomic_load_n(&slot->unsettled_since_ns, __ATOMIC_RELAXED) ||
      submitted == __atomic_load_n(&slot->done, __ATOMIC_RELAXED)) {
    __atomic_store_n(&slot->unsettled_since_ns, now_ns, __ATOMIC_RELAXED);
  }
}

static gate_window *window_make(gate_state *state, const gate_stream *stream, uint64_t now_ns) {
  gate_window *window = gate_window_get(state);
  if (!window) return NULL;
  int grant = stream->context->grant;
  penstock_process *process = penstock_process_get();
  if (process) {
    window->contended = gate_others_ns(process, state, grant, now_ns) != 0;
    window->calibrating = gate_calibration_is_ours(process, grant, now_ns);
    penstock_gate_slot *slot = gate_slot(process, state, grant);
    note_unsettled(slot, now_ns);
    __atomic_fetch_add(&slot->submitted, 1, __ATOMIC_RELAXED);
  }
  window->opened_ns = now_ns;
  return window;
}

/* Publishes a window, in which launches are counted from now on, starting with the strays. The
 * strays may have been queued before the window's start was recorded, so with strays the start is
 * useless. */
static void publish(gate_stream *stream, gate_window *window, bool sample, bool interrupted) {
  gate_marker *vain = NULL;
  penstock_lock_acquire(&stream->lock);
  if (stream->stray_launches) {
    vain = window->start;
    window->start = NULL;
    window->opened_ns = earlier(window->opened_ns, stream->stray_since_ns);
  }
  window->sample = sample && window->start && !interrupted;
  window->lost = interrupted && !window->start;
  window->number = ++stream->number;
  window->estimate_ns = stream->stray_ns;
  window->cost_ns = window->rest_ns = stream->stray_cost_ns;
  window->launches = stream->stray_launches;
  stream->stray_ns = stream->stray_cost_ns = 0;
  stream->stray_launches = 0;
  stream->open = window;
  penstock_lock_release(&stream->lock);
  gate_marker_put(stream->context, vain);
}

void gate_window_adopt(gate_state *state, gate_stream *stream, uint64_t now_ns) {
  penstock_lock_acquire(&stream->lock);
  bool due = stream->stray_launches && !stream->open;
  penstock_lock_release(&stream->lock);
  gate_window *window = due ? window_make(state, stream, now_ns) : NULL;
  if (!window) return;
  bool interrupted = __atomic_exchange_n(&stream->interrupted, false, __ATOMIC_RELAXED);
  publish(stream, window, false, interrupted);
}

void gate_window_open(gate_state *state, gate_stream *stream, bool sample, uint64_t now_ns) {
  gate_window *window = window_make(state, stream, now_ns);
  if (!window) return;
  penstock_starved_begin(now_ns);
  gate_clock_renew(stream, now_ns);
  bool interrupted = __atomic_exchange_n(&stream->interrupted, false, __ATOMIC_RELAXED);
  if (sample) {
    window->start = gate_marker_record_promptly(stream, stream->handle);
  } else if (interrupted && gate_may_mark(state, stream)) {
    /* This costs one call for each such call of the program, whatever the budget, because otherwise
     * a long wait cannot be distinguished from long work. */
    window->start = gate_marker_record(stream->context, stream->handle);
  }
  window->opened_ns = gate_now_ns(); /* taken after the shim's own calls */
  publish(stream, window, sample, interrupted);
}

/* Returns true if the stream should have run dry after the open window or its strays, according to
 * learned costs. Returns false while a thread waits for the stream, because overrunning work must
 * not be presumed to have ended. `asked` is true if the driver will be queried. The first query
 * comes soon after the window was opened, because costs learned from late replies would make later
 * queries late as well. */
static bool is_past(gate_stream *stream, bool asked, uint64_t now_ns) {
  penstock_lock_acquire(&stream->lock);
  if (asked && stream->open && !stream->newest && !stream->waiters) {
    uint64_t first_ns = stream->open->opened_ns + ASK_AGAIN_NS;
    bool again = stream->asked_at == stream->number;
    bool due = now_ns > (again ? stream->drained_ns : first_ns);
    penstock_lock_release(&stream->lock);
    return due;
  }
  uint64_t cost_ns = stream->open ? stream->open->cost_ns : stream->stray_cost_ns;
  bool past = (stream->open || stream->stray_launches) && !stream->newest && !stream->waiters &&
              now_ns > stream->drained_ns + GATE_DRY_SLACK_NS + cost_ns / 8;
  penstock_lock_release(&stream->lock);
  return past;
}

/* Returns the number of launches in the window so far; other threads' launches may still join.
 * `*made` receives how many of their driver calls have certainly returned. */
static uint32_t launches_in(gate_stream *stream, const gate_window *window, uint32_t *made) {
  penstock_lock_acquire(&stream->lock);
  uint32_t launches = window->launches;
  *made = launches - (uint32_t)earlier(launches, gate_stream_entering(stream));
  penstock_lock_release(&stream->lock);
  return launches;
}

static gate_window *take_open(gate_stream *stream, bool queue) {
  penstock_lock_acquire(&stream->lock);
  gate_window *window = stream->open;
  stream->open = NULL;
  if (window && queue) {
    *(stream->newest ? &stream->newest->next : &stream->oldest) = window;
    stream->newest = window;
  }
  penstock_lock_release(&stream->lock);
  return window;
}

/* Notes that a window was settled whose end the device has passed. If nothing is queued after it,
 * the stream is dry, whatever its learned cost said. */
static void note_idle(gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  bool none = !stream->oldest && !stream->open && !stream->stray_launches;
  if (none && !gate_stream_entering(stream)) {
    stream->idle = true;
    stream->drained_ns = earlier(stream->drained_ns, stream->last_end_ns);
  }
  penstock_lock_release(&stream->lock);
}

void gate_window_presume(gate_state *state, gate_stream *stream) {
  gate_window *window = take_open(stream, false);
  if (!window) return;
  if (window->sample) stream->prompt = true;
  stream->left_open = LEFT_OPEN;
  gate_settle_presumed(state, stream, window, 0);
}

void gate_window_roll(gate_state *state, gate_stream *stream) {
  uint32_t made;
  gate_window *window = stream->open;
  if (!window || (launches_in(stream, window, &made) == window->ended && window->end)) return;
  gate_marker_put(stream->context, window->end);
  window->end = NULL;
  if (!gate_may_mark(state, stream)) return;
  window->ended = made;
  window->end = gate_marker_record(stream->context, stream->handle);
  gate_called(stream, 1);
}

/* An end after only some of the launches would measure too little. */
void gate_window_unwatch(gate_stream *stream) {
  gate_window *window = stream->open;
  gate_marker_put(stream->context, window->end);
  window->end = NULL;
  penstock_lock_acquire(&stream->lock); /* other threads' launches join the window */
  window->rolling = false;
  window->held_ns = 0;
  penstock_lock_release(&stream->lock);
}

void gate_window_end(gate_state *state, gate_stream *stream, bool word) {
  gate_window *window = stream->open;
  if (!window) return;
  gate_window_roll(state, stream);
  if (!window->end || !gate_may_mark(state, stream)) {
    if (!gate_is_asked(state, stream)) gate_window_presume(state, stream);
    return;
  }
  if (stream->left_open) stream->left_open--;
  if (word) {
    gate_word_write(stream, window);
    gate_called(stream, 1);
  }
  window->by_event = !word; /* with another thread's launches the wait may not show the end */
  take_open(stream, true);
}

/* Queries the driver whether the stream has run dry, if no event may be recorded. Returns false if
 * the driver cannot be queried here. A window that is still running stays open. */
static bool ask(gate_state *state, gate_stream *stream, bool handle_is_ours, uint64_t now_ns) {
  if (!gate_is_asked(state, stream) || !handle_is_ours || gate_is_capturing(state, stream)) {
    return false;
  }
  if (!gate_may_call(stream, now_ns, 1, 0)) { /* query later, because without a reply the work must
                                                 not be presumed to have ended */
    penstock_lock_acquire(&stream->lock);
    stream->drained_ns = now_ns + ASK_LATER_NS;
    penstock_lock_release(&stream->lock);
    return true;
  }
  penstock_lock_acquire(&stream->lock);
  uint64_t launched = stream->launched, entering = gate_stream_entering(stream);
  penstock_lock_release(&stream->lock);
  CUstreamCaptureMode mode = gate_relax();
  bool busy = entering || REAL(cuStreamQuery)(stream->handle) == CUDA_ERROR_NOT_READY;
  gate_restore(mode);
  gate_called(stream, 1);
  penstock_lock_acquire(&stream->lock);
  busy = busy || stream->launched != launched;
  bool was_busy = stream->asked_at == stream->number;
  if (busy) {
    stream->asked_at = stream->number;
    uint64_t since_ns = stream->open ? now_ns - stream->open->opened_ns : 0;
    stream->drained_ns = now_ns + later(since_ns / 16, ASK_AGAIN_NS);
  }
  if (!stream->waiters && (busy || !was_busy)) stream->waited_since_ns = now_ns;
  penstock_lock_release(&stream->lock);
  if (!busy) gate_window_drained(state, stream, gate_now_ns());
  return true;
}

void gate_window_close(gate_state *state, gate_stream *stream, bool handle_is_ours) {
  uint32_t made;
  gate_window *window = stream->open;
  if (!window) return;
  if (!window->end || window->ended != launches_in(stream, window, &made)) {
    if (!window->end && ask(state, stream, handle_is_ours, gate_now_ns())) return;
    gate_window_presume(state, stream);
    return;
  }
  gate_called(stream, 1);
  if (gate_marker_is_passed(window->end)) {
    take_open(stream, false);
    gate_settle_measured(state, stream, window, 0);
    note_idle(stream);
  } else if (handle_is_ours) { /* the window overruns */
    gate_window_end(state, stream, true);
  } else {
    window->by_event = true;
    take_open(stream, true);
  }
}

static bool handle_is_ours(const gate_stream *stream) {
  CUcontext current = NULL;
  if (!stream->owner) return true;
  return !stream->thread && REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS &&
         stream->owner == current;
}

void gate_window_expire(gate_state *state, gate_stream *stream, uint64_t now_ns) {
  gate_arrears_charge(state, stream);
  if (!is_past(stream, gate_is_asked(state, stream), now_ns)) return;
  gate_window_adopt(state, stream, now_ns);
  gate_window_close(state, stream, handle_is_ours(stream));
}

static gate_window *take_oldest(gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  gate_window *window = stream->oldest;
  if (window) stream->oldest = window->next;
  if (!stream->oldest) stream->newest = NULL;
  penstock_lock_release(&stream->lock);
  return window;
}

void gate_window_settle(gate_state *state, gate_stream *stream) {
  bool any = false;
  while (stream->oldest && gate_is_through(stream, stream->oldest)) {
    gate_settle_measured(state, stream, take_oldest(stream), 0);
    any = true;
  }
  if (any) note_idle(stream);
}

void gate_window_drained(gate_state *state, gate_stream *stream, uint64_t waited_ns) {
  gate_arrears_charge(state, stream);
  for (gate_window *window; (window = take_oldest(stream));) {
    gate_settle_measured(state, stream, window, stream->oldest ? 0 : waited_ns);
  }
  gate_window *open = take_open(stream, false);
  if (open) gate_settle_measured(state, stream, open, waited_ns);
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
  gate_window_adopt(state, stream, gate_now_ns());
  gate_window_end(state, stream, true);
  gate_window_settle(state, stream);
}

static void unmark(gate_context *context, gate_window *window) {
  gate_marker_put(context, window->start);
  gate_marker_put(context, window->end);
  window->start = window->end = NULL;
}

void gate_window_unmark(gate_stream *stream) {
  for (gate_window *window = stream->oldest; window; window = window->next) {
    unmark(stream->context, window);
  }
  if (stream->open) unmark(stream->context, stream->open);
}

void gate_stream_abandon(gate_state *state, gate_stream *stream) {
  gate_arrears_charge(state, stream);
  for (gate_window *window; (window = take_oldest(stream));) {
    gate_settle_presumed(state, stream, window, 0);
  }
  gate_window *open = take_open(stream, false);
  if (open) gate_settle_presumed(state, stream, open, 0);
  penstock_lock_acquire(&stream->lock);
  uint64_t stray_ns = stream->stray_ns;
  uint32_t launches = stream->stray_launches;
  stream->stray_ns = stream->stray_cost_ns = stream->stray_launches = 0;
  penstock_lock_release(&stream->lock);
  gate_give_up(state, stream, stray_ns, launches, 0);
}
