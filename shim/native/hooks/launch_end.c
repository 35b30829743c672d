/* The end of streams and contexts: their last work is settled, their places are reused. */
#include <time.h>

#include "hooks/launch_state.h"
#include "mechanism/lock.h"

void gate_capture_ended(gate_state *state) {
  uint32_t count = __atomic_load_n(&state->captures, __ATOMIC_RELAXED);
  while (count && !__atomic_compare_exchange_n(&state->captures, &count, count - 1, true,
                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

/* Takes `stream` out of use: nobody finds it any more, nobody works on it. */
static void put_out_of_use(gate_state *state, gate_stream *stream) {
  for (;;) {
    penstock_lock_acquire(&stream->lock);
    bool busy = stream->working;
    stream->dead = true;
    penstock_lock_release(&stream->lock);
    if (!busy) break;
    nanosleep(&(struct timespec){0, 20000}, NULL);
  }
  if (__atomic_exchange_n(&stream->captures, false, __ATOMIC_RELAXED)) gate_capture_ended(state);
}

static void stream_free(gate_state *state, gate_stream *stream) {
  gate_word_put(stream->context, stream->word);
  penstock_lock_acquire(&state->lock);
  stream->next = state->free_streams;
  state->free_streams = stream;
  penstock_lock_release(&state->lock);
}

/* Does the handle mean this stream in this thread, and may it be marked? */
static bool can_finish(const gate_state *state, const gate_stream *stream) {
  CUcontext current = NULL;
  if (stream->gone || !gate_may_mark(state, stream) || gate_is_capturing(state, stream)) {
    return false;
  }
  if (!stream->owner) return true;
  return !stream->thread && REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS &&
         stream->owner == current;
}

/* By whoever holds the lock. Whether a list is empty is also asked without it. */
static void set_link(gate_stream **link, gate_stream *stream) {
  __atomic_store_n(link, stream, __ATOMIC_RELAXED);
}

/* It is in no table any more: what threads remember of it is stale. */
static void note_taken(gate_stream *stream) {
  __atomic_fetch_add(&stream->generation, 1, __ATOMIC_RELEASE);
}

/* A stream's work runs on when it is destroyed: it is settled later, like any other. */
static void stream_goes(gate_state *state, gate_stream *stream) {
  put_out_of_use(state, stream);
  if (can_finish(state, stream)) {
    gate_stream_finish(state, stream);
  } else {
    gate_bracket_adopt(state, stream, gate_now_ns());
    gate_bracket_close(state, stream, false);
  }
  if (!stream->oldest) {
    gate_stream_abandon(state, stream);
    stream_free(state, stream);
    return;
  }
  penstock_lock_acquire(&state->lock);
  stream->gone = true;
  stream->dead = false;
  stream->handle = NULL; /* no lookup finds it */
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

/* Takes the next stream with this handle, which is no default stream's (NULL: of this context), out
 * of the tables. */
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

/* The events go with the context: what they would have told is learned from when the driver
 * returns, as from a program's own wait. */
static void stream_leaves(gate_state *state, gate_stream *stream) {
  put_out_of_use(state, stream);
  gate_bracket_settle(state, stream);
  uint64_t now_ns = gate_now_ns();
  gate_bracket_expire(state, stream, now_ns);
  gate_bracket_adopt(state, stream, now_ns);
  gate_bracket_unmark(stream);
  __atomic_store_n(&stream->waited_since_ns, now_ns, __ATOMIC_RELAXED);
}

gate_context *penstock_gate_context_leave(CUcontext handle) {
  gate_state *state = gate_state_get();
  if (!state || !handle) return NULL;
  penstock_lock_acquire(&state->lock);
  gate_context *context = state->contexts;
  while (context && context->handle != handle) context = context->next;
  if (context) __atomic_store_n(&context->handle, GATE_LEAVING, __ATOMIC_RELEASE);
  penstock_lock_release(&state->lock);
  if (!context) return NULL;
  for (gate_stream *stream; (stream = take_stream(state, NULL, context));) {
    stream_leaves(state, stream);
    stream->next = context->leaving;
    context->leaving = stream;
  }
  gate_context_clear(context);
  return context;
}

void penstock_gate_context_left(gate_context *context) {
  gate_state *state = context ? gate_state_get() : NULL;
  if (!state) return;
  uint64_t now_ns = gate_now_ns();
  for (gate_stream *stream; (stream = context->leaving);) {
    context->leaving = stream->next;
    gate_bracket_drained(state, stream, now_ns);
    gate_stream_abandon(state, stream);
    stream_free(state, stream);
  }
  __atomic_store_n(&context->handle, NULL, __ATOMIC_RELEASE);
}
