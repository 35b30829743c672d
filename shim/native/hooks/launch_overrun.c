/* Work that runs on although it should have ended: it may wait for a launch that is at the gate.
 *
 * Kernels wait for each other: ranks of a collective on several devices, in threads or processes of
 * one tenant; stages of a pipeline; streams that hand over to each other. If the gate of one side
 * is shut, the other side's kernel spins, which is charged to its device, whose gate is then shut
 * for longer than the first one's, and so on: each round waits longer than the one before.
 * Therefore
 *   - a launch that waits at a shut gate while work of the tenant's overruns what such work usually
 *     takes goes at once. It is charged, and not much more than PENSTOCK_GATE_OVERDRAFT_NS go so
 *     between two openings of the gate: the share holds;
 *   - devices that were seen to wait for each other open together (mechanism/together.c).
 *
 * A thread that waits, for work or at the gate, says in its process's slot since when that work has
 * been running and when it is due; that is all others go by. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "mechanism/working.h"

/* Beyond what the work usually takes, and an eighth of that. */
#define SLACK_NS 300000
#define CROWD_SLACK_NS 20000000 /* beside others: their time slices */
/* What was never measured may be long: it is due this long after it began, for each process that
 * has work out, whether it was seen at work lately or not. */
#define UNMEASURED_NS 400000000
/* How often to look for work of others that may wait for this launch. */
#define TOGETHER_LOOK_NS 500000
#define APART_LOOK_NS 2000000
/* Of what was never measured few go before that is seen to: it may be anything. */
#define UNKNOWN_NS (PENSTOCK_GATE_OVERDRAFT_NS / 4)

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

typedef struct work {
  uint64_t since_ns;    /* when it began, as far as known; 0: there is none */
  uint64_t usual_ns;    /* what it usually takes; UINT64_MAX: nobody knows */
  uint64_t estimate_ns; /* its part of the slot's */
} work;

/* Where no launch can be measured by itself, what was measured may be mostly waiting. */
static uint64_t least_usual_ns(uint64_t usual_ns) {
  enum { MOST_NS = 1000000 };
  const gate_state *state = gate_state_get();
  if (__builtin_expect(!state || !state->few_queues, 1)) return usual_ns;
  return usual_ns ? earlier(usual_ns, MOST_NS) : GATE_UNKNOWN_NS;
}

uint64_t gate_usual_ns(const gate_bracket *bracket) {
  uint64_t ns = bracket->rest_ns;
  for (uint32_t i = 0; i < bracket->part_count; i++) {
    const gate_part *part = &bracket->parts[i];
    uint64_t usual = least_usual_ns(penstock_cost_usual_ns(gate_measured(part)));
    if (!usual) return UINT64_MAX;
    ns += part->launches * usual;
  }
  return ns;
}

static uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

static void add(work *to, const gate_bracket *bracket) {
  to->usual_ns = sum(to->usual_ns, gate_usual_ns(bracket));
  to->estimate_ns += bracket->estimate_ns;
}

/* The stream's oldest work. `all`: and whatever is queued behind it. */
static work work_on(gate_stream *stream, bool all) {
  penstock_lock_acquire(&stream->lock);
  const gate_bracket *first = stream->oldest ? stream->oldest : stream->open;
  work out = {0};
  if (first) {
    out.since_ns = first->opened_ns > stream->last_end_ns ? first->opened_ns : stream->last_end_ns;
    add(&out, first);
  }
  for (const gate_bracket *one = first ? first->next : NULL; all && one; one = one->next) {
    add(&out, one);
  }
  if (all && first && stream->open && first != stream->open) add(&out, stream->open);
  penstock_lock_release(&stream->lock);
  return out;
}

/* What the work of this process shares the device with. */
typedef struct company {
  uint64_t out_ns; /* what the process has out */
  uint64_t most;   /* processes that may be on the device, this one included */
  uint64_t seen;   /* those that were seen there lately */
} company;

static company company_of(penstock_process *process, gate_state *state, int grant) {
  enum { LATELY_NS = 1000000000 };
  uint64_t seen_ns = load(&state->others_seen_ns[grant]), beside = gate_neighbours(process, grant);
  company out = {.out_ns = load(&gate_slot(process, state, grant)->estimate_ns),
                 .most = beside + gate_busy_processes(process, state, grant)};
  out.seen = seen_ns && gate_tick_ns() <= seen_ns + LATELY_NS ? out.most : 1 + beside;
  return out;
}

/* What is out beside work of that estimate: it may come first, or go side by side with it. */
static uint64_t beside_ns(uint64_t out_ns, uint64_t estimate_ns) {
  return out_ns > estimate_ns ? out_ns - estimate_ns : 0;
}

/* When the work should be through at the latest, other processes' left aside; 0: nobody knows. */
static uint64_t due_ns(const work *one, const company *beside) {
  const uint64_t most_ns = 1000000000000; /* longer is no kernel, but an overflow in the making */
  if (!one->since_ns || beside->out_ns > most_ns) return 0;
  if (one->usual_ns == UINT64_MAX) return one->since_ns + UNMEASURED_NS * beside->most;
  if (one->usual_ns > most_ns) return 0;
  uint64_t alone_ns =
      one->usual_ns + one->usual_ns / 8 + beside_ns(beside->out_ns, one->estimate_ns);
  uint64_t slack_ns = beside->seen > 1 ? CROWD_SLACK_NS : SLACK_NS;
  return one->since_ns + alone_ns * beside->seen + slack_ns;
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
  company beside;
  uint64_t since_ns; /* of the oldest work; 0: none */
  uint64_t due_ns;   /* of the work that is due first; 0: there is none */
  bool unknown;      /* there is work that was never measured */
} first_due;

static void see_due(gate_stream *stream, void *to) {
  first_due *first = to;
  if (stream == first->but) return;
  work one = work_on(stream, false);
  if (!one.since_ns) return;
  first->since_ns = first->since_ns ? earlier(first->since_ns, one.since_ns) : one.since_ns;
  first->unknown = first->unknown || one.usual_ns == UINT64_MAX;
  uint64_t due = due_ns(&one, &first->beside);
  if (due) first->due_ns = first->due_ns ? earlier(first->due_ns, due) : due;
}

uint64_t gate_oldest_ns(gate_state *state, int grant) {
  first_due first = {.beside = {.most = 1, .seen = 1}};
  each_busy(state, grant, see_due, &first);
  return first.since_ns;
}

void gate_watch_look(penstock_process *process, gate_state *state, int grant, gate_stream *stream) {
  penstock_gate_slot *slot = gate_slot(process, state, grant);
  first_due first = {.beside = company_of(process, state, grant)};
  if (stream) {
    work all = work_on(stream, true);
    first.since_ns = all.since_ns;
    first.due_ns = due_ns(&all, &first.beside);
  } else {
    each_busy(state, grant, see_due, &first);
  }
  __atomic_store_n(&slot->due_ns, first.due_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->busy_since_ns, first.since_ns, __ATOMIC_RELAXED);
}

void gate_watch_begin(penstock_process *process, gate_state *state, int grant,
                      gate_stream *stream) {
  __atomic_fetch_add(&state->waiters[grant], 1, __ATOMIC_RELAXED);
  gate_watch_look(process, state, grant, stream);
}

void gate_watch_end(penstock_process *process, gate_state *state, int grant, bool goes_on) {
  if (__atomic_sub_fetch(&state->waiters[grant], 1, __ATOMIC_RELAXED)) return;
  penstock_gate_slot *slot = gate_slot(process, state, grant);
  __atomic_store_n(&slot->due_ns, 0, __ATOMIC_RELAXED);
  if (!goes_on) __atomic_store_n(&slot->busy_since_ns, 0, __ATOMIC_RELAXED);
}

typedef struct tenant_due {
  uint64_t due_ns; /* 0: nothing is out */
  unsigned device;
  bool unknown; /* work of this process was never measured */
} tenant_due;

/* What the tenant's processes have out on the device. */
static uint64_t out_ns(const penstock_usage_page *usage, unsigned device) {
  const penstock_gate_device *gate = &usage->gate[device];
  uint64_t ns = 0;
  for (penstock_working at = penstock_working_begin(usage, device);
       penstock_working_next(gate, &at);) {
    ns += load(&usage->slots[at.slot].gate[device].estimate_ns);
  }
  return ns;
}

/* When work of that process is due that others' work on the device may be before. */
static uint64_t due_behind(uint64_t due_ns, uint64_t out_ns, const penstock_gate_slot *slot) {
  return due_ns ? due_ns + beside_ns(out_ns, load(&slot->estimate_ns)) : 0;
}

/* Which work of the tenant's is due first, but for what is on the stream `but`. */
static tenant_due due_first(penstock_process *process, gate_state *state, int here,
                            const gate_stream *but, uint64_t now_ns) {
  penstock_usage_page *usage = process->region.usage;
  const penstock_gate_slot *own = gate_slot(process, state, here);
  unsigned devices = penstock_region_device_count(&process->region);
  first_due first = {.but = but, .beside = company_of(process, state, here)};
  each_busy(state, here, see_due, &first);
  uint64_t due = due_behind(first.due_ns, out_ns(usage, (unsigned)here), own);
  tenant_due out = {due, (unsigned)here, first.unknown};
  for (unsigned device = 0; device < devices; device++) {
    const penstock_gate_device *gate = &usage->gate[device];
    penstock_working_look(usage, device, now_ns);
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

/* Only work of the same process runs beside it: that of others takes turns with it. */
void gate_overrun_outlasts(gate_state *state, const gate_stream *stream,
                           const gate_bracket *bracket) {
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  if (__builtin_expect(!bracket->overdraft_ns, 1) || !process || grant < 0) return;
  first_due first = {.but = stream, .beside = company_of(process, state, grant)};
  each_busy(state, grant, see_due, &first);
  if (first.due_ns && first.due_ns <= bracket->opened_ns) {
    penstock_gate_let_back(gate_device(process, grant), bracket->overdraft_ns);
  }
}

/* Should this launch look more often for who may come to wait for it? */
static uint64_t next_look_ns(const penstock_process *process, int grant, uint64_t now_ns) {
  const penstock_gate_device *gate = gate_device(process, grant);
  if (load(&gate->together_until_ns) > now_ns) return now_ns + TOGETHER_LOOK_NS;
  return penstock_region_device_count(&process->region) > 1 ? now_ns + APART_LOOK_NS : 0;
}

/* What the launch counts as that is let go. What nobody knows may be the same in each process. */
static uint64_t counts_as_ns(penstock_process *process, gate_state *state, int grant,
                             const gate_kind *kind) {
  bool known = !__atomic_load_n(&kind->estimated, __ATOMIC_RELAXED);
  uint64_t usual = known ? least_usual_ns(penstock_cost_usual_ns(&kind->cost)) : 0;
  return usual ? usual : UNKNOWN_NS * gate_busy_processes(process, state, grant);
}

bool gate_overrun_lets_go(penstock_process *process, gate_state *state, gate_stream *stream,
                          uint64_t now_ns, const gate_kind *kind, uint64_t *look_ns,
                          uint64_t *overdraft_ns) {
  int grant = stream->context->grant;
  /* What is before it on the stream itself does not wait for it. */
  tenant_due first = due_first(process, state, grant, stream, now_ns);
  uint64_t next = next_look_ns(process, grant, now_ns);
  bool overruns = first.due_ns && now_ns > first.due_ns;
  *look_ns = !overruns && first.due_ns && (!next || first.due_ns < next) ? first.due_ns : next;
  uint64_t quiet_ns;
  if (gate_is_suspended(process)) return false;
  if (gate_quiet_forbids(process, state, grant, now_ns, &quiet_ns)) return false; /* it is short */
  uint64_t cost_ns = counts_as_ns(process, state, grant, kind);
  bool may = penstock_gate_let_go(
      process->region.usage->gate, penstock_region_device_count(&process->region), (unsigned)grant,
      overruns ? (int)first.device : -1, overruns ? now_ns - first.due_ns : 0, cost_ns, now_ns);
  *overdraft_ns = may ? cost_ns : 0;
  if (may) __atomic_store_n(&state->let_go_ns[grant], now_ns, __ATOMIC_RELAXED);
  return may;
}
