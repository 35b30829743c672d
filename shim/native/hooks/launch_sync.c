/* The gate around the program's own waits, and around work that is not compute. */
#include "devices/grants.h"
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "mechanism/starved.h"

/* Ends the stream's open window, so that no measured time includes the work that follows. */
static void interrupt(gate_state *state, gate_stream *stream) {
  __atomic_store_n(&stream->interrupted, true, __ATOMIC_RELAXED);
  gate_note_blocking(stream);
  penstock_lock_acquire(&stream->lock);
  stream->idle = false;
  bool any = stream->open;
  penstock_lock_release(&stream->lock);
  if (!any || !gate_stream_claim(stream)) return;
  uint64_t now_ns = gate_now_ns();
  gate_window_expire(state, stream, now_ns);
  if (gate_may_call(stream, now_ns, 3, 0)) {
    gate_window_end(state, stream, true);
  } else {
    gate_window_presume(state, stream);
  }
  gate_stream_release(stream);
}

bool penstock_gate_interrupt(CUstream handle, bool per_thread_default) {
  if (!penstock_process_get()) return false;
  gate_state *state = gate_state_get();
  gate_stream *stream = state ? gate_stream_get(state, handle, per_thread_default) : NULL;
  if (!stream || gate_is_capturing(state, stream)) return false;
  interrupt(state, stream);
  return true;
}

/* Returns the counters of the current context's device, or NULL if there are none. */
static penstock_gate_device *counters(void) {
  penstock_process *process = penstock_process_get();
  int grant = process ? penstock_current_grant() : -1;
  return grant < 0 ? NULL : gate_device(process, grant);
}

void penstock_gate_copied(uint64_t bytes) {
  penstock_gate_device *gate = counters();
  if (!gate) return;
  __atomic_fetch_add(&gate->copied_bytes, bytes, __ATOMIC_RELAXED);
  __atomic_fetch_add(&gate->copies, 1, __ATOMIC_RELAXED);
}

void penstock_gate_called_host(void) {
  penstock_gate_device *gate = counters();
  if (gate) __atomic_fetch_add(&gate->host_functions, 1, __ATOMIC_RELAXED);
}

/* Ends the last window of a stream that the program is about to wait for, so that the window can be
 * measured. That is worth two calls if the window is a sample or long. `ours` is true if the
 * stream's handle means this stream in this thread. */
static void before_wait(gate_state *state, gate_stream *stream, bool ours) {
  enum { LONG_NS = 300000, CALLS = 2, SPARE = 32 };
  uint64_t now_ns = gate_now_ns();
  penstock_starved_begin(now_ns);
  penstock_lock_acquire(&stream->lock);
  if (stream->waiters++ == 0) {
    /* A launch whose call has not returned may be queued after the wait, which then shows
     * nothing. */
    stream->launched_before = gate_stream_entering(stream) ? UINT64_MAX : stream->launched;
    __atomic_store_n(&stream->waited_since_ns, now_ns, __ATOMIC_RELAXED);
  }
  const gate_window *open = stream->open;
  bool wanted = ours && open && (open->start || open->cost_ns >= LONG_NS);
  bool sample = open && open->start;
  penstock_lock_release(&stream->lock);
  if (!wanted || !gate_may_mark_apart(state, stream) ||
      !gate_may_call(stream, now_ns, CALLS, sample ? 0 : SPARE)) {
    return;
  }
  if (!gate_stream_claim(stream)) return;
  gate_window_end(state, stream, false);
  gate_stream_release(stream);
  /* The wait starts after the calls above. */
  penstock_lock_acquire(&stream->lock);
  if (stream->waiters == 1) {
    __atomic_store_n(&stream->waited_since_ns, gate_now_ns(), __ATOMIC_RELAXED);
  }
  penstock_lock_release(&stream->lock);
}

/* Settles windows after a wait. `waited_ns` is when the wait found the stream dry, 0 if it did
 * not. */
static void after_wait(gate_state *state, gate_stream *stream, uint64_t waited_ns) {
  penstock_lock_acquire(&stream->lock);
  uint64_t launched = stream->launched;
  bool drained = waited_ns && stream->waiters && launched == stream->launched_before;
  if (stream->waiters) stream->waiters--;
  bool any = stream->open || stream->oldest || stream->stray_launches;
  penstock_lock_release(&stream->lock);
  if (!any || !gate_stream_claim(stream)) return;
  penstock_lock_acquire(&stream->lock);
  drained = drained && stream->launched == launched;
  penstock_lock_release(&stream->lock);
  if (drained) {
    gate_window_adopt(state, stream, waited_ns);
    gate_window_drained(state, stream, waited_ns);
  } else {
    gate_window_settle(state, stream);
  }
  gate_stream_release(stream);
}

/* The object that this thread waits for. */
static __thread struct {
  gate_stream *stream;
  CUcontext context;
  int grant;
} waited;

static gate_stream *waited_for(gate_state *state, CUstream handle, bool per_thread) {
  gate_stream *stream = gate_stream_get(state, handle, per_thread);
  return stream && !gate_is_capturing(state, stream) ? stream : NULL;
}

static void watch(gate_state *state, gate_stream *stream, int grant, bool begin) {
  penstock_process *process = penstock_process_get();
  if (!process || grant < 0) return;
  if (begin) {
    gate_watch_begin(process, state, grant, stream);
  } else {
    gate_watch_end(process, state, grant, false);
  }
}

void gate_before_wait(CUstream handle, bool per_thread) {
  gate_state *state = penstock_process_get() ? gate_state_get() : NULL;
  gate_stream *stream = state ? waited_for(state, handle, per_thread) : NULL;
  waited.stream = stream;
  if (!stream) return;
  before_wait(state, stream, true);
  watch(state, stream, stream->context->grant, true);
}

void gate_after_wait(bool drained) {
  gate_stream *stream = waited.stream;
  gate_state *state = stream ? gate_state_get() : NULL;
  waited.stream = NULL;
  if (!state) return;
  uint64_t now_ns = gate_now_ns();
  int grant = stream->context->grant;
  watch(state, stream, grant, false);
  after_wait(state, stream, drained ? now_ns : 0);
  penstock_process *process = penstock_process_get();
  if (drained && process && grant >= 0) penstock_gate_drained(gate_device(process, grant), now_ns);
  gate_round_waited(state);
}

/* Visits all streams of a context, but other threads' default streams only as far as that needs no
 * handle. Objects are never freed, and one that is reused in the meantime is only settled early. */
enum visit { BEFORE_WAIT, AFTER_WAIT, INTERRUPTED };
static void each_stream(gate_state *state, CUcontext handle, uint64_t now_ns, enum visit visit) {
  for (unsigned i = 0; i < GATE_LISTS; i++) {
    if (!__atomic_load_n(&state->streams[i], __ATOMIC_RELAXED)) continue;
    gate_stream *found[64];
    unsigned count = 0;
    penstock_lock_acquire(&state->lock);
    for (gate_stream *stream = state->streams[i]; stream && count < 64; stream = stream->next) {
      bool elsewhere = visit == INTERRUPTED && stream->thread;
      if (stream->context->handle == handle && !elsewhere) found[count++] = stream;
    }
    penstock_lock_release(&state->lock);
    for (unsigned k = 0; k < count; k++) {
      if (visit == BEFORE_WAIT) before_wait(state, found[k], !found[k]->thread);
      if (visit == AFTER_WAIT) after_wait(state, found[k], now_ns);
      if (visit == INTERRUPTED) interrupt(state, found[k]);
    }
  }
}

void gate_before_wait_all(CUcontext handle) {
  gate_state *state = penstock_process_get() ? gate_state_get() : NULL;
  waited.context = NULL;
  if (!state || __atomic_load_n(&state->captures, __ATOMIC_RELAXED)) return;
  if (!handle && REAL(cuCtxGetCurrent)(&handle) != CUDA_SUCCESS) return;
  waited.context = handle;
  waited.grant = penstock_current_grant();
  each_stream(state, handle, 0, BEFORE_WAIT);
  watch(state, NULL, waited.grant, true);
}

void gate_after_wait_all(bool drained) {
  CUcontext handle = waited.context;
  gate_state *state = handle ? gate_state_get() : NULL;
  waited.context = NULL;
  if (!state) return;
  uint64_t now_ns = gate_now_ns();
  watch(state, NULL, waited.grant, false);
  each_stream(state, handle, drained ? now_ns : 0, AFTER_WAIT);
  penstock_process *process = penstock_process_get();
  if (drained && process && waited.grant >= 0) {
    penstock_gate_drained(gate_device(process, waited.grant), now_ns);
  }
  gate_round_waited(state);
}

void penstock_gate_interrupt_all(CUcontext handle) {
  gate_state *state = penstock_process_get() ? gate_state_get() : NULL;
  if (!state || __atomic_load_n(&state->captures, __ATOMIC_RELAXED)) return;
  if (!handle && REAL(cuCtxGetCurrent)(&handle) != CUDA_SUCCESS) return;
  each_stream(state, handle, 0, INTERRUPTED);
}

void gate_after_event(void) {
  gate_state *state = penstock_process_get() ? gate_state_get() : NULL;
  if (!state) return;
  gate_settle_all(state, gate_now_ns());
  gate_round_waited(state);
}
