/* Brackets opened and ended. The caller holds the stream's `working` flag, and no lock. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "mechanism/starved.h"

/* So many brackets must be ended by events before a stream counts as one that fills them. */
#define LEFT_OPEN 16
/* How soon to ask again for a stream that is busy. */
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

/* What others charge should this process end before it settles. */
static void note_unsettled(penstock_gate_slot *slot, uint64_t now_ns) {
  uint64_t submitted = __atomic_load_n(&slot->submitted, __ATOMIC_RELAXED);
  if (!__atomic_load_n(&slot->unsettled_since_ns, __ATOMIC_RELAXED) ||
      submitted == __atomic_load_n(&slot->done, __ATOMIC_RELAXED)) {
    __atomic_store_n(&slot->unsettled_since_ns, now_ns, __ATOMIC_RELAXED);
  }
}

static gate_bracket *bracket_make(gate_state *state, const gate_stream *stream, uint64_t now_ns) {
  gate_bracket *bracket = gate_bracket_get(state);
  if (!bracket) return NULL;
  int grant = stream->context->grant;
  penstock_process *process = penstock_process_get();
  if (process) {
    bracket->crowd = gate_others_ns(process, state, grant, now_ns) != 0;
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
  penstock_starved_begin(now_ns);
  gate_clock_renew(stream, now_ns);
  bool interrupted = __atomic_exchange_n(&stream->interrupted, false, __ATOMIC_RELAXED);
  if (sample) {
    bracket->start = gate_marker_record_promptly(stream, stream->handle);
  } else if (interrupted && gate_may_mark(state, stream)) {
    /* One call for one of the program's own, whatever the budget: else nobody could tell a long
     * wait from long work. */
    bracket->start = gate_marker_record(stream->context, stream->handle);
  }
  bracket->opened_ns = gate_now_ns(); /* what was done here is not the launch's */
  publish(stream, bracket, sample, interrupted);
}

/* Has the stream run dry behind the open bracket or its strays, by experience? While a thread waits
 * for the stream it has not: work that runs on longer than it should must not pass for through.
 * `asked`: the driver will be asked, soon after the bracket was opened for the first time, for what
 * was learned from late answers would else make the next ones late. */
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
  gate_settle_presumed(state, stream, bracket, 0);
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

/* An end that lies behind some of the launches only would tell too little. */
void gate_bracket_unwatch(gate_stream *stream) {
  gate_bracket *bracket = stream->open;
  gate_marker_put(stream->context, bracket->end);
  bracket->end = NULL;
  penstock_lock_acquire(&stream->lock); /* other threads' launches join it */
  bracket->rolling = false;
  bracket->held_ns = 0;
  penstock_lock_release(&stream->lock);
}

void gate_bracket_end(gate_state *state, gate_stream *stream, bool word) {
  gate_bracket *bracket = stream->open;
  if (!bracket) return;
  gate_bracket_roll(state, stream);
  if (!bracket->end || !gate_may_mark(state, stream)) {
    if (!gate_is_asked(state, stream)) gate_bracket_presume(state, stream);
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

/* Asks the driver whether the stream has run dry, where no event may tell. False: that cannot be
 * asked here. A bracket that is still running stays open. */
static bool ask(gate_state *state, gate_stream *stream, bool handle_is_ours, uint64_t now_ns) {
  if (!gate_is_asked(state, stream) || !handle_is_ours || gate_is_capturing(state, stream)) {
    return false;
  }
  if (!gate_may_call(stream, now_ns, 1, 0)) { /* later: what is not seen must not pass for over */
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
  if (!busy) gate_bracket_drained(state, stream, gate_now_ns());
  return true;
}

void gate_bracket_close(gate_state *state, gate_stream *stream, bool handle_is_ours) {
  uint32_t made;
  gate_bracket *bracket = stream->open;
  if (!bracket) return;
  if (!bracket->end || bracket->ended != launches_in(stream, bracket, &made)) {
    if (!bracket->end && ask(state, stream, handle_is_ours, gate_now_ns())) return;
    gate_bracket_presume(state, stream);
    return;
  }
  gate_called(stream, 1);
  if (gate_marker_is_passed(bracket->end)) {
    take_open(stream, false);
    gate_settle_measured(state, stream, bracket, 0);
    note_idle(stream);
  } else if (handle_is_ours) { /* it takes longer than it should */
    gate_bracket_end(state, stream, true);
  } else {
    bracket->by_event = true;
    take_open(stream, true);
  }
}

static bool handle_is_ours(const gate_stream *stream) {
  CUcontext current = NULL;
  if (!stream->owner) return true;
  return !stream->thread && REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS &&
         stream->owner == current;
}

void gate_bracket_expire(gate_state *state, gate_stream *stream, uint64_t now_ns) {
  gate_arrears_charge(state, stream);
  if (!is_past(stream, gate_is_asked(state, stream), now_ns)) return;
  gate_bracket_adopt(state, stream, now_ns);
  gate_bracket_close(state, stream, handle_is_ours(stream));
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
    gate_settle_measured(state, stream, take_oldest(stream), 0);
    any = true;
  }
  if (any) note_idle(stream);
}

void gate_bracket_drained(gate_state *state, gate_stream *stream, uint64_t waited_ns) {
  gate_arrears_charge(state, stream);
  for (gate_bracket *bracket; (bracket = take_oldest(stream));) {
    gate_settle_measured(state, stream, bracket, stream->oldest ? 0 : waited_ns);
  }
  gate_bracket *open = take_open(stream, false);
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
  gate_arrears_charge(state, stream);
  for (gate_bracket *bracket; (bracket = take_oldest(stream));) {
    gate_settle_presumed(state, stream, bracket, 0);
  }
  gate_bracket *open = take_open(stream, false);
  if (open) gate_settle_presumed(state, stream, open, 0);
  penstock_lock_acquire(&stream->lock);
  uint64_t stray_ns = stream->stray_ns;
  uint32_t launches = stream->stray_launches;
  stream->stray_ns = stream->stray_cost_ns = stream->stray_launches = 0;
  penstock_lock_release(&stream->lock);
  gate_give_up(state, stream, stray_ns, launches, 0);
}
