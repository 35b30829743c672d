/* The way of a launch through the gate: it is admitted, counted in a timing window, and passed to
 * the driver. */
#include "hooks/launch_state.h"
#include "hooks/local_memory.h"

#include <pthread.h>

#include "mechanism/lock.h"

#define ASK_AGAIN_NS 20000000
/* Most for a launch of unknown cost, unless typical launches take longer. */
#define MOST_GUESS_NS 20000000

penstock_gate_device *gate_device(const penstock_process *process, int grant) {
  return &process->region.usage->gate[grant];
}

uint32_t gate_permille(const penstock_process *process, int grant) {
  const penstock_limits *limits = penstock_region_limits(&process->region);
  const penstock_device_limit *limit = &limits->devices[grant];
  uint32_t permille = limit->cores_permille;
  bool lent = limits->mode == PENSTOCK_MODE_ELASTIC && limit->allowance_permille > permille;
  if (lent) permille = limit->allowance_permille;
  /* A lent share can be taken back at any time, and other tenants of the device can start work
   * at any time. Therefore even a share of 100 % is gated in these cases: a deep queue would
   * keep the device from the others for its whole length, and would be an overdraft under the
   * smaller share. */
  if (permille >= PENSTOCK_GATE_FULL_PERMILLE && (lent || limit->sharers > 1)) permille--;
  return permille ? permille : 1;
}

static uint32_t other_sharers(const penstock_process *process, int grant) {
  const penstock_device_limit *limit = &penstock_region_limits(&process->region)->devices[grant];
  uint32_t sharers = limit->busy_sharers ? limit->busy_sharers : limit->sharers;
  return sharers > 1 ? sharers - 1 : 0;
}

uint32_t gate_neighbours(const penstock_process *process, int grant) {
  uint32_t others = other_sharers(process, grant);
  /* With time slices, tenants do not run at the same time. */
  return others && gate_slices_live(process, grant, gate_tick_ns()) ? 0 : others;
}

uint32_t gate_neighbours_of(const penstock_process *process, int grant, const gate_window *window) {
  return window->slice_ns ? 0 : other_sharers(process, grant);
}

bool gate_is_suspended(const penstock_process *process) {
  return penstock_region_limits(&process->region)->flags & PENSTOCK_TENANT_SUSPENDED;
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Returns true if anything restricts when launches are admitted. */
static bool is_gated(const penstock_process *process, int grant) {
  return gate_permille(process, grant) < PENSTOCK_GATE_FULL_PERMILLE ||
         gate_slices_on(process, grant);
}

/* Checks the account of time slices if there are any, otherwise the tenant's own balance. */
static bool has_credit(penstock_process *process, gate_state *state, int grant, uint64_t now_ns,
                       uint64_t cost_ns, uint64_t *wait_ns) {
  uint32_t permille = gate_permille(process, grant);
  if (__builtin_expect(gate_slices_on(process, grant), 0)) {
    gate_slice_answer answer = gate_slice_ask(process, state, grant, now_ns, cost_ns, wait_ns);
    if (answer == GATE_OWN_SLICE) {
      penstock_gate_follow(gate_device(process, grant), permille, now_ns);
    }
    if (answer != GATE_NO_SLICES) return answer == GATE_OWN_SLICE;
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
  if (gate_calibration_forbids(process, state, grant, now_ns, wait_ns)) return false;
  if (!has_credit(process, state, grant, now_ns, cost_ns, wait_ns)) return false;
  gate_calibration_begin(process, state, grant, now_ns);
  return true;
}

/* Launches on a capturing stream are not gated, because they are charged when the graph is
 * launched. */
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

/* Returns true if the shim's own work on the legacy stream would join a capture now and break
 * it. */
static bool is_drawn_in(const gate_state *state) {
  if (__builtin_expect(!__atomic_load_n(&state->captures, __ATOMIC_RELAXED), 1)) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return REAL(cuStreamIsCapturing)(CU_STREAM_LEGACY, &status) != CUDA_SUCCESS;
}

/* An event is an item in a queue. On the legacy stream it waits for all blocking streams, and they
 * wait for it. If their work waits for a launch after the event, that is a deadlock. Directly next
 * to a launch on the legacy stream, the event waits for nothing that the launch does not wait for,
 * unless another thread queues something in between. If streams share a hardware queue, all later
 * work in that queue waits for all work before the event, whichever streams it is on. */
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

/* Returns true if the stream has run dry since its last launch, either certainly or according to
 * learned costs. The last end can be in the future if another thread's launch joined after the
 * event. The caller holds the stream's lock. */
static bool is_dry(const gate_stream *stream, uint64_t now_ns) {
  if (stream->newest) return false;
  return (stream->idle && now_ns >= stream->last_end_ns) ||
         now_ns > stream->drained_ns + GATE_DRY_SLACK_NS;
}

/* Calls is_dry with the lock taken. `*idle` receives whether the stream is certainly idle. */
static bool check_dry(gate_stream *stream, uint64_t now_ns, bool *idle) {
  penstock_lock_acquire(&stream->lock);
  bool dry = is_dry(stream, now_ns);
  *idle = stream->idle;
  penstock_lock_release(&stream->lock);
  return dry;
}

/* Returns true if the cost of what the kind launches now is measured. */
static bool is_known(const gate_kind *kind) {
  return penstock_cost_ns(&kind->cost, 0) && !__atomic_load_n(&kind->changed, __ATOMIC_RELAXED);
}

/* Returns true if the budget allows an end to be recorded without a sample and still has room for
 * samples. */
static bool may_watch(const gate_stream *stream, uint64_t now_ns) {
  enum { CALLS = 3, SPARE = 256 };
  return gate_may_call(stream, now_ns, CALLS, SPARE);
}

/* Returns true if the ends of recent launches, which no thread waited for, were presumed far later
 * than the mean. Ends are then recorded as far as the budget allows. */
static bool is_unclear(const gate_stream *stream, uint64_t now_ns) {
  /* Time in which a longest launch should recur. */
  const uint64_t lately_ns = PENSTOCK_COST_PERIOD_NS;
  return stream->unclear_ns && now_ns < stream->unclear_ns + lately_ns;
}

/* Returns true if the kind must be measured even if no sample is drawn. A kind that changes all the
 * time, or whose measurements are unreliable, is measured only as often as the budget of calls
 * allows. */
static bool is_to_be_measured(const gate_stream *stream, const gate_kind *kind, uint64_t now_ns) {
  if (!penstock_cost_ns(&kind->cost, 0)) return true;
  bool stale = __atomic_load_n(&kind->changed, __ATOMIC_RELAXED) ||
               __atomic_load_n(&kind->doubted, __ATOMIC_RELAXED);
  return stale && gate_may_call(stream, now_ns, 4, 16);
}

/* Opens, ends and settles windows that are due before a launch. */
static void prepare(gate_state *state, gate_stream *stream, penstock_pass *pass, uint64_t now_ns) {
  gate_arrears_charge(state, stream);
  if (stream->oldest) gate_window_settle(state, stream);
  bool unknown = is_to_be_measured(stream, pass->kind, now_ns);
  bool idle, other_slice = stream->open && stream->open->slice_ns != pass->slice_ns;
  if (stream->open &&
      (gate_release_after(stream->open->opened_ns) || check_dry(stream, now_ns, &idle))) {
    gate_window_close(state, stream, true);
  } else if (stream->open && (unknown || other_slice) && !pass->overlapping) {
    gate_window_end(state, stream, true);
  } else if (other_slice) {
    /* The window spans two slices, so it may contain other tenants' time. */
    stream->open->slice_ns = 0;
  }
  if (stream->open) return;
  bool due = unknown, rolls = false, dry = check_dry(stream, now_ns, &idle);
  bool behind = __atomic_load_n(&stream->interrupted,
                                __ATOMIC_RELAXED); /* the start of the next window gets an event */
  bool may = !pass->overlapping && gate_may_mark(state, stream);
  if (may && dry) {
    due = due || (idle && stream->probed) ||
          gate_sample_due(state, stream, gate_is_plain(state, stream, pass->kind, now_ns), now_ns);
  } else if (may && (stream->left_open || behind)) { /* the start of the window is known */
    rolls = gate_sample_due(state, stream, false, now_ns);
  }
  rolls = rolls || (behind && due && !idle);
  bool watched = may && !due && !rolls && is_unclear(stream, now_ns) && may_watch(stream, now_ns);
  /* The window shows whether the stream is idle, and the next one is the sample. */
  stream->probed = due && !idle;
  gate_window_open(state, stream, due && idle, now_ns);
  gate_window *open = stream->open;
  if (!open) return;
  pass->alone = unknown;
  rolls = rolls || watched || stream->probed ||
          (open->sample && (stream->prompt || state->launches_block));
  penstock_lock_acquire(&stream->lock); /* other threads' launches can join the window already */
  open->slice_ns = pass->slice_ns;
  open->rolling = rolls && !unknown && !pass->overlapping;
  open->watched = watched;
  penstock_lock_release(&stream->lock);
  if (open->sample || open->rolling) pass->entered_ns = open->opened_ns;
}

static bool is_of(const gate_part *part, const penstock_pass *pass) {
  return part->kind == pass->kind && part->generation == pass->generation;
}

/* Counts the launch in the stream's open window, or as a stray while another thread has the
 * `working` flag. The caller holds the stream's lock. */
static void count(gate_stream *stream, penstock_pass *pass, uint64_t now_ns) {
  gate_window *open = stream->open;
  stream->launched++;
  pass->stray = !open;
  pass->place = 0;
  if (__builtin_expect(stream->dead || stream->gone, 0)) { /* the launch would never be settled */
    __atomic_fetch_sub(&pass->slot->estimate_ns, pass->estimate_ns, __ATOMIC_RELAXED);
    return;
  }
  stream->queued++;
  stream->queued_ns += pass->cost_ns;
  stream->idle = false;
  /* Number of the window that counts the strays. */
  pass->place = open ? open->number : stream->number + 1;
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
  pass->window = open->number;
  pass->counted_ns = now_ns;
  pass->window_ns = open->cost_ns;
  pass->rolling = open->rolling;
}

/* Returns true if a launch can join the stream's open window without any work before, which makes
 * most launches cheap. The caller holds the stream's lock, so the driver is not called here. */
static bool can_join(const gate_stream *stream, uint64_t now_ns) {
  enum { SPARE = 32 };
  const gate_window *oldest = stream->oldest;
  if (!oldest) return true;
  return gate_asks_driver(stream, oldest) ? !gate_may_call(stream, now_ns, 1, SPARE)
                                          : !gate_is_through(stream, oldest);
}

/* Returns true if the open window can continue with this launch after a pause. */
static bool can_follow(gate_state *state, const gate_stream *stream, const penstock_pass *pass,
                       uint64_t now_ns) {
  return !pass->overlapping && gate_arrears_may_grow(state, stream, pass->slot, pass->kind, now_ns);
}

/* Prepares the open window for the launch if that needs no driver call. Returns false if it does.
 * The caller holds the stream's lock. */
static bool is_ready(gate_state *state, gate_stream *stream, const penstock_pass *pass,
                     uint64_t *now_ns) {
  const gate_window *open = stream->open;
  if (!open || stream->working || !is_known(pass->kind)) return false;
  if (open->slice_ns != pass->slice_ns || gate_release_after(open->opened_ns)) return false;
  if (open->start || open->rolling)
    *now_ns = gate_now_ns(); /* exact, because measured windows must end in time */
  if (!is_dry(stream, *now_ns)) return can_join(stream, *now_ns);
  if (!can_follow(state, stream, pass, *now_ns)) return false;
  *now_ns = gate_now_ns();
  gate_arrears_grow(stream, *now_ns);
  return true;
}

/* Counts the launch, after preparing a window for it. */
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
    __atomic_store_n(last, drained, __ATOMIC_RELAXED); /* if two threads write, the last one wins */
  }
  if (pass->slice_ns) gate_slice_launched(penstock_process_get(), stream->context->grant, drained);
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

/* Returns the assumed cost of a launch of unknown cost: that of a typical launch, or its own cost
 * before it was changed. Until the kind is measured, each launch counts four times as much as the
 * one before, so that a long kernel cannot flood the device. On a stream that is not measured until
 * it has run dry, each launch of any kind counts in this way. */
static uint64_t guess_ns(gate_state *state, gate_stream *stream, gate_kind *kind) {
  enum { MOST_FOURFOLD = 6 };
  uint32_t before = __atomic_fetch_add(&kind->unmeasured, 1, __ATOMIC_RELAXED);
  if (gate_is_asked(state, stream)) before = (uint32_t)later(before, queued_on(stream));
  uint64_t mean = gate_likely_ns(state, kind);
  uint64_t guess = mean << 2 * (before < MOST_FOURFOLD ? before : MOST_FOURFOLD);
  uint64_t most = mean > MOST_GUESS_NS ? mean : MOST_GUESS_NS;
  return guess < most ? guess : most;
}

/* Removes a launch that the driver refused from the count of unmeasured launches, because it will
 * never be measured. */
static void unguess(const penstock_pass *pass) {
  gate_kind *kind = pass->kind;
  if (gate_kind_is_gone(kind, pass->generation)) return;
  uint32_t before = __atomic_load_n(&kind->unmeasured, __ATOMIC_RELAXED);
  while (before && !__atomic_compare_exchange_n(&kind->unmeasured, &before, before - 1, true,
                                                __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

/* Returns the estimate of a launch of unknown cost, for the case that each other process is
 * launching the same unknown kernel. */
static uint64_t for_all_ns(uint64_t guess_ns, uint64_t processes) {
  uint64_t all = guess_ns * processes, most = guess_ns > MOST_GUESS_NS ? guess_ns : MOST_GUESS_NS;
  return all < most ? all : most;
}

/* Charges the memory that a kind needs at its first launch in a context. If that raised the charge,
 * the next launch checks again, because this one can still be refused. */
static CUresult admit(penstock_pass *pass, const gate_stream *stream, gate_kind *kind,
                      const penstock_kind_key *key, uint64_t admission) {
  const gate_context *context = stream->context;
  CUresult result = penstock_kernel_admit(key, context->handle, context->grant, &pass->raise);
  if (result == CUDA_SUCCESS && !pass->raise.to) {
    __atomic_store_n(&kind->admitted, admission, __ATOMIC_RELAXED);
  }
  return result;
}

/* Handles a stream that was destroyed while its launch waited at the gate. */
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
  if (grant < 0) return CUDA_ERROR_NOT_PERMITTED; /* the device was not granted */
  if (gate_is_capturing(state, stream)) return CUDA_SUCCESS;
  gate_kind *kind = gate_kind_get(state, key, &pass->generation);
  const uint64_t admission = penstock_admission_of(key->what, stream->context->birth);
  if (__builtin_expect(__atomic_load_n(&kind->admitted, __ATOMIC_RELAXED) != admission, 0)) {
    CUresult refused = admit(pass, stream, kind, key, admission);
    if (refused != CUDA_SUCCESS) return refused;
  }
  pass->kind = kind;
  pass->window = pass->window_ns = pass->overdraft_ns = 0;
  pass->entered_ns = 0;
  pass->alone = pass->rolling = false;
  pass->released_ns = gate_release_after(0);

  /* If nothing is gated, the kernel's timer tick is exact enough to distinguish a busy stream from
   * a dry one, and takes a sixth of the time to read. */
  bool slices = gate_slices_on(process, grant);
  bool gated = slices || gate_permille(process, grant) < PENSTOCK_GATE_FULL_PERMILLE;
  uint64_t now_ns = gated ? gate_now_ns() : gate_tick_ns(), wait_ns;
  if ((gated || gate_is_suspended(process)) &&
      !gate_may_go(process, state, grant, now_ns, gate_likely_ns(state, kind), &wait_ns)) {
    pass->overdraft_ns = gate_wait(process, state, stream, kind, wait_ns);
    state = gate_state_get(); /* state and stream may have changed in the meantime */
    stream = gate_stream_get(state, handle, per_thread_default);
    if (!stream) return went_meanwhile(pass, handle);
    kind = pass->kind = gate_kind_get(state, key, &pass->generation);
    pass->released_ns = gate_release_after(0);
    now_ns = gate_now_ns();
    slices = gate_slices_on(process, grant);
  }
  pass->slice_ns = __builtin_expect(slices, 0) ? gate_slice_own(process, grant, now_ns) : 0;
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
  pass->enough_ns = gated && !pass->overlapping ? GATE_WINDOW_NS : GATE_FREE_WINDOW_NS;
  return CUDA_SUCCESS;
}

/* Removes the launch from the window that it is counted in. */
static void take_out(gate_window *window, const penstock_pass *pass) {
  window->estimate_ns -= earlier(window->estimate_ns, pass->estimate_ns);
  window->cost_ns -= earlier(window->cost_ns, pass->cost_ns);
  if (window->launches) window->launches--;
  if (window->ended > window->launches) window->ended = window->launches;
  for (uint32_t i = 0; !pass->stray && i < window->part_count; i++) {
    gate_part *part = &window->parts[i];
    if (!is_of(part, pass) || !part->launches) continue;
    part->launches--;
    part->cost_ns -= earlier(part->cost_ns, pass->cost_ns);
    return;
  }
  window->rest_ns -= earlier(window->rest_ns, pass->cost_ns);
}

/* Returns the window that the launch is counted in now, or NULL if there is none yet or it is
 * settled. */
static gate_window *window_of(const gate_stream *stream, const penstock_pass *pass) {
  gate_window *window = stream->oldest;
  while (window && window->number != pass->place) window = window->next;
  if (!window && stream->open && stream->open->number == pass->place) window = stream->open;
  return window;
}

/* Undoes the counting of a launch that the driver refused. If its window was settled in the
 * meantime, that has removed the launch's estimate. */
static void uncount(gate_state *state, const penstock_pass *pass) {
  gate_stream *stream = pass->stream;
  penstock_lock_acquire(&stream->lock);
  gate_window *window = window_of(stream, pass);
  bool apart = !window && stream->number < pass->place && stream->stray_launches;
  if (window) take_out(window, pass);
  if (apart) {
    stream->stray_ns -= earlier(stream->stray_ns, pass->estimate_ns);
    stream->stray_cost_ns -= earlier(stream->stray_cost_ns, pass->cost_ns);
    stream->stray_launches--;
  }
  bool counted = pass->place && (window || apart);
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

/* Ends the launch's window if it is long enough or was opened for this launch alone. If the
 * window's end rolls, records it again, or drops it if the window is only watched and there is no
 * budget. With work on many streams at once there would be too many driver calls, so windows then
 * grow longer. */
static void conclude(const penstock_pass *pass) {
  enum { MOST_GROWTH = 64, CALLS = 3, SPARE = 32 };
  gate_stream *stream = pass->stream;
  gate_state *state = gate_state_get();
  bool rolls = pass->rolling && !pass->overlapping && pass->window_ns < pass->enough_ns;
  bool drawn = pass->entered_ns != 0; /* the launch's calls were paid for when it was drawn */
  if (!state || (!pass->alone && !drawn && pass->window_ns < MOST_GROWTH * pass->enough_ns &&
                 !gate_may_call(stream, gate_now_ns(), CALLS, SPARE))) {
    return;
  }
  if (!gate_stream_claim(stream)) return;
  gate_window *open = stream->open;
  if (open && open->number == pass->window) {
    if (!drawn) open->counted_ns = pass->counted_ns;
    bool first = pass->window_ns == pass->cost_ns;
    if (!rolls) {
      gate_window_end(state, stream, true);
    } else if (first || !open->watched || may_watch(stream, gate_now_ns())) {
      gate_window_roll(state, stream);
    } else {
      gate_window_unwatch(stream);
    }
  }
  gate_stream_release(stream);
}

/* Notes in the window how long the launch call took, if that was too long. */
static void note_hold_up(const penstock_pass *pass) {
  uint64_t took_ns = gate_now_ns() - pass->entered_ns;
  if (took_ns <= GATE_HELD_UP_NS) return;
  gate_stream *stream = pass->stream;
  penstock_lock_acquire(&stream->lock);
  gate_window *open = stream->open;
  if (open && open->number == pass->window) open->held_ns += took_ns;
  penstock_lock_release(&stream->lock);
}

CUresult penstock_gate_leave(penstock_pass *pass, CUresult result) {
  bool made = __builtin_expect(result == CUDA_SUCCESS, 1);
  if (!made) penstock_local_memory_undo(&pass->raise);
  if (!pass->stream) return result;
  gate_state *state = made ? NULL : gate_state_get();
  if (state) uncount(state, pass);
  __atomic_fetch_add(&pass->stream->left, 1, __ATOMIC_RELEASE);
  if (made && __builtin_expect(gate_release_after(pass->released_ns) != 0, 0)) {
    gate_release_held(pass);
  } else if (made) {
    if (pass->entered_ns) note_hold_up(pass);
    if (pass->alone || pass->rolling || pass->window_ns >= pass->enough_ns) conclude(pass);
  }
  return result;
}
