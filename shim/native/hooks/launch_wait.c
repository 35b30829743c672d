/* Waiting at the gate, and what happens around a program's own waits. */
#include "hooks/launch_state.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "mechanism/lock.h"
#include "mechanism/reap.h"
#include "mechanism/starved.h"

#define LONGEST_SLEEP_NS 20000000
/* While own brackets are out, their measure may open the gate: until they should be through, then
 * ever longer. */
#define UNSETTLED_LEAST_NS 60000
#define UNSETTLED_MOST_NS 2000000
#define STUCK_NS 100000000
#define MOST_VAIN 3 /* doublings of the patience */

static void settle_list(gate_state *state, unsigned list, uint64_t now_ns) {
  if (!__atomic_load_n(&state->streams[list], __ATOMIC_RELAXED)) return;
  gate_stream *work[64];
  unsigned count = 0;
  penstock_lock_acquire(&state->lock);
  for (gate_stream *stream = state->streams[list]; stream && count < 64; stream = stream->next) {
    if (gate_stream_claim_busy(stream)) work[count++] = stream;
  }
  penstock_lock_release(&state->lock);
  for (unsigned k = 0; k < count; k++) { /* claimed: it cannot be dropped meanwhile */
    gate_bracket_settle(state, work[k]);
    gate_bracket_expire(state, work[k], now_ns);
    gate_stream_release(work[k]);
  }
}

/* Work of this process that the device has passed is settled, whichever stream it is on. */
void gate_settle_all(gate_state *state, uint64_t now_ns) {
  for (unsigned i = 0; i < GATE_GONE; i++) settle_list(state, i, now_ns);
  gate_settle_gone(state, now_ns);
}

void gate_settle_gone(gate_state *state, uint64_t now_ns) {
  if (!__atomic_load_n(&state->streams[GATE_GONE], __ATOMIC_RELAXED)) return;
  settle_list(state, GATE_GONE, now_ns);
  gate_streams_sweep(state);
}

/* When this process's streams should all be dry, from their settled ends. */
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

/* May this thread record an event on the stream? Not where that could block, where the handle means
 * another stream in this thread, or where it may lie before a launch that is under way. */
static bool may_end(const gate_state *state, gate_stream *stream, CUcontext current,
                    uint64_t *drained_ns) {
  enum { ROOM = 512 }; /* launches; a full queue would hold this thread up */
  if (stream->thread || (stream->owner && stream->owner != current) ||
      __atomic_load_n(&state->captures, __ATOMIC_RELAXED)) {
    return false;
  }
  penstock_lock_acquire(&stream->lock);
  bool may = (stream->open || stream->stray_launches) && stream->queued < ROOM &&
             !gate_stream_entering(stream);
  *drained_ns = stream->drained_ns;
  penstock_lock_release(&stream->lock);
  return may;
}

/* The gate is shut: no bracket stays open over that. Those of the streams that will be busy longest
 * are ended by events, the others as far as the budget goes; the rest ends by experience. */
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
    gate_bracket_expire(state, stream, now_ns);
    gate_bracket_adopt(state, stream, now_ns);
    gate_bracket_end(state, stream, true);
    gate_stream_release(stream);
  }
}

/* How much was settled so far, by all processes of the tenant. */
static uint64_t progress(const penstock_process *process, int grant) {
  return __atomic_load_n(&gate_device(process, grant)->launches, __ATOMIC_RELAXED);
}

static void sleep_on_change(const penstock_process *process, uint32_t seen, uint64_t ns) {
  struct timespec timeout = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  syscall(SYS_futex, &process->region.quota->change_futex, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

/* How long to sleep while own work is out. */
static uint64_t unsettled_ns(const gate_state *state, int grant, uint64_t now_ns, unsigned tries) {
  uint64_t drained = __atomic_load_n(&state->drained_ns[grant], __ATOMIC_RELAXED);
  uint64_t least = (uint64_t)UNSETTLED_LEAST_NS << (tries < 6 ? tries : 6);
  uint64_t left = drained > now_ns ? drained - now_ns : 0;
  uint64_t ns = left > least ? left : least;
  return ns < UNSETTLED_MOST_NS ? ns : UNSETTLED_MOST_NS;
}

/* How many launches went as debt, of any process, with nothing settled since. */
static uint64_t debts_in_row(const penstock_gate_device *gate) {
  uint64_t launches = __atomic_load_n(&gate->launches, __ATOMIC_RELAXED);
  bool same = __atomic_load_n(&gate->row_launches, __ATOMIC_RELAXED) == launches;
  return same ? __atomic_load_n(&gate->row_debts, __ATOMIC_RELAXED) : 0;
}

/* Goes as debt, unless another thread of the tenant just did: what that does is to be seen first.
 * `debts`: as they were seen last. */
static bool go_as_debt(penstock_gate_device *gate, uint64_t debts) {
  if (!__atomic_compare_exchange_n(&gate->debts, &debts, debts + 1, false, __ATOMIC_RELAXED,
                                   __ATOMIC_RELAXED)) {
    return false;
  }
  uint64_t launches = __atomic_load_n(&gate->launches, __ATOMIC_RELAXED);
  __atomic_store_n(&gate->row_debts, debts_in_row(gate) + 1, __ATOMIC_RELAXED);
  __atomic_store_n(&gate->row_launches, launches, __ATOMIC_RELAXED);
  return true;
}

/* For how long nothing may move before a launch goes as debt. What runs may have been learned to be
 * long only because it waits for just this launch: so patience does not grow with it, up to a point
 * from which on work would pile up. But it doubles with each debt that nothing moved after: several
 * processes' long kernels move together, late, and each of their processes waits at the gate. */
static uint64_t patience_ns(const penstock_gate_device *gate, uint64_t estimates_ns) {
  enum { PILE_NS = 1000000000 };
  uint64_t vain = __atomic_load_n(&gate->vain_debts, __ATOMIC_RELAXED);
  uint64_t row = debts_in_row(gate), doublings = vain > row ? vain : row;
  uint64_t stuck_ns = (uint64_t)STUCK_NS << (doublings < MOST_VAIN ? doublings : MOST_VAIN);
  if (estimates_ns > PILE_NS) return stuck_ns + 2 * estimates_ns;
  return stuck_ns + (2 * estimates_ns < STUCK_NS ? 2 * estimates_ns : STUCK_NS);
}

/* Launches that went as debt, of all processes of the tenant. */
static uint64_t debts_of(const penstock_gate_device *gate) {
  return __atomic_load_n(&gate->debts, __ATOMIC_RELAXED);
}

/* This thread's last launch as debt, if it has been at the gate ever since. */
static __thread struct {
  uint64_t at_ns; /* 0: none */
  uint64_t progress;
  int grant;
  unsigned in_row; /* this one and those before it, less those of others since */
} debt;
#define AWAY_NS 5000000 /* between two launches: longer, and it was not at the gate */

/* How much longer this thread waits for its next debt than who has had fewer, so that those go
 * first: more than the difference between when two of them look. */
static uint64_t modesty_ns(void) {
  enum { EACH_NS = 5000000, MOST = 8 };
  return debt.at_ns ? (uint64_t)EACH_NS * (debt.in_row < MOST ? debt.in_row : MOST) : 0;
}

/* A launch went as debt, and something has moved since, seen right away. If that was at once, or
 * all own work is through, the work had waited for this launch, or what stands still is another
 * process. Else the work is just long, and the next debt waits longer. */
static void judge_debt(penstock_gate_device *gate, const penstock_gate_slot *own, uint64_t now_ns) {
  enum { PROMPT_NS = 20000000 };
  uint64_t vain = __atomic_load_n(&gate->vain_debts, __ATOMIC_RELAXED);
  bool helped =
      now_ns < debt.at_ns + PROMPT_NS || __atomic_load_n(&own->submitted, __ATOMIC_RELAXED) ==
                                             __atomic_load_n(&own->done, __ATOMIC_RELAXED);
  uint64_t after = helped ? 0 : vain < MOST_VAIN ? vain + 1 : MOST_VAIN;
  __atomic_store_n(&gate->vain_debts, after, __ATOMIC_RELAXED);
  debt.at_ns = 0;
}

/* Waits for time to pass, never for work to complete: what runs may itself wait for this launch.
 * Should nothing move for long although work is in flight, the launch goes as debt. */
void gate_wait(penstock_process *process, gate_state *state, gate_stream *stream, uint64_t cost_ns,
               uint64_t wait_ns) {
  int saved_errno = errno;
  int grant = stream->context->grant;
  penstock_gate_device *gate = gate_device(process, grant);
  uint64_t began_ns = gate_now_ns(), now_ns = began_ns, moved_ns = began_ns;
  uint64_t seen_progress = progress(process, grant), seen_debts = debts_of(gate);
  unsigned tries = 0;
  if (debt.grant != grant || debt.progress != seen_progress || began_ns > debt.at_ns + AWAY_NS) {
    debt.at_ns = 0;
  }
  if (gate_stream_claim(stream)) {
    gate_bracket_settle(state, stream);
    gate_bracket_expire(state, stream, now_ns);
    gate_bracket_adopt(state, stream, now_ns);
    gate_bracket_end(state, stream, true);
    gate_stream_release(stream);
  }
  end_all(state, grant, now_ns);
  gate_watch_begin(process, state, grant, NULL);
  for (;;) {
    uint32_t seen = __atomic_load_n(&process->region.quota->change_futex, __ATOMIC_ACQUIRE);
    gate_settle_all(state, now_ns);
    foresee(state, grant);
    gate_watch_look(process, state, grant, NULL);
    gate_turn_wanted(process, state, grant, now_ns);
    if (gate_may_go(process, state, grant, now_ns, cost_ns, &wait_ns)) break;
    uint64_t now_progress = progress(process, grant);
    uint64_t estimates = gate_estimates_ns(process, state, grant);
    if (now_progress != seen_progress) tries = 0;
    if (debt.at_ns && now_progress != debt.progress) {
      judge_debt(gate, gate_slot(process, state, grant), now_ns);
    }
    if (now_progress != seen_progress || !estimates || gate_is_suspended(process))
      moved_ns = now_ns;
    if (!estimates) __atomic_store_n(&gate->row_debts, 0, __ATOMIC_RELAXED);
    seen_progress = now_progress;
    uint64_t patience = patience_ns(gate, estimates), debts = debts_of(gate);
    if (debts != seen_debts) { /* another thread's; who went before in this row goes last */
      uint64_t ahead = debt.at_ns ? 0 : patience / 4;
      seen_debts = debts;
      if (debt.in_row) debt.in_row--;
      if (moved_ns + ahead < now_ns) moved_ns = now_ns - ahead;
    }
    if (now_ns - moved_ns > patience + modesty_ns() && go_as_debt(gate, debts)) {
      debt.in_row = debt.at_ns ? debt.in_row + 1 : 1;
      debt.at_ns = now_ns;
      debt.progress = now_progress;
      debt.grant = grant;
      break;
    }
    uint64_t own =
        __atomic_load_n(&gate_slot(process, state, grant)->estimate_ns, __ATOMIC_RELAXED);
    uint64_t longest = own         ? unsettled_ns(state, grant, now_ns, tries++)
                       : estimates ? UNSETTLED_MOST_NS
                                   : LONGEST_SLEEP_NS;
    sleep_on_change(process, seen, wait_ns < longest ? wait_ns : longest);
    now_ns = gate_now_ns();
    if (now_ns - moved_ns > LONGEST_SLEEP_NS) {
      penstock_reap_for_refusal(&process->region, (unsigned)grant);
    }
  }
  gate_watch_end(process, state, grant);
  __atomic_fetch_add(&gate->waits, 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&gate->waited_ns, gate_now_ns() - began_ns, __ATOMIC_RELAXED);
  errno = saved_errno;
}

/* Ends what is measured on the stream, and lets nothing be measured across what comes. */
static void interrupt(gate_state *state, gate_stream *stream) {
  __atomic_store_n(&stream->interrupted, true, __ATOMIC_RELAXED);
  penstock_lock_acquire(&stream->lock);
  stream->idle = false;
  bool any = stream->open;
  penstock_lock_release(&stream->lock);
  if (!any || !gate_stream_claim(stream)) return;
  uint64_t now_ns = gate_now_ns();
  gate_bracket_expire(state, stream, now_ns);
  if (gate_may_call(stream, now_ns, 3, 0)) {
    gate_bracket_end(state, stream, true);
  } else {
    gate_bracket_presume(state, stream);
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

/* The counters of the current context's device; NULL where there is none. */
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

/* The program is about to wait for the stream: its last bracket can be measured then, which is
 * worth two calls if it is a sample, or long. */
static void before_wait(gate_state *state, gate_stream *stream) {
  enum { LONG_NS = 300000, CALLS = 2, SPARE = 32 };
  uint64_t now_ns = gate_now_ns();
  penstock_starved_begin(now_ns);
  penstock_lock_acquire(&stream->lock);
  if (stream->waiters++ == 0) {
    /* One whose call has not returned may come behind the wait, which then tells nothing. */
    stream->launched_before = gate_stream_entering(stream) ? UINT64_MAX : stream->launched;
    __atomic_store_n(&stream->waited_since_ns, now_ns, __ATOMIC_RELAXED);
  }
  const gate_bracket *open = stream->open;
  bool wanted = open && (open->start || open->cost_ns >= LONG_NS);
  bool sample = open && open->start;
  penstock_lock_release(&stream->lock);
  if (!wanted || !gate_may_call(stream, now_ns, CALLS, sample ? 0 : SPARE)) return;
  if (!gate_stream_claim(stream)) return;
  gate_bracket_end(state, stream, false);
  gate_stream_release(stream);
}

/* `waited_ns`: when the stream was seen to be dry; 0: it was not. */
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
    gate_bracket_adopt(state, stream, waited_ns);
    gate_bracket_drained(state, stream, waited_ns);
  } else {
    gate_bracket_settle(state, stream);
  }
  gate_stream_release(stream);
}

/* What this thread waits for. */
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
    gate_watch_end(process, state, grant);
  }
}

void gate_before_wait(CUstream handle, bool per_thread) {
  gate_state *state = penstock_process_get() ? gate_state_get() : NULL;
  gate_stream *stream = state ? waited_for(state, handle, per_thread) : NULL;
  waited.stream = stream;
  if (!stream) return;
  before_wait(state, stream);
  watch(state, stream, stream->context->grant, true);
}

void gate_after_wait(bool drained) {
  gate_stream *stream = waited.stream;
  gate_state *state = stream ? gate_state_get() : NULL;
  waited.stream = NULL;
  if (!state) return;
  uint64_t now_ns = gate_now_ns();
  watch(state, stream, stream->context->grant, false);
  after_wait(state, stream, drained ? now_ns : 0);
}

/* All streams of a context that this thread may speak for. Entries are never freed, and one that is
 * reused meanwhile is only settled early. */
enum visit { BEFORE_WAIT, AFTER_WAIT, INTERRUPTED };
static void each_stream(gate_state *state, CUcontext handle, uint64_t now_ns, enum visit visit) {
  for (unsigned i = 0; i < GATE_LISTS; i++) {
    if (!__atomic_load_n(&state->streams[i], __ATOMIC_RELAXED)) continue;
    gate_stream *found[64];
    unsigned count = 0;
    penstock_lock_acquire(&state->lock);
    for (gate_stream *stream = state->streams[i]; stream && count < 64; stream = stream->next) {
      if (stream->context->handle == handle && !stream->thread) found[count++] = stream;
    }
    penstock_lock_release(&state->lock);
    for (unsigned k = 0; k < count; k++) {
      if (visit == BEFORE_WAIT) before_wait(state, found[k]);
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
}

void penstock_gate_interrupt_all(CUcontext handle) {
  gate_state *state = penstock_process_get() ? gate_state_get() : NULL;
  if (!state || __atomic_load_n(&state->captures, __ATOMIC_RELAXED)) return;
  if (!handle && REAL(cuCtxGetCurrent)(&handle) != CUDA_SUCCESS) return;
  each_stream(state, handle, 0, INTERRUPTED);
}

void gate_after_event(void) {
  gate_state *state = penstock_process_get() ? gate_state_get() : NULL;
  if (state) gate_settle_all(state, gate_now_ns());
}
