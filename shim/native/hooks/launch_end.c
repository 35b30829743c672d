/* The end of streams and contexts: their last work is settled and their objects are freed for
 * reuse. */
#include <time.h>

#include "hooks/launch_state.h"
#include "mechanism/lock.h"

#define RETRY_NS 20000
/* Longest driver call that another thread makes for a stream. */
#define LONGEST_CLAIM_NS 100000000

void gate_capture_ended(gate_state *state) {
  uint32_t count = __atomic_load_n(&state->captures, __ATOMIC_RELAXED);
  while (count && !__atomic_compare_exchange_n(&state->captures, &count, count - 1, true,
                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

/* Takes `stream` out of use, so that no thread can claim it any more, and waits until no thread has
 * it claimed. Returns false if a thread still has the stream claimed after LONGEST_CLAIM_NS. That
 * thread may have been cancelled in a driver call. Or it is this thread, further up its stack, if
 * the driver ran a callback of the program; waiting longer would then be a deadlock. */
static bool put_out_of_use(gate_state *state, gate_stream *stream) {
  enum { TRIES = LONGEST_CLAIM_NS / RETRY_NS };
  bool busy = true;
  for (unsigned i = 0; busy && i < TRIES; i++) {
    if (i) nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
    penstock_lock_acquire(&stream->lock);
    busy = stream->working;
    stream->dead = true;
    penstock_lock_release(&stream->lock);
  }
  if (__atomic_exchange_n(&stream->captures, false, __ATOMIC_RELAXED)) gate_capture_ended(state);
  return !busy;
}

/* Abandons a stream out of use that a thread still has claimed. The object is not reused, and its
 * work no longer counts as unfinished. */
static void strand(gate_state *state, gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  uint64_t estimate_ns = stream->stray_ns + stream->arrears.estimate_ns;
  stream->stray_ns = stream->arrears.estimate_ns = stream->arrears.count = 0;
  if (stream->open) {
    estimate_ns += stream->open->estimate_ns;
    stream->open->estimate_ns = 0;
  }
  for (gate_window *window = stream->oldest; window; window = window->next) {
    estimate_ns += window->estimate_ns;
    window->estimate_ns = 0;
  }
  penstock_lock_release(&stream->lock);
  gate_give_up(state, stream, estimate_ns, 0, 0);
}

static void stream_free(gate_state *state, gate_stream *stream) {
  gate_word_put(stream->context, stream->word);
  penstock_lock_acquire(&state->lock);
  stream->next = state->free_streams;
  state->free_streams = stream;
  penstock_lock_release(&state->lock);
}

/* Returns true if the handle means this stream in this thread and an event may be recorded on
 * it. */
static bool can_finish(const gate_state *state, const gate_stream *stream) {
  CUcontext current = NULL;
  if (stream->gone || !gate_may_mark(state, stream) || gate_is_capturing(state, stream)) {
    return false;
  }
  if (!stream->owner) return true;
  return !stream->thread && REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS &&
         stream->owner == current;
}

/* Sets a link of a list. The caller holds state->lock. The store is atomic because other threads
 * check without the lock whether a list is empty. */
static void set_link(gate_stream **link, gate_stream *stream) {
  __atomic_store_n(link, stream, __ATOMIC_RELAXED);
}

/* Marks a stream as removed from all tables, so that pointers cached by threads become stale. */
static void note_taken(gate_stream *stream) {
  __atomic_fetch_add(&stream->generation, 1, __ATOMIC_RELEASE);
}

/* Handles the end of a stream. The work of a destroyed stream continues and is settled later, like
 * any other. */
static void stream_goes(gate_state *state, gate_stream *stream) {
  if (!put_out_of_use(state, stream)) {
    strand(state, stream);
    return;
  }
  if (can_finish(state, stream)) {
    gate_stream_finish(state, stream);
  } else {
    gate_window_adopt(state, stream, gate_now_ns());
    gate_window_close(state, stream, false);
  }
  if (!stream->oldest) {
    gate_stream_abandon(state, stream);
    stream_free(state, stream);
    return;
  }
  penstock_lock_acquire(&state->lock);
  stream->gone = true;
  stream->dead = false;
  stream->handle = NULL; /* no lookup finds the stream */
  stream->owner = NULL;
  gate_stream **link = &state->streams[GATE_GONE];
  while (*link) link = &(*link)->next;
  stream->next = NULL;
  set_link(link, stream);
  penstock_lock_release(&state->lock);
}

static bool claim_settled(gate_stream *stream) {
  if (!gate_stream_claim(stream)) return false;
  if (!stream->oldest) return true;
  gate_stream_release(stream);
  return false;
}

void gate_streams_sweep(gate_state *state) {
  while (__atomic_load_n(&state->streams[GATE_GONE], __ATOMIC_RELAXED)) {
    penstock_lock_acquire(&state->lock);
    gate_stream **link = &state->streams[GATE_GONE];
    while (*link && !claim_settled(*link)) link = &(*link)->next;
    gate_stream *stream = *link;
    if (stream) {
      set_link(link, stream->next);
      stream->dead = true;
      note_taken(stream);
    }
    penstock_lock_release(&state->lock);
    if (!stream) return;
    gate_stream_abandon(state, stream);
    stream_free(state, stream);
  }
}

/* Removes the next stream with this handle from the tables. The handle must not be that of a
 * default stream. If the handle is NULL, removes the next stream of the context. */
static gate_stream *take_stream(gate_state *state, CUstream handle, const gate_context *context) {
  gate_stream *stream = NULL;
  unsigned first = handle ? gate_stream_list(handle, NULL, 0) : 0;
  unsigned end = handle ? first + 1 : GATE_LISTS;
  penstock_lock_acquire(&state->lock);
  for (unsigned i = first; i < end && !stream; i++) {
    gate_stream **link = &state->streams[i];
    while (*link &&
           ((*link)->dead || (handle ? (*link)->handle != handle : (*link)->context != context))) {
      link = &(*link)->next;
    }
    stream = *link;
    if (stream) set_link(link, stream->next);
  }
  if (stream) note_taken(stream);
  penstock_lock_release(&state->lock);
  return stream;
}

void gate_stream_retire(gate_state *state, gate_stream *stream) {
  bool found = false;
  penstock_lock_acquire(&state->lock);
  for (unsigned i = 0; i < GATE_GONE && !found; i++) {
    gate_stream **link = &state->streams[i];
    while (*link && *link != stream) link = &(*link)->next;
    found = *link != NULL;
    if (found) set_link(link, stream->next);
  }
  if (found) note_taken(stream);
  penstock_lock_release(&state->lock);
  if (found) stream_goes(state, stream);
}

void penstock_gate_forget_stream(CUstream handle) {
  gate_state *state = gate_state_get();
  if (!state || (uintptr_t)handle <= 2) return;
  for (gate_stream *stream; (stream = take_stream(state, handle, NULL));) {
    stream_goes(state, stream);
  }
  gate_settle_gone(state, gate_now_ns());
}

/* ---- contexts ---- */

/* Claims the context's streams during the driver's call, because before that call it is unknown
 * whether the context will end, and after it the context's events may be gone. Other threads make
 * no driver calls for claimed streams, and count launches as strays. */
static bool hold_streams(gate_state *state, const gate_hold *hold) {
  bool all = true;
  penstock_lock_acquire(&state->lock);
  for (unsigned i = 0; i < GATE_LISTS; i++) {
    for (gate_stream *stream = state->streams[i]; stream; stream = stream->next) {
      if (stream->context != hold->context || stream->held == hold->number) continue;
      if (gate_stream_claim(stream)) {
        stream->held = hold->number;
      } else {
        all = false;
      }
    }
  }
  penstock_lock_release(&state->lock);
  return all;
}

/* Returns the next held stream of the context after `before`, from list `*i` on. */
static gate_stream *next_held(gate_state *state, const gate_hold *hold, unsigned *i,
                              const gate_stream *before) {
  gate_stream *found = NULL;
  penstock_lock_acquire(&state->lock);
  for (; *i < GATE_LISTS && !found; found ? 0 : ++*i) {
    gate_stream *stream = state->streams[*i];
    while (before && stream && stream != before) stream = stream->next;
    if (before && stream) stream = stream->next;
    before = NULL;
    while (stream && stream->held != hold->number) stream = stream->next;
    found = stream;
  }
  penstock_lock_release(&state->lock);
  return found;
}

gate_hold penstock_gate_context_hold(CUcontext handle, bool lives) {
  static uint64_t last;
  enum { TRIES = LONGEST_CLAIM_NS / RETRY_NS };
  gate_hold hold = {.context = NULL};
  gate_state *state = gate_state_get();
  if (!state || !handle) return hold;
  penstock_lock_acquire(&state->lock);
  gate_context *context = state->contexts;
  while (context && context->handle != handle) context = context->next;
  if (context) hold.life = context->life;
  penstock_lock_release(&state->lock);
  if (!context) return hold;
  hold.context = context;
  hold.number = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  for (unsigned i = 0; !hold_streams(state, &hold) && i < TRIES; i++) {
    nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
  }
  hold.since_ns = gate_now_ns();
  unsigned i = 0;
  for (gate_stream *stream = NULL; lives && (stream = next_held(state, &hold, &i, stream));) {
    gate_window_settle(state, stream);
    gate_window_expire(state, stream, hold.since_ns);
  }
  return hold;
}

static void let_go(gate_state *state, const gate_hold *hold) {
  penstock_lock_acquire(&state->lock);
  for (unsigned i = 0; i < GATE_LISTS; i++) {
    for (gate_stream *stream = state->streams[i]; stream; stream = stream->next) {
      if (stream->held != hold->number) continue;
      stream->held = 0;
      gate_stream_release(stream);
    }
  }
  penstock_lock_release(&state->lock);
}

/* Handles a stream whose context is gone, with its events. The stream's work ended when the
 * driver's call returned, as with a program's own wait. */
static void stream_went(gate_state *state, gate_stream *stream, const gate_hold *hold,
                        uint64_t now_ns) {
  penstock_lock_acquire(&stream->lock);
  bool ours = stream->held == hold->number;
  if (ours) {
    stream->dead = true;
    stream->working = false;
    stream->held = 0;
  }
  penstock_lock_release(&stream->lock);
  if (!put_out_of_use(state, stream)) {
    strand(state, stream);
    return;
  }
  gate_window_adopt(state, stream, now_ns);
  gate_window_unmark(stream);
  __atomic_store_n(&stream->waited_since_ns, hold->since_ns, __ATOMIC_RELAXED);
  gate_window_drained(state, stream, now_ns);
  gate_stream_abandon(state, stream);
  stream_free(state, stream);
}

void penstock_gate_context_let_go(gate_hold hold, bool gone) {
  gate_state *state = hold.context ? gate_state_get() : NULL;
  if (!state) return;
  if (!gone) {
    let_go(state, &hold);
    return;
  }
  penstock_lock_acquire(&state->lock);
  bool first = hold.context->life == hold.life && hold.context->handle != GATE_LEAVING;
  if (first) __atomic_store_n(&hold.context->handle, GATE_LEAVING, __ATOMIC_RELEASE);
  penstock_lock_release(&state->lock);
  if (!first) { /* another thread's call also ended the context, and has removed its streams */
    let_go(state, &hold);
    return;
  }
  uint64_t now_ns = gate_now_ns();
  for (gate_stream *stream; (stream = take_stream(state, NULL, hold.context));) {
    stream_went(state, stream, &hold, now_ns);
  }
  gate_context_clear(hold.context);
  hold.context->life++;
  __atomic_store_n(&hold.context->handle, NULL, __ATOMIC_RELEASE);
}
