/* The way of a launch through the gate: admitted, counted in a bracket, let go. */
#include "hooks/launch_state.h"
#include "hooks/local_memory.h"

#include <pthread.h>

#include "mechanism/lock.h"

#define ASK_AGAIN_NS 20000000
#define MOST_GUESS_NS 20000000 /* of a launch of unknown cost, unless others take longer */

penstock_gate_device *gate_device(const penstock_process *process, int grant) {
  return &process->region.usage->gate[grant];
}

uint32_t gate_permille(const penstock_process *process, int grant) {
  const penstock_limits *limits = penstock_region_limits(&process->region);
  const penstock_device_limit *limit = &limits->devices[grant];
  uint32_t permille = limit->cores_permille;
  bool lent = limits->mode == PENSTOCK_MODE_ELASTIC && limit->allowance_permille > permille;
  if (lent) permille = limit->allowance_permille;
  /* What is lent may be asked back at any time, and who has neighbours may get work from them: even
   * all of the device is let out a little at a time then. A deep queue would keep it from its owner
   * for as long as it is, and be a debt at the smaller share. */
  if (permille >= PENSTOCK_GATE_FULL_PERMILLE && (lent || limit->sharers > 1)) permille--;
  return permille ? permille : 1;
}

static uint32_t sharers_beside(const penstock_process *process, int grant) {
  const penstock_device_limit *limit = &penstock_region_limits(&process->region)->devices[grant];
  uint32_t sharers = limit->busy_sharers ? limit->busy_sharers : limit->sharers;
  return sharers > 1 ? sharers - 1 : 0;
}

uint32_t gate_neighbours(const penstock_process *process, int grant) {
  uint32_t beside = sharers_beside(process, grant);
  /* Each has its own turn. */
  return beside && gate_turns_live(process, grant, gate_tick_ns()) ? 0 : beside;
}

uint32_t gate_neighbours_of(const penstock_process *process, int grant,
                            const gate_bracket *bracket) {
  return bracket->turn_ns ? 0 : sharers_beside(process, grant);
}

bool gate_is_suspended(const penstock_process *process) {
  return penstock_region_limits(&process->region)->flags & PENSTOCK_TENANT_SUSPENDED;
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Does anything decide when launches go? */
static bool is_gated(const penstock_process *process, int grant) {
  return gate_permille(process, grant) < PENSTOCK_GATE_FULL_PERMILLE ||
         gate_turns_on(process, grant);
}

/* In turns, with their account, or by the local gate's. */
static bool has_credit(penstock_process *process, gate_state *state, int grant, uint64_t now_ns,
                       uint64_t cost_ns, uint64_t *wait_ns) {
  uint32_t permille = gate_permille(process, grant);
  if (__builtin_expect(gate_turns_on(process, grant), 0)) {
    gate_turn_answer answer = gate_turn_ask(process, state, grant, now_ns, cost_ns, wait_ns);
    if (answer == GATE_OWN_TURN) {
      penstock_gate_follow(gate_device(process, grant), permille, now_ns);
    }
    if (answer != GATE_NO_TURNS) return answer == GATE_OWN_TURN;
  }
  if (permille >= PENSTOCK_GATE_FULL_PERMILLE) return true;
  penstock_gate_launch launch = {.now_ns = now_ns,
                                 .in_flight_ns = gate_in_flight_ns(process, state, grant, now_ns)};
  gate_round_ask(state, grant, gate_slot(process, state, grant), permille, &launch);
  return penstock_gate_admit_together(process->region.usage->gate,
                                      penstock_region_device_count(&process->region),
                                      (unsigned)grant, permille, &launch, wait_ns);
}

bool gate_may_go(penstock_process *process, gate_state *state, int grant, uint64_t now_ns,
                 uint64_t cost_ns, uint64_t *wait_ns) {
  if (gate_is_suspended(process)) {
    *wait_ns = ASK_AGAIN_NS;
    return false;
  }
  if (!is_gated(process, grant)) return true;
  if (gate_quiet_forbids(process, state, grant, now_ns, wait_ns)) return false;
  if (!has_credit(process, state, grant, now_ns, cost_ns, wait_ns)) return false;
  gate_quiet_begin(process, state, grant, now_ns);
  return true;
}

/* A stream that captures is left alone: its launches are charged when the graph is launched. */
bool gate_is_capturing(const gate_state *state, const gate_stream *stream) {
  if (__builtin_expect(!__atomic_load_n(&state->captures, __ATOMIC_RELAXED), 1)) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  REAL(cuStreamIsCapturing)(stream->handle, &status);
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static uint64_t this_thread(void) { return (uint64_t)pthread_self(); }

void gate_note_blocking(gate_stream *stream) {
  if (__builtin_expect(!stream->blocking, 1)) return;
  uint64_t *word = &stream->context->blocking, seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  if (seen == this_thread() || seen == GATE_SEVERAL) return;
  uint64_t next = seen ? GATE_SEVERAL : this_thread();
  __atomic_compare_exchange_n(word, &seen, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Would anything on the legacy stream now be drawn into a capture, and break it? */
static bool is_drawn_in(const gate_state *state) {
  if (__builtin_expect(!__atomic_load_n(&state->captures, __ATOMIC_RELAXED), 1)) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return REAL(cuStreamIsCapturing)(CU_STREAM_LEGACY, &status) != CUDA_SUCCESS;
}

/* An event is an item in a queue. On the legacy stream it waits for all blocking streams, and they
 * for it: work of theirs that waits for a launch behind the event would wait for ever. Directly at
 * a launch there it waits for nothing that the launch does not wait for, unless another thread
 * queues something between. Where streams share one hardware queue, what is behind an event there
 * waits for what is before it, whichever streams they are of. */
bool gate_may_mark(const gate_state *state, const gate_stream *stream) {
  if (__builtin_expect(state->few_queues, 0)) return false;
  if (stream->handle != CU_STREAM_LEGACY) return true;
  uint64_t blocking = __atomic_load_n(&stream->context->blocking, __ATOMIC_RELAXED);
  return (!blocking || blocking == this_thread()) && !is_drawn_in(state);
}

bool gate_may_mark_apart(const gate_state *state, const gate_stream *stream) {
  if (stream->handle == CU_STREAM_LEGACY &&
      __atomic_load_n(&stream->context->blocking, __ATOMIC_RELAXED)) {
    return false;
  }
  return gate_may_mark(state, stream);
}

bool gate_is_asked(const gate_state *state, const gate_stream *stream) {
  return !gate_may_mark_apart(state, stream) &&
         !(stream->handle == CU_STREAM_LEGACY && is_drawn_in(state));
}

/* Has the stream run dry since its last launch: certainly, or by experience? The last end may lie
 * ahead where another thread's launch joined behind the event. Under its lock. */
static bool is_dry(const gate_stream *stream, uint64_t now_ns) {
  if (stream->newest) return false;
  return (stream->idle && now_ns >= stream->last_end_ns) ||
         now_ns > stream->drained_ns + GATE_DRY_SLACK_NS;
}

/* The same without the lock; is it certainly idle as well? */
static bool look_dry(gate_stream *stream, uint64_t now_ns, bool *idle) {
  penstock_lock_acquire(&stream->lock);
  bool dry = is_dry(stream, now_ns);
  *idle = stream->idle;
  penstock_lock_release(&stream->lock);
  return dry;
}

/* Is its cost measured, as it is now? */
static bool is_known(const gate_kind *kind) {
  return penstock_cost_ns(&kind->cost, 0) && !__atomic_load_n(&kind->changed, __ATOMIC_RELAXED);
}

/* May an end be recorded that is to be seen, though no sample was drawn? Samples keep theirs. */
static bool may_watch(const gate_stream *stream, uint64_t now_ns) {
  enum { CALLS = 3, SPARE = 256 };
  return gate_may_call(stream, now_ns, CALLS, SPARE);
}

/* Did launches of late that nobody waited for end far later than they mostly do, or so it must be
 * taken to be? Then ends are recorded as far as the budget goes. */
static bool is_unclear(const gate_stream *stream, uint64_t now_ns) {
  const uint64_t lately_ns = PENSTOCK_COST_WINDOW_NS; /* in which the longest is to be seen again */
  return stream->unclear_ns && now_ns < stream->unclear_ns + lately_ns;
}

/* Is it to be measured, whatever is drawn? One that is changed all the time, or that nothing but
 * guesses is known of, as often as the budget of calls allows. */
static bool is_to_be_measured(const gate_stream *stream, const gate_kind *kind, uint64_t now_ns) {
  if (!penstock_cost_ns(&kind->cost, 0)) return true;
  bool stale = __atomic_load_n(&kind->changed, __ATOMIC_RELAXED) ||
               __atomic_load_n(&kind->doubted, __ATOMIC_RELAXED);
  return stale && gate_may_call(stream, now_ns, 4, 16);
}

/* Opens, ends and settles what is due before a launch. */
static void prepare(gate_state *state, gate_stream *stream, penstock_pass *pass, uint64_t now_ns) {
  gate_arrears_charge(state, stream);
  if (stream->oldest) gate_bracket_settle(state, stream);
  bool unknown = is_to_be_measured(stream, pass->kind, now_ns);
  bool idle, other_turn = stream->open && stream->open->turn_ns != pass->turn_ns;
  if (stream->open && look_dry(stream, now_ns, &idle)) {
    gate_bracket_close(state, stream, true);
  } else if (stream->open && (unknown || other_turn) && !pass->overlapping) {
    gate_bracket_end(state, stream, true);
  } else if (other_turn) {
    stream->open->turn_ns = 0; /* it lies in two: whose time is in it nobody can tell */
  }
  if (stream->open) return;
  bool due = unknown, rolls = false, dry = look_dry(stream, now_ns, &idle);
  bool behind = __atomic_load_n(&stream->interrupted, __ATOMIC_RELAXED); /* its start is marked */
  bool may = !pass->overlapping && gate_may_mark(state, stream);
  if (may && dry) {
    due = due || (idle && stream->probed) ||
          gate_sample_due(state, stream, gate_is_plain(state, stream, pass->kind, now_ns), now_ns);
  } else if (may && (stream->left_open || behind)) { /* when it begins is known */
    rolls = gate_sample_due(state, stream, false, now_ns);
  }
  rolls = rolls || (behind && due && !idle);
  bool watched = may && !due && !rolls && is_unclear(stream, now_ns) && may_watch(stream, now_ns);
  stream->probed = due && !idle; /* is it idle indeed? The next one will be the sample */
  gate_bracket_open(state, stream, due && idle, now_ns);
  gate_bracket *open = stream->open;
  if (!open) return;
  pass->alone = unknown;
  rolls = rolls || watched || stream->probed ||
          (open->sample && (stream->prompt || state->launches_block));
  penstock_lock_acquire(&stream->lock); /* other threads' launches join it already */
  open->turn_ns = pass->turn_ns;
  open->rolling = rolls && !unknown && !pass->overlapping;
  open->watched = watched;
  penstock_lock_release(&stream->lock);
  if (open->sample || open->rolling) pass->entered_ns = open->opened_ns;
}

static bool is_of(const gate_part *part, const penstock_pass *pass) {
  return part->kind == pass->kind && part->generation == pass->generation;
}

/* Counts the launch in the stream's open bracket, or on its stray account while another thread is
 * at work there. Under the stream's lock. */
static void count(gate_stream *stream, penstock_pass *pass, uint64_t now_ns) {
  gate_bracket *open = stream->open;
  stream->launched++;
  pass->stray = !open;
  pass->place = 0;
  if (__builtin_expect(stream->dead || stream->gone, 0)) { /* nobody would ever settle it */
    __atomic_fetch_sub(&pass->slot->estimate_ns, pass->estimate_ns, __ATOMIC_RELAXED);
    return;
  }
  stream->queued++;
  stream->queued_ns += pass->cost_ns;
  stream->idle = false;
  pass->place = open ? open->number : stream->number + 1; /* which takes the strays */
  if (!open) {
    if (!stream->stray_launches) stream->stray_since_ns = now_ns;
    stream->stray_ns += pass->estimate_ns;
    stream->stray_cost_ns += pass->cost_ns;
    stream->stray_launches++;
    return;
  }
  open->estimate_ns += pass->estimate_ns;
  open->cost_ns += pass->cost_ns;
  open->overdraft_ns += pass->overdraft_ns;
  open->launches++;
  uint32_t i = 0;
  while (i < open->part_count && !is_of(&open->parts[i], pass)) i++;
  if (i < GATE_PARTS) {
    if (i == open->part_count) {
      open->parts[i] =
          (gate_part){.kind = pass->kind,
                      .generation = pass->generation,
                      .version = __atomic_load_n(&pass->kind->version, __ATOMIC_RELAXED)};
      open->part_count++;
    }
    open->parts[i].launches++;
    open->parts[i].cost_ns += pass->cost_ns;
  } else {
    open->rest_ns += pass->cost_ns;
  }
  pass->bracket = open->number;
  pass->counted_ns = now_ns;
  pass->bracket_ns = open->cost_ns;
  pass->rolling = open->rolling;
}

/* Can a launch join the stream's open bracket as it is, with nothing due before? This is what makes
 * most launches cheap. Under the stream's lock, so the driver is not asked here. */
static bool can_join(const gate_stream *stream, uint64_t now_ns) {
  enum { SPARE = 32 };
  const gate_bracket *oldest = stream->oldest;
  if (!oldest) return true;
  return gate_asks_driver(stream, oldest) ? !gate_may_call(stream, now_ns, 1, SPARE)
                                          : !gate_is_through(stream, oldest);
}

/* The same behind a pause: the open bracket stands for this launch from now on. */
static bool can_follow(gate_state *state, const gate_stream *stream, const penstock_pass *pass,
                       uint64_t now_ns) {
  return !pass->overlapping && gate_arrears_may_grow(state, stream, pass->slot, pass->kind, now_ns);
}

/* Readies the open bracket for the launch, where no driver call is due before it. Under the
 * stream's lock. */
static bool is_ready(gate_state *state, gate_stream *stream, const penstock_pass *pass,
                     uint64_t *now_ns) {
  const gate_bracket *open = stream->open;
  if (!open || stream->working || !is_known(pass->kind)) return false;
  if (open->turn_ns != pass->turn_ns) return false;
  if (open->start || open->rolling) *now_ns = gate_now_ns(); /* what is measured ends in time */
  if (!is_dry(stream, *now_ns)) return can_join(stream, *now_ns);
  if (!can_follow(state, stream, pass, *now_ns)) return false;
  *now_ns = gate_now_ns();
  gate_arrears_grow(stream, *now_ns);
  return true;
}

/* Counts the launch, after doing what is due before it. */
static void enlist(gate_state *state, gate_stream *stream, penstock_pass *pass, uint64_t now_ns,
                   uint32_t share) {
  penstock_lock_acquire(&stream->lock);
  if (!is_ready(state, stream, pass, &now_ns) && !stream->working && !stream->dead &&
      !stream->gone) {
    stream->working = true;
    penstock_lock_release(&stream->lock);
    now_ns = gate_now_ns();
    prepare(state, stream, pass, now_ns);
    penstock_lock_acquire(&stream->lock);
    stream->working = false;
  }
  count(stream, pass, now_ns);
  if (pass->rolling && !pass->entered_ns) pass->entered_ns = now_ns;
  uint64_t from = stream->drained_ns > now_ns ? stream->drained_ns : now_ns;
  pass->ahead_ns = pass->cost_ns * share;
  uint64_t drained = stream->drained_ns = from + pass->ahead_ns;
  penstock_lock_release(&stream->lock);
  uint64_t *last = &state->drained_ns[stream->context->grant];
  if (drained > __atomic_load_n(last, __ATOMIC_RELAXED)) {
    __atomic_store_n(last, drained, __ATOMIC_RELAXED); /* of two threads the later one may win */
  }
  if (pass->turn_ns) gate_turn_launched(penstock_process_get(), stream->context->grant, drained);
}

uint64_t gate_likely_ns(const gate_state *state, const gate_kind *kind) {
  uint64_t typical = __atomic_load_n(&state->typical_ns, __ATOMIC_RELAXED);
  return penstock_cost_ns(&kind->cost, typical ? typical : GATE_UNKNOWN_NS);
}

static uint32_t queued_on(gate_stream *stream) {
  penstock_lock_acquire(&stream->lock);
  uint32_t queued = stream->queued;
  penstock_lock_release(&stream->lock);
  return queued;
}

/* What a launch of unknown cost is taken to cost: as much as others do, or as before it was
 * changed. Each further launch of the kind before it was measured counts four times as much as the
 * one before it, so that a long kernel cannot flood the device; and where nothing is measured until
 * the stream has run dry, each further launch there. */
static uint64_t guess_ns(gate_state *state, gate_stream *stream, gate_kind *kind) {
  enum { MOST_FOURFOLD = 6 };
  uint32_t before = __atomic_fetch_add(&kind->unmeasured, 1, __ATOMIC_RELAXED);
  if (gate_is_asked(state, stream)) before = (uint32_t)later(before, queued_on(stream));
  uint64_t mean = gate_likely_ns(state, kind);
  uint64_t guess = mean << 2 * (before < MOST_FOURFOLD ? before : MOST_FOURFOLD);
  uint64_t most = mean > MOST_GUESS_NS ? mean : MOST_GUESS_NS;
  return guess < most ? guess : most;
}

/* One that the driver refused will never be measured. */
static void unguess(const penstock_pass *pass) {
  gate_kind *kind = pass->kind;
  if (gate_kind_is_gone(kind, pass->generation)) return;
  uint32_t before = __atomic_load_n(&kind->unmeasured, __ATOMIC_RELAXED);
  while (before && !__atomic_compare_exchange_n(&kind->unmeasured, &before, before - 1, true,
                                                __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

/* The estimate of such a launch: each process beside may be about to learn the same kernel. */
static uint64_t for_all_ns(uint64_t guess_ns, uint64_t processes) {
  uint64_t all = guess_ns * processes, most = guess_ns > MOST_GUESS_NS ? guess_ns : MOST_GUESS_NS;
  return all < most ? all : most;
}

/* The first launch of a kind in a context. Where that raised its charge, the next launch looks
 * again: this one may yet be refused. */
static CUresult admit(penstock_pass *pass, const gate_stream *stream, gate_kind *kind,
                      const penstock_kind_key *key, uint64_t admission) {
  const gate_context *context = stream->context;
  CUresult result = penstock_kernel_admit(key, context->handle, context->grant, &pass->raise);
  if (result == CUDA_SUCCESS && !pass->raise.to) {
    __atomic_store_n(&kind->admitted, admission, __ATOMIC_RELAXED);
  }
  return result;
}

/* The stream went while its launch waited at the gate. */
static CUresult went_meanwhile(const penstock_pass *pass, CUstream handle) {
  CUresult result = gate_stream_missing(handle);
  if (result != CUDA_SUCCESS) penstock_local_memory_undo(&pass->raise);
  return result;
}

CUresult penstock_gate_enter(penstock_pass *pass, CUstream handle, bool per_thread_default,
                             const penstock_kind_key *key) {
  pass->stream = NULL;
  pass->raise.to = 0;
  penstock_process *process = penstock_process_get();
  if (__builtin_expect(!process, 0)) return CUDA_ERROR_SYSTEM_NOT_READY;
  gate_state *state = gate_state_get();
  if (__builtin_expect(!state, 0)) return CUDA_ERROR_OUT_OF_MEMORY;
  gate_stream *stream = gate_stream_get(state, handle, per_thread_default);
  if (__builtin_expect(!stream, 0)) return gate_stream_missing(handle);
  int grant = stream->context->grant;
  if (grant < 0) return CUDA_ERROR_NOT_PERMITTED; /* a device that was not granted */
  if (gate_is_capturing(state, stream)) return CUDA_SUCCESS;
  gate_kind *kind = gate_kind_get(state, key, &pass->generation);
  const uint64_t admission = penstock_admission_of(key->what, stream->context->birth);
  if (__builtin_expect(__atomic_load_n(&kind->admitted, __ATOMIC_RELAXED) != admission, 0)) {
    CUresult refused = admit(pass, stream, kind, key, admission);
    if (refused != CUDA_SUCCESS) return refused;
  }
  pass->kind = kind;
  pass->bracket = pass->bracket_ns = pass->overdraft_ns = 0;
  pass->entered_ns = 0;
  pass->alone = pass->rolling = false;

  /* Where nothing is gated, a tick of the kernel's timer is exact enough to tell a busy stream from
   * a dry one, and takes a sixth of the time to read. */
  bool turns = gate_turns_on(process, grant);
  bool gated = turns || gate_permille(process, grant) < PENSTOCK_GATE_FULL_PERMILLE;
  uint64_t now_ns = gated ? gate_now_ns() : gate_tick_ns(), wait_ns;
  if ((gated || gate_is_suspended(process)) &&
      !gate_may_go(process, state, grant, now_ns, gate_likely_ns(state, kind), &wait_ns)) {
    pass->overdraft_ns = gate_wait(process, state, stream, kind, wait_ns);
    state = gate_state_get(); /* looks up anew what went meanwhile */
    stream = gate_stream_get(state, handle, per_thread_default);
    if (!stream) return went_meanwhile(pass, handle);
    kind = pass->kind = gate_kind_get(state, key, &pass->generation);
    now_ns = gate_now_ns();
    turns = gate_turns_on(process, grant);
  }
  pass->turn_ns = __builtin_expect(turns, 0) ? gate_turn_own(process, grant, now_ns) : 0;
  pass->cost_ns = penstock_cost_ns(&kind->cost, 0);
  pass->guessed = !is_known(kind);
  if (__builtin_expect(pass->guessed, 0)) {
    pass->estimate_ns = pass->cost_ns = guess_ns(state, stream, kind);
    if (!penstock_cost_ns(&kind->cost, 0)) {
      pass->estimate_ns = for_all_ns(pass->cost_ns, gate_busy_processes(process, state, grant));
    }
  } else {
    uint32_t overlap = __atomic_load_n(&state->overlap, __ATOMIC_RELAXED);
    pass->estimate_ns = pass->cost_ns * overlap / GATE_FULL_SCALE;
  }
  penstock_gate_slot *slot = gate_slot(process, state, grant);
  gate_admitted(process, slot, grant, pass->estimate_ns);
  pass->slot = slot;
  gate_note_blocking(stream);
  enlist(state, stream, pass, now_ns, 1 + gate_neighbours(process, grant));
  if (gated) gate_round_launched(state, stream, pass);
  pass->stream = stream;
  pass->enough_ns = gated && !pass->overlapping ? GATE_BRACKET_NS : GATE_FREE_BRACKET_NS;
  return CUDA_SUCCESS;
}

/* Takes the launch out of the bracket that it is counted in. */
static void take_out(gate_bracket *bracket, const penstock_pass *pass) {
  bracket->estimate_ns -= earlier(bracket->estimate_ns, pass->estimate_ns);
  bracket->cost_ns -= earlier(bracket->cost_ns, pass->cost_ns);
  if (bracket->launches) bracket->launches--;
  if (bracket->ended > bracket->launches) bracket->ended = bracket->launches;
  for (uint32_t i = 0; !pass->stray && i < bracket->part_count; i++) {
    gate_part *part = &bracket->parts[i];
    if (!is_of(part, pass) || !part->launches) continue;
    part->launches--;
    part->cost_ns -= earlier(part->cost_ns, pass->cost_ns);
    return;
  }
  bracket->rest_ns -= earlier(bracket->rest_ns, pass->cost_ns);
}

/* The bracket that it is counted in by now; NULL: none yet, or one that is settled. */
static gate_bracket *bracket_of(const gate_stream *stream, const penstock_pass *pass) {
  gate_bracket *bracket = stream->oldest;
  while (bracket && bracket->number != pass->place) bracket = bracket->next;
  if (!bracket && stream->open && stream->open->number == pass->place) bracket = stream->open;
  return bracket;
}

/* The driver refused: the launch never was. What was settled in between was given up then. */
static void uncount(gate_state *state, const penstock_pass *pass) {
  gate_stream *stream = pass->stream;
  penstock_lock_acquire(&stream->lock);
  gate_bracket *bracket = bracket_of(stream, pass);
  bool apart = !bracket && stream->number < pass->place && stream->stray_launches;
  if (bracket) take_out(bracket, pass);
  if (apart) {
    stream->stray_ns -= earlier(stream->stray_ns, pass->estimate_ns);
    stream->stray_cost_ns -= earlier(stream->stray_cost_ns, pass->cost_ns);
    stream->stray_launches--;
  }
  bool counted = pass->place && (bracket || apart);
  if (counted) {
    stream->queued_ns -= earlier(stream->queued_ns, pass->cost_ns);
    stream->drained_ns -= earlier(stream->drained_ns, pass->ahead_ns);
    if (stream->queued) stream->queued--;
  }
  penstock_lock_release(&stream->lock);
  if (!counted) return;
  gate_give_up(state, stream, pass->estimate_ns, 0, 0);
  if (pass->guessed) unguess(pass);
}

/* Ends the launch's bracket, which is long enough, or was opened for this launch alone; rolls its
 * end on if that rolls, or lets go of it where only its watching pays for that and cannot. Work on
 * many streams at once is worth more than the wall clock: brackets grow when the calls get too
 * many. */
static void conclude(const penstock_pass *pass) {
  enum { MOST_GROWTH = 64, CALLS = 3, SPARE = 32 };
  gate_stream *stream = pass->stream;
  gate_state *state = gate_state_get();
  bool rolls = pass->rolling && !pass->overlapping && pass->bracket_ns < pass->enough_ns;
  bool drawn = pass->entered_ns != 0; /* it had its budget then */
  if (!state || (!pass->alone && !drawn && pass->bracket_ns < MOST_GROWTH * pass->enough_ns &&
                 !gate_may_call(stream, gate_now_ns(), CALLS, SPARE))) {
    return;
  }
  if (!gate_stream_claim(stream)) return;
  gate_bracket *open = stream->open;
  if (open && open->number == pass->bracket) {
    if (!drawn) open->counted_ns = pass->counted_ns;
    bool first = pass->bracket_ns == pass->cost_ns;
    if (!rolls) {
      gate_bracket_end(state, stream, true);
    } else if (first || !open->watched || may_watch(stream, gate_now_ns())) {
      gate_bracket_roll(state, stream);
    } else {
      gate_bracket_unwatch(stream);
    }
  }
  gate_stream_release(stream);
}

/* Notes in a sample how long its launch call took, if too long. */
static void note_hold_up(const penstock_pass *pass) {
  uint64_t took_ns = gate_now_ns() - pass->entered_ns;
  if (took_ns <= GATE_HELD_UP_NS) return;
  gate_stream *stream = pass->stream;
  penstock_lock_acquire(&stream->lock);
  gate_bracket *open = stream->open;
  if (open && open->number == pass->bracket) open->held_ns += took_ns;
  penstock_lock_release(&stream->lock);
}

CUresult penstock_gate_leave(penstock_pass *pass, CUresult result) {
  bool made = __builtin_expect(result == CUDA_SUCCESS, 1);
  if (!made) penstock_local_memory_undo(&pass->raise);
  if (!pass->stream) return result;
  gate_state *state = made ? NULL : gate_state_get();
  if (state) uncount(state, pass);
  __atomic_fetch_add(&pass->stream->left, 1, __ATOMIC_RELEASE);
  if (made) {
    if (pass->entered_ns) note_hold_up(pass);
    if (pass->alone || pass->rolling || pass->bracket_ns >= pass->enough_ns) conclude(pass);
  }
  return result;
}
