/* Overrunning work: work that is still running although it should have ended, so it may be waiting
 * for a launch at the gate.
 *
 * Kernels wait for each other: ranks of a collective on several devices, in threads or processes of
 * one tenant; stages of a pipeline; streams that hand over to each other. If the gate of one side
 * is shut, the other side's kernel spins. The spinning is charged to its device, whose gate is then
 * shut for longer than the first one's, and so on, so that each round waits longer than the one
 * before. Therefore
 *   - a launch that waits at a shut gate while other work of the tenant takes longer than usual is
 *     admitted at once, as overdraft. It is charged, and not much more than
 *     PENSTOCK_GATE_OVERDRAFT_NS is admitted in this way between two openings of the gate, so the
 *     share is still kept;
 *   - devices that were found to wait for each other open together (mechanism/together.c).
 *
 * A thread that waits, for work or at the gate, writes into its process's slot since when that work
 * has been running and when it is due. Other processes know only these two times. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "mechanism/working.h"

/* Time beyond the usual duration plus an eighth after which uncontended work overruns. */
#define SLACK_NS 300000
/* Time beyond the usual duration after which contended work overruns; it includes time slices of
 * others. */
#define CONTENDED_SLACK_NS 20000000
/* Work that was never measured may be long, so it is due only after this time multiplied by the
 * number of processes that have unfinished work, whether they were recently active or not. */
#define UNMEASURED_NS 400000000
/* Intervals between checks for work of others that may be waiting for this launch. */
#define TOGETHER_CHECK_NS 500000
#define APART_CHECK_NS 2000000
/* Time that a launch of unknown cost counts as, for each process. It is high, so that only few such
 * launches are admitted. */
#define UNKNOWN_NS (PENSTOCK_GATE_OVERDRAFT_NS / 4)

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

typedef struct work {
  uint64_t since_ns;    /* start of the work as far as known, 0 if there is no work */
  uint64_t usual_ns;    /* usual duration of the work, UINT64_MAX if unknown */
  uint64_t estimate_ns; /* contribution of the work to the slot's estimate */
} work;

/* Limits a usual duration. If no launch can be measured by itself, measured time may be mostly
 * waiting. */
static uint64_t least_usual_ns(uint64_t usual_ns) {
  enum { MOST_NS = 1000000 };
  const gate_state *state = gate_state_get();
  if (__builtin_expect(!state || !state->few_queues, 1)) return usual_ns;
  return usual_ns ? earlier(usual_ns, MOST_NS) : GATE_UNKNOWN_NS;
}

uint64_t gate_usual_ns(const gate_window *window) {
  uint64_t ns = window->rest_ns;
  for (uint32_t i = 0; i < window->part_count; i++) {
    const gate_part *part = &window->parts[i];
    uint64_t usual = least_usual_ns(penstock_cost_usual_ns(gate_measured(part)));
    if (!usual) return UINT64_MAX;
    ns += part->launches * usual;
  }
  return ns;
}

static uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

static void add(work *to, const gate_window *window) {
  to->usual_ns = sum(to->usual_ns, gate_usual_ns(window));
  to->estimate_ns += window->estimate_ns;
}

/* Returns the stream's oldest work and, if `all` is true, everything queued after it. */
static work work_on(gate_stream *stream, bool all) {
  penstock_lock_acquire(&stream->lock);
  const gate_window *first = stream->oldest ? stream->oldest : stream->open;
  work out = {0};
  if (first) {
    out.since_ns = first->opened_ns > stream->last_end_ns ? first->opened_ns : stream->last_end_ns;
    add(&out, first);
  }
  for (const gate_window *one = first ? first->next : NULL; all && one; one = one->next) {
    add(&out, one);
  }
  if (all && first && stream->open && first != stream->open) add(&out, stream->open);
  penstock_lock_release(&stream->lock);
  return out;
}

/* The other work that this process shares the device with. */
typedef struct contention {
  uint64_t out_ns; /* estimate of all unfinished work of this process */
  uint64_t most;   /* processes that may be on the device, including this one */
  uint64_t seen;   /* processes that were recently active there, including this one */
} contention;

static contention contention_of(penstock_process *process, gate_state *state, int grant) {
  enum { LATELY_NS = 1000000000 };
  uint64_t seen_ns = load(&state->others_seen_ns[grant]),
           neighbours = gate_neighbours(process, grant);
  contention out = {.out_ns = load(&gate_slot(process, state, grant)->estimate_ns),
                    .most = neighbours + gate_busy_processes(process, state, grant)};
  out.seen = seen_ns && gate_tick_ns() <= seen_ns + LATELY_NS ? out.most : 1 + neighbours;
  return out;
}

/* Returns the estimate of all other unfinished work, which may run before this work or in
 * parallel. */
static uint64_t other_out_ns(uint64_t out_ns, uint64_t estimate_ns) {
  return out_ns > estimate_ns ? out_ns - estimate_ns : 0;
}

/* Returns when the work should end at the latest, not counting other processes' work before it, or
 * 0 if that is unknown. */
static uint64_t due_ns(const work *one, const contention *sharing) {
  const uint64_t most_ns =
      1000000000000; /* no kernel is longer, and longer times could overflow below */
  if (!one->since_ns || sharing->out_ns > most_ns) return 0;
  if (one->usual_ns == UINT64_MAX) return one->since_ns + UNMEASURED_NS * sharing->most;
  if (one->usual_ns > most_ns) return 0;
  uint64_t alone_ns =
      one->usual_ns + one->usual_ns / 8 + other_out_ns(sharing->out_ns, one->estimate_ns);
  uint64_t slack_ns = sharing->seen > 1 ? CONTENDED_SLACK_NS : SLACK_NS;
  return one->since_ns + alone_ns * sharing->seen + slack_ns;
}

/* Calls `see` for each stream of this process with work on the device. */
static void each_busy(gate_state *state, int grant, void (*see)(gate_stream *, void *), void *to) {
  for (unsigned i = 0; i < GATE_LISTS; i++) {
    if (!__atomic_load_n(&state->streams[i], __ATOMIC_RELAXED)) continue;
    penstock_lock_acquire(&state->lock);
    for (gate_stream *stream = state->streams[i]; stream; stream = stream->next) {
      if (stream->context->grant == grant) see(stream, to);
    }
    penstock_lock_release(&state->lock);
  }
}

typedef struct first_due {
  const gate_stream *but;
  contention sharing;
  uint64_t since_ns; /* start of the oldest work, 0 if there is none */
  uint64_t due_ns;   /* time at which the work that is due first is due, 0 if there is none */
  bool unknown;      /* there is work that was never measured */
} first_due;

static void see_due(gate_stream *stream, void *to) {
  first_due *first = to;
  if (stream == first->but) return;
  work one = work_on(stream, false);
  if (!one.since_ns) return;
  first->since_ns = first->since_ns ? earlier(first->since_ns, one.since_ns) : one.since_ns;
  first->unknown = first->unknown || one.usual_ns == UINT64_MAX;
  uint64_t due = due_ns(&one, &first->sharing);
  if (due) first->due_ns = first->due_ns ? earlier(first->due_ns, due) : due;
}

uint64_t gate_oldest_ns(gate_state *state, int grant) {
  first_due first = {.sharing = {.most = 1, .seen = 1}};
  each_busy(state, grant, see_due, &first);
  return first.since_ns;
}

void gate_watch_update(penstock_process *process, gate_state *state, int grant,
                       gate_stream *stream) {
  penstock_gate_slot *slot = gate_slot(process, state, grant);
  first_due first = {.sharing = contention_of(process, state, grant)};
  if (stream) {
    work all = work_on(stream, true);
    first.since_ns = all.since_ns;
    first.due_ns = due_ns(&all, &first.sharing);
  } else {
    each_busy(state, grant, see_due, &first);
  }
  __atomic_store_n(&slot->due_ns, first.due_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->busy_since_ns, first.since_ns, __ATOMIC_RELAXED);
}

void gate_watch_begin(penstock_process *process, gate_state *state, int grant,
                      gate_stream *stream) {
  __atomic_fetch_add(&state->waiters[grant], 1, __ATOMIC_RELAXED);
  gate_watch_update(process, state, grant, stream);
}

void gate_watch_end(penstock_process *process, gate_state *state, int grant, bool goes_on) {
  if (__atomic_sub_fetch(&state->waiters[grant], 1, __ATOMIC_RELAXED)) return;
  penstock_gate_slot *slot = gate_slot(process, state, grant);
  __atomic_store_n(&slot->due_ns, 0, __ATOMIC_RELAXED);
  if (!goes_on) __atomic_store_n(&slot->busy_since_ns, 0, __ATOMIC_RELAXED);
}

typedef struct tenant_due {
  uint64_t due_ns; /* 0 if there is no unfinished work */
  unsigned device;
  bool unknown; /* some work of this process was never measured */
} tenant_due;

/* Returns the sum of the estimates of all unfinished work of the tenant's processes on the
 * device. */
static uint64_t out_ns(const penstock_usage_page *usage, unsigned device) {
  const penstock_gate_device *gate = &usage->gate[device];
  uint64_t ns = 0;
  for (penstock_working at = penstock_working_begin(usage, device);
       penstock_working_next(gate, &at);) {
    ns += load(&usage->slots[at.slot].gate[device].estimate_ns);
  }
  return ns;
}

/* Returns when work of a process is due if all other work on the device runs first. */
static uint64_t due_behind(uint64_t due_ns, uint64_t out_ns, const penstock_gate_slot *slot) {
  return due_ns ? due_ns + other_out_ns(out_ns, load(&slot->estimate_ns)) : 0;
}

/* Returns the tenant's work that is due first, not counting the work on the stream `but`. */
static tenant_due due_first(penstock_process *process, gate_state *state, int here,
                            const gate_stream *but, uint64_t now_ns) {
  penstock_usage_page *usage = process->region.usage;
  const penstock_gate_slot *own = gate_slot(process, state, here);
  unsigned devices = penstock_region_device_count(&process->region);
  first_due first = {.but = but, .sharing = contention_of(process, state, here)};
  each_busy(state, here, see_due, &first);
  uint64_t due = due_behind(first.due_ns, out_ns(usage, (unsigned)here), own);
  tenant_due out = {due, (unsigned)here, first.unknown};
  for (unsigned device = 0; device < devices; device++) {
    const penstock_gate_device *gate = &usage->gate[device];
    penstock_working_scan(usage, device, now_ns);
    uint64_t all_ns = out_ns(usage, device);
    for (penstock_working at = penstock_working_begin(usage, device);
         penstock_working_next(gate, &at);) {
      const penstock_gate_slot *slot = &usage->slots[at.slot].gate[device];
      if (slot == own || !load(&slot->busy_since_ns)) continue;
      due = due_behind(load(&slot->due_ns), all_ns, slot);
      if (!due || (out.due_ns && out.due_ns <= due)) continue;
      out.due_ns = due;
      out.device = device;
    }
  }
  return out;
}

uint64_t gate_expected_ns(penstock_process *process, gate_state *state, int grant,
                          uint64_t now_ns) {
  tenant_due first = due_first(process, state, grant, NULL, now_ns);
  return first.unknown ? 0 : first.due_ns;
}

/* Only work of the same process runs in parallel; other processes alternate with it. */
void gate_overrun_outlasts(gate_state *state, const gate_stream *stream,
                           const gate_window *window) {
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  if (__builtin_expect(!window->overdraft_ns, 1) || !process || grant < 0) return;
  first_due first = {.but = stream, .sharing = contention_of(process, state, grant)};
  each_busy(state, grant, see_due, &first);
  if (first.due_ns && first.due_ns <= window->opened_ns) {
    penstock_gate_let_back(gate_device(process, grant), window->overdraft_ns);
  }
}

/* Returns when to check again at the latest whether work waits for this launch, or 0 if there is no
 * need. */
static uint64_t next_check_ns(const penstock_process *process, int grant, uint64_t now_ns) {
  const penstock_gate_device *gate = gate_device(process, grant);
  if (load(&gate->together_until_ns) > now_ns) return now_ns + TOGETHER_CHECK_NS;
  return penstock_region_device_count(&process->region) > 1 ? now_ns + APART_CHECK_NS : 0;
}

/* Returns the time that the launch counts as if it is admitted. If its cost is unknown, each
 * process may be launching the same kernel. */
static uint64_t counts_as_ns(penstock_process *process, gate_state *state, int grant,
                             const gate_kind *kind) {
  bool known = !__atomic_load_n(&kind->estimated, __ATOMIC_RELAXED);
  uint64_t usual = known ? least_usual_ns(penstock_cost_usual_ns(&kind->cost)) : 0;
  return usual ? usual : UNKNOWN_NS * gate_busy_processes(process, state, grant);
}

bool gate_overrun_lets_go(penstock_process *process, gate_state *state, gate_stream *stream,
                          uint64_t now_ns, const gate_kind *kind, uint64_t *check_ns,
                          uint64_t *overdraft_ns) {
  int grant = stream->context->grant;
  /* Earlier work on the launch's own stream does not wait for the launch. */
  tenant_due first = due_first(process, state, grant, stream, now_ns);
  uint64_t next = next_check_ns(process, grant, now_ns);
  bool overruns = first.due_ns && now_ns > first.due_ns;
  *check_ns = !overruns && first.due_ns && (!next || first.due_ns < next) ? first.due_ns : next;
  uint64_t calibration_ns;
  if (gate_is_suspended(process)) return false;
  if (gate_calibration_forbids(process, state, grant, now_ns, &calibration_ns))
    return false; /* the calibration slice is short */
  uint64_t cost_ns = counts_as_ns(process, state, grant, kind);
  bool may = penstock_gate_let_go(
      process->region.usage->gate, penstock_region_device_count(&process->region), (unsigned)grant,
      overruns ? (int)first.device : -1, overruns ? now_ns - first.due_ns : 0, cost_ns, now_ns);
  *overdraft_ns = may ? cost_ns : 0;
  if (may) __atomic_store_n(&state->let_go_ns[grant], now_ns, __ATOMIC_RELAXED);
  return may;
}
