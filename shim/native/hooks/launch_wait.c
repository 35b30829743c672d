/* Waiting at the gate. */
#include "hooks/launch_state.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "mechanism/lock.h"
#include "mechanism/reap.h"

#define LONGEST_SLEEP_NS 20000000
/* Shortest and longest sleep while windows of this process are not settled, because settling them
 * may open the gate. The thread sleeps until they should have ended, then for longer each time. */
#define UNSETTLED_LEAST_NS 60000
#define UNSETTLED_MOST_NS 2000000
#define DUE_LEAST_NS 100000

static void settle_list(gate_state *state, unsigned list, uint64_t now_ns) {
  if (!__atomic_load_n(&state->streams[list], __ATOMIC_RELAXED)) return;
  gate_stream *work[64];
  unsigned count = 0;
  penstock_lock_acquire(&state->lock);
  for (gate_stream *stream = state->streams[list]; stream && count < 64; stream = stream->next) {
    if (gate_stream_claim_busy(stream)) work[count++] = stream;
  }
  penstock_lock_release(&state->lock);
  /* The stream is claimed, so it cannot be freed in the meantime. */
  for (unsigned k = 0; k < count; k++) {
    gate_window_settle(state, work[k]);
    gate_window_expire(state, work[k], now_ns);
    gate_stream_release(work[k]);
  }
}

void gate_settle_all(gate_state *state, uint64_t now_ns) {
  for (unsigned i = 0; i < GATE_GONE; i++) settle_list(state, i, now_ns);
  gate_settle_gone(state, now_ns);
}

void gate_settle_gone(gate_state *state, uint64_t now_ns) {
  if (!__atomic_load_n(&state->streams[GATE_GONE], __ATOMIC_RELAXED)) return;
  settle_list(state, GATE_GONE, now_ns);
  gate_streams_sweep(state);
}

/* Predicts when all streams of this process should be dry, from their settled ends. */
static void foresee(gate_state *state, int grant) {
  uint64_t last = 0;
  for (unsigned i = 0; i < GATE_LISTS; i++) {
    if (!__atomic_load_n(&state->streams[i], __ATOMIC_RELAXED)) continue;
    penstock_lock_acquire(&state->lock);
    for (gate_stream *stream = state->streams[i]; stream; stream = stream->next) {
      if (stream->context->grant != grant) continue;
      penstock_lock_acquire(&stream->lock);
      bool busy = stream->open || stream->oldest;
      if (busy && stream->drained_ns > last) last = stream->drained_ns;
      penstock_lock_release(&stream->lock);
    }
    penstock_lock_release(&state->lock);
  }
  __atomic_store_n(&state->drained_ns[grant], last, __ATOMIC_RELAXED);
}

/* Returns true if this thread may record an event on the stream. It may not if that could block, if
 * the handle means another stream in this thread, or if the event may lie before a launch that is
 * under way. */
static bool may_end(const gate_state *state, gate_stream *stream, CUcontext current,
                    uint64_t *drained_ns) {
  /* Limit for queued launches, because a full queue would hold this thread up. */
  enum { ROOM = 512 };
  if (stream->thread || (stream->owner && stream->owner != current) ||
      __atomic_load_n(&state->captures, __ATOMIC_RELAXED) ||
      !gate_may_mark_apart(state, stream)) { /* without a capture this makes no driver call */
    return false;
  }
  penstock_lock_acquire(&stream->lock);
  bool may = (stream->open || stream->stray_launches) && stream->queued < ROOM &&
             !gate_stream_entering(stream);
  *drained_ns = stream->drained_ns;
  penstock_lock_release(&stream->lock);
  return may;
}

/* Ends all windows, because the gate is shut. Windows of the streams that will be busy longest are
 * ended by events, and others as far as the budget allows; the rest get presumed ends. */
static void end_all(gate_state *state, int grant, uint64_t now_ns) {
  enum { MOST = 64, ALWAYS = 3, CALLS = 3 };
  gate_stream *found[MOST];
  uint64_t until_ns[MOST], drained_ns;
  unsigned count = 0;
  CUcontext current = NULL;
  REAL(cuCtxGetCurrent)(&current);
  for (unsigned i = 0; i < GATE_LISTS; i++) {
    if (!__atomic_load_n(&state->streams[i], __ATOMIC_RELAXED)) continue;
    penstock_lock_acquire(&state->lock);
    for (gate_stream *stream = state->streams[i]; stream; stream = stream->next) {
      if (stream->context->grant != grant || !may_end(state, stream, current, &drained_ns)) {
        continue;
      }
      unsigned at = count < MOST ? count++ : MOST;
      for (; at && until_ns[at - 1] < drained_ns; at--) {
        if (at == MOST) continue;
        found[at] = found[at - 1];
        until_ns[at] = until_ns[at - 1];
      }
      if (at == MOST) continue;
      found[at] = stream;
      until_ns[at] = drained_ns;
    }
    penstock_lock_release(&state->lock);
  }
  for (unsigned i = 0; i < count; i++) {
    gate_stream *stream = found[i];
    if (i >= ALWAYS && !gate_may_call(stream, now_ns, CALLS, 0)) return;
    if (!gate_stream_claim(stream)) continue;
    gate_window_expire(state, stream, now_ns);
    gate_window_adopt(state, stream, now_ns);
    gate_window_end(state, stream, true);
    gate_stream_release(stream);
  }
}

static void sleep_on_change(const penstock_process *process, uint32_t seen, uint64_t ns) {
  struct timespec timeout = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  syscall(SYS_futex, &process->region.quota->change_futex, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

/* Returns how long to sleep while this process has unfinished work. */
static uint64_t unsettled_ns(const gate_state *state, int grant, uint64_t now_ns, unsigned tries) {
  uint64_t drained = __atomic_load_n(&state->drained_ns[grant], __ATOMIC_RELAXED);
  uint64_t least = (uint64_t)UNSETTLED_LEAST_NS << (tries < 6 ? tries : 6);
  uint64_t left = drained > now_ns ? drained - now_ns : 0;
  uint64_t ns = left > least ? left : least;
  return ns < UNSETTLED_MOST_NS ? ns : UNSETTLED_MOST_NS;
}

/* Ends this process's windows on the device, and records their ends where that is allowed. */
static void end_own(gate_state *state, gate_stream *stream, int grant, uint64_t now_ns) {
  if (gate_stream_claim(stream)) {
    gate_window_settle(state, stream);
    gate_window_expire(state, stream, now_ns);
    gate_window_adopt(state, stream, now_ns);
    if (gate_may_mark_apart(state, stream)) gate_window_end(state, stream, true);
    gate_stream_release(stream);
  }
  end_all(state, grant, now_ns);
}

/* Returns how long to sleep at most, because unfinished work may end before there is credit, or may
 * turn out to wait for this launch. `due_ns` is when other work will overrun, 0 if unknown. */
static uint64_t longest_sleep_ns(penstock_process *process, gate_state *state, int grant,
                                 uint64_t now_ns, uint64_t due_ns, unsigned tries) {
  uint64_t own = __atomic_load_n(&gate_slot(process, state, grant)->estimate_ns, __ATOMIC_RELAXED);
  uint64_t longest = own ? unsettled_ns(state, grant, now_ns, tries)
                     : gate_estimates_ns(process, state, grant) ? UNSETTLED_MOST_NS
                                                                : LONGEST_SLEEP_NS;
  if (!due_ns) return longest;
  uint64_t left = due_ns > now_ns + DUE_LEAST_NS ? due_ns - now_ns : DUE_LEAST_NS;
  return left < longest ? left : longest;
}

/* Waits for time to pass, never for work to complete, because running work may itself wait for this
 * launch. If work overruns, or there is no progress for a long time, the launch is admitted as
 * overdraft. */
uint64_t gate_wait(penstock_process *process, gate_state *state, gate_stream *stream,
                   const gate_kind *kind, uint64_t wait_ns) {
  int saved_errno = errno;
  uint64_t overdraft_ns = 0;
  uint64_t cost_ns = gate_likely_ns(state, kind);
  int grant = stream->context->grant;
  penstock_gate_device *gate = gate_device(process, grant);
  uint64_t began_ns = gate_now_ns(), now_ns = began_ns, due_ns;
  unsigned tries = 0;
  bool as_overdraft = false;
  gate_patience patience;
  gate_patience_begin(&patience, process, grant, now_ns);
  end_own(state, stream, grant, now_ns);
  gate_watch_begin(process, state, grant, NULL);
  for (;;) {
    uint32_t seen = __atomic_load_n(&process->region.quota->change_futex, __ATOMIC_ACQUIRE);
    gate_settle_all(state, now_ns);
    foresee(state, grant);
    gate_watch_update(process, state, grant, NULL);
    gate_slice_wanted(process, state, grant, now_ns);
    if (gate_may_go(process, state, grant, now_ns, cost_ns, &wait_ns)) break;
    if (gate_overrun_lets_go(process, state, stream, now_ns, kind, &due_ns, &overdraft_ns)) break;
    as_overdraft = gate_patience_ends(&patience, process, state, grant, now_ns);
    if (as_overdraft) break;
    tries = patience.moved ? 0 : tries + 1;
    uint64_t longest = longest_sleep_ns(process, state, grant, now_ns, due_ns, tries);
    sleep_on_change(process, seen, wait_ns < longest ? wait_ns : longest);
    now_ns = gate_now_ns();
    if (now_ns - patience.moved_ns > LONGEST_SLEEP_NS) {
      penstock_reap_for_refusal(&process->region, (unsigned)grant);
    }
  }
  /* After an overdraft the work's running time still counts, because the next launch must not be
   * admitted by estimates alone, none of which is measured yet. */
  gate_watch_end(process, state, grant, as_overdraft);
  __atomic_fetch_add(&gate->waits, 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&gate->waited_ns, gate_now_ns() - began_ns, __ATOMIC_RELAXED);
  errno = saved_errno;
  return overdraft_ns;
}
