/* Launches that come singly: each behind a pause, and what it takes well known.
 *
 * To presume each one's end, charge it and open a bracket for the next costs several times what a
 * launch costs that joins a bracket. So the open bracket goes on to stand for the next launch, and
 * the interval that it stood for waits to be charged with others. Until then its launches stay in
 * the estimate of what is out, so that admission counts them. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"

#define LONGEST_NS 20000000 /* from the first of them to their charge */
/* A launch far longer than its kind takes hides in a pause behind it, and of few such ones a rare
 * draw finds none for seconds. So such pauses must not be long where draws are rare. */
#define LONG_PAUSE_NS 20000000
#define LATELY_NS 1000000000

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* May the stream be presumed to have run dry, without asking the driver? */
static bool may_presume(const gate_state *state, const gate_stream *stream) {
  if (state->few_queues || __atomic_load_n(&state->captures, __ATOMIC_RELAXED)) return false;
  return stream->handle != CU_STREAM_LEGACY ||
         !__atomic_load_n(&stream->context->blocking, __ATOMIC_RELAXED);
}

/* Is nobody else's work on the device, so that the interval is all its own? */
static bool is_alone(const gate_stream *stream, const penstock_gate_slot *own, uint64_t now_ns) {
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  return process && !gate_neighbours_of(process, grant, stream->open) &&
         !gate_beside_ns(process, grant, own, now_ns);
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
  const gate_bracket *open = stream->open;
  const gate_arrears *arrears = &stream->arrears;
  if (stream->oldest || stream->waiters || stream->probed) return false;
  if (open->start || open->end || open->rolling || open->crowd || open->quiet) return false;
  if (open->turn_ns || __atomic_load_n(&stream->interrupted, __ATOMIC_RELAXED)) return false;
  if (arrears->count == GATE_ARREARS) return false;
  if (arrears->count && now_ns > arrears->since_ns + LONGEST_NS) return false;
  if (gate_is_unseen_pause(stream->drained_ns, now_ns)) return false;
  return may_presume(state, stream) && is_alone(stream, own, now_ns) &&
         !gate_may_be_much_longer(open) && gate_is_plain(state, stream, kind, now_ns) &&
         gate_sample_is_far(state, true);
}

void gate_arrears_grow(gate_stream *stream, uint64_t now_ns) {
  gate_bracket *open = stream->open;
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
  gate_arrears *arrears = &stream->arrears; /* none are added while the caller works there */
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
