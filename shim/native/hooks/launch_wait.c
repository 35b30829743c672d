/* Waiting at the gate, and what happens around a program's own waits. */
#include "hooks/launch_state.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "mechanism/lock.h"
#include "mechanism/reap.h"

#define LONGEST_SLEEP_NS 20000000
#define UNSETTLED_SLEEP_NS                                               \
  2000000 /* while own brackets are out: their measure may open the gate \
           */
#define STUCK_NS 100000000

/* Work of this process that the device has passed is settled, whichever stream it is on. */
void gate_settle_all(gate_state *state, uint64_t now_ns) {
  for (unsigned i = 0; i < GATE_BUCKETS; i++) {
    if (!__atomic_load_n(&state->streams[i], __ATOMIC_RELAXED)) continue;
    gate_stream *work[64];
    unsigned count = 0;
    penstock_lock_acquire(&state->lock);
    for (gate_stream *stream = state->streams[i]; stream && count < 64; stream = stream->next) {
      if ((stream->oldest || stream->open) && gate_stream_claim(stream)) work[count++] = stream;
    }
    penstock_lock_release(&state->lock);
    for (unsigned k = 0; k < count; k++) { /* claimed: it cannot be dropped meanwhile */
      gate_bracket_settle(state, work[k], now_ns);
      gate_bracket_expire(state, work[k]);
      gate_stream_release(work[k]);
    }
  }
}

/* How much was settled so far, by all processes of the tenant. */
static uint64_t progress(const penstock_process *process, int grant) {
  const penstock_usage_page *usage = process->region.usage;
  uint64_t high = __atomic_load_n(&usage->slots_high, __ATOMIC_RELAXED), sum = 0;
  if (high > PENSTOCK_MAX_SLOTS) high = PENSTOCK_MAX_SLOTS;
  for (uint64_t i = 0; i < high; i++) {
    sum += __atomic_load_n(&usage->slots[i].gate[grant].done, __ATOMIC_RELAXED);
  }
  return sum;
}

static void sleep_on_change(const penstock_process *process, uint32_t seen, uint64_t ns) {
  struct timespec timeout = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  syscall(SYS_futex, &process->region.quota->change_futex, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

/* Waits for time to pass, never for work to complete: what runs may itself wait for this launch.
 * Should nothing move for long although work is in flight, the launch goes as debt. */
void gate_wait(penstock_process *process, gate_state *state, gate_stream *stream,
               uint64_t wait_ns) {
  int saved_errno = errno;
  int grant = stream->context->grant;
  penstock_gate_device *gate = gate_device(process, grant);
  uint64_t began_ns = gate_now_ns(), now_ns = began_ns, moved_ns = began_ns;
  uint64_t seen_progress = progress(process, grant);
  if (gate_stream_claim(stream)) {
    gate_bracket_close(state, stream, true);
    gate_stream_release(stream);
  }
  gate_before_wait_all(stream->context->handle);
  for (;;) {
    uint32_t seen = __atomic_load_n(&process->region.quota->change_futex, __ATOMIC_ACQUIRE);
    gate_settle_all(state, now_ns);
    if (gate_may_go(process, state, grant, now_ns, &wait_ns)) break;
    uint64_t now_progress = progress(process, grant);
    uint64_t in_flight = gate_in_flight_ns(process, state, grant);
    if (now_progress != seen_progress || !in_flight || gate_is_suspended(process))
      moved_ns = now_ns;
    seen_progress = now_progress;
    if (now_ns - moved_ns > STUCK_NS + 2 * in_flight) {
      __atomic_fetch_add(&gate->debts, 1, __ATOMIC_RELAXED);
      break;
    }
    uint64_t longest = in_flight ? UNSETTLED_SLEEP_NS : LONGEST_SLEEP_NS;
    sleep_on_change(process, seen, wait_ns < longest ? wait_ns : longest);
    now_ns = gate_now_ns();
    if (now_ns - moved_ns > LONGEST_SLEEP_NS) {
      penstock_reap_for_refusal(&process->region, (unsigned)grant);
    }
  }
  __atomic_fetch_add(&gate->waits, 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&gate->waited_ns, gate_now_ns() - began_ns, __ATOMIC_RELAXED);
  errno = saved_errno;
}

void penstock_gate_interrupt(CUstream handle, bool per_thread_default) {
  if (penstock_depth || !penstock_process_get()) return;
  gate_state *state = gate_state_get();
  gate_stream *stream = state ? gate_stream_get(state, handle, per_thread_default) : NULL;
  if (!stream || gate_is_capturing(state, stream)) return;
  __atomic_store_n(&stream->interrupted, true, __ATOMIC_RELAXED);
  if (!stream->open) return;
  penstock_depth++;
  if (gate_stream_claim(stream)) {
    uint64_t now_ns = gate_now_ns();
    gate_bracket_close(state, stream, gate_may_call(state, now_ns, 3, 0));
    gate_stream_release(stream);
  }
  penstock_depth--;
}

void penstock_gate_copied(uint64_t bytes) {
  penstock_process *process = penstock_depth ? NULL : penstock_process_get();
  int grant = process ? penstock_current_grant() : -1;
  if (grant < 0) return;
  __atomic_fetch_add(&gate_device(process, grant)->copied_bytes, bytes, __ATOMIC_RELAXED);
}

/* The program is about to wait for the stream: its last bracket can be measured then. */
static void before_wait(gate_state *state, gate_stream *stream) {
  uint64_t now_ns = gate_now_ns();
  if (!stream->open || !stream->open->start || !gate_may_call(state, now_ns, 3, 0)) return;
  if (!gate_stream_claim(stream)) return;
  gate_bracket_close(state, stream, true);
  gate_stream_release(stream);
}

static void after_wait(gate_state *state, gate_stream *stream) {
  __atomic_store_n(&stream->drained_ns, 0, __ATOMIC_RELAXED);
  if (!stream->oldest || !gate_stream_claim(stream)) return;
  gate_bracket_settle(state, stream, gate_now_ns());
  gate_stream_release(stream);
}

static gate_stream *waited_for(gate_state *state, CUstream handle, bool per_thread) {
  gate_stream *stream = gate_stream_get(state, handle, per_thread);
  return stream && !gate_is_capturing(state, stream) ? stream : NULL;
}

#define BELOW(statement) \
  do {                   \
    penstock_depth++;    \
    statement;           \
    penstock_depth--;    \
  } while (0)

void gate_before_wait(CUstream handle, bool per_thread) {
  gate_state *state = penstock_process_get() ? gate_state_get() : NULL;
  gate_stream *stream = state ? waited_for(state, handle, per_thread) : NULL;
  if (stream) BELOW(before_wait(state, stream));
}

void gate_after_wait(CUstream handle, bool per_thread) {
  gate_state *state = penstock_process_get() ? gate_state_get() : NULL;
  gate_stream *stream = state ? waited_for(state, handle, per_thread) : NULL;
  if (stream) BELOW(after_wait(state, stream));
}

/* All streams of a context (NULL: the current one) that this thread may speak for. Entries are
 * never freed, and one that is reused meanwhile is only settled early. */
static void each_stream(CUcontext handle, void (*visit)(gate_state *, gate_stream *)) {
  gate_state *state = penstock_process_get() ? gate_state_get() : NULL;
  if (!state || __atomic_load_n(&state->captures, __ATOMIC_RELAXED)) return;
  if (!handle && REAL(cuCtxGetCurrent)(&handle) != CUDA_SUCCESS) return;
  for (unsigned i = 0; i < GATE_BUCKETS; i++) {
    if (!__atomic_load_n(&state->streams[i], __ATOMIC_RELAXED)) continue;
    gate_stream *found[64];
    unsigned count = 0;
    penstock_lock_acquire(&state->lock);
    for (gate_stream *stream = state->streams[i]; stream && count < 64; stream = stream->next) {
      if (stream->context->handle == handle && !stream->thread) found[count++] = stream;
    }
    penstock_lock_release(&state->lock);
    for (unsigned k = 0; k < count; k++) BELOW(visit(state, found[k]));
  }
}

void gate_before_wait_all(CUcontext context) { each_stream(context, before_wait); }
void gate_after_wait_all(CUcontext context) { each_stream(context, after_wait); }

void gate_after_event(void) {
  gate_state *state = penstock_process_get() ? gate_state_get() : NULL;
  if (state) BELOW(gate_settle_all(state, gate_now_ns()));
}
