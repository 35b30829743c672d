/* Arrears: intervals of single launches that are charged later, many at a time. Such a launch comes
 * after a pause, and its cost is well known.
 *
 * Presuming the end of such a launch, charging it and opening a window for the next one takes
 * several times as long as joining a window. So the open window continues with the next launch, and
 * its interval so far is added to the stream's arrears. Until the arrears are charged, their
 * launches stay in the slot's estimate, so that admission counts them. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"

#define LONGEST_NS 20000000 /* longest time from the first interval to the charge of all */
/* Longest pause that is presumed to be idle where samples are rare. A launch far longer than its
 * kind's cost is hidden by a pause after it, and if few launches are that long, rare samples find
 * none of them for seconds. */
#define LONG_PAUSE_NS 20000000
#define LATELY_NS 1000000000

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Returns true if the stream may be presumed to have run dry without querying the driver. */
static bool may_presume(const gate_state *state, const gate_stream *stream) {
  if (state->few_queues || __atomic_load_n(&state->captures, __ATOMIC_RELAXED)) return false;
  return stream->handle != CU_STREAM_LEGACY ||
         !__atomic_load_n(&stream->context->blocking, __ATOMIC_RELAXED);
}

/* Returns true if no other work is on the device, so that the interval contains only this process's
 * work. */
static bool is_alone(const gate_stream *stream, const penstock_gate_slot *own, uint64_t now_ns) {
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  return process && !gate_neighbours_of(process, grant, stream->open) &&
         !gate_other_slots_ns(process, grant, own, now_ns);
}

bool gate_is_unseen_pause(uint64_t end_ns, uint64_t now_ns) {
  return now_ns > end_ns + LONG_PAUSE_NS;
}

bool gate_is_plain(const gate_state *state, const gate_stream *stream, const gate_kind *kind,
                   uint64_t now_ns) {
  const uint64_t *drained = &state->drained_ns[stream->context->grant];
  uint64_t unseen_ns = __atomic_load_n(&state->unseen_ns, __ATOMIC_RELAXED);
  if (unseen_ns && now_ns < unseen_ns + LATELY_NS) return false;
  return __atomic_load_n(drained, __ATOMIC_RELAXED) <= now_ns &&
         penstock_cost_is_sure(&kind->cost, now_ns);
}

bool gate_arrears_may_grow(gate_state *state, const gate_stream *stream,
                           const penstock_gate_slot *own, const gate_kind *kind, uint64_t now_ns) {
  const gate_window *open = stream->open;
  const gate_arrears *arrears = &stream->arrears;
  if (stream->oldest || stream->waiters || stream->probed) return false;
  if (open->start || open->end || open->rolling || open->contended || open->calibrating)
    return false;
  if (open->slice_ns || __atomic_load_n(&stream->interrupted, __ATOMIC_RELAXED)) return false;
  if (arrears->count == GATE_ARREARS) return false;
  if (arrears->count && now_ns > arrears->since_ns + LONGEST_NS) return false;
  if (gate_is_unseen_pause(stream->drained_ns, now_ns)) return false;
  return may_presume(state, stream) && is_alone(stream, own, now_ns) &&
         !gate_may_be_much_longer(open) && gate_is_plain(state, stream, kind, now_ns) &&
         gate_sample_is_far(state, true);
}

void gate_arrears_grow(gate_stream *stream, uint64_t now_ns) {
  gate_window *open = stream->open;
  gate_arrears *arrears = &stream->arrears;
  uint64_t begin_ns = later(stream->last_end_ns, open->opened_ns + GATE_START_NS);
  if (!arrears->count) arrears->since_ns = begin_ns;
  arrears->of[arrears->count].begin_ns = begin_ns;
  arrears->of[arrears->count++].end_ns = begin_ns + open->cost_ns;
  arrears->launches += open->launches;
  arrears->estimate_ns += open->estimate_ns;
  arrears->cost_ns += open->cost_ns;
  stream->last_end_ns = begin_ns + open->cost_ns;
  stream->exact = false;
  stream->queued = 0;
  stream->queued_ns = 0;
  open->number = ++stream->number;
  open->opened_ns = now_ns;
  open->held_ns = open->counted_ns = open->estimate_ns = open->cost_ns = open->rest_ns = 0;
  open->launches = open->part_count = open->ended = 0;
  open->lost = false;
}

void gate_arrears_charge(gate_state *state, gate_stream *stream) {
  gate_arrears *arrears =
      &stream->arrears; /* no arrears are added while the caller has the `working` flag */
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  if (!arrears->count || !process || grant < 0) return;
  penstock_gate_device *gate = gate_device(process, grant);
  uint64_t fresh_ns = 0;
  for (uint32_t i = 0; i < arrears->count; i++) {
    fresh_ns +=
        penstock_gate_mark(gate, arrears->of[i].begin_ns, arrears->of[i].end_ns, UINT64_MAX);
  }
  gate_charge_fresh(state, process, grant, fresh_ns, arrears->cost_ns);
  gate_give_up(state, stream, arrears->estimate_ns, arrears->launches, 0);
  penstock_lock_acquire(&stream->lock);
  arrears->count = arrears->launches = 0;
  arrears->estimate_ns = arrears->cost_ns = 0;
  penstock_lock_release(&stream->lock);
}
