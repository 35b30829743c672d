/* Draws of samples, which choose the windows on idle streams that are measured by an event before
 * and after them.
 *
 * Samples are drawn by count, with random gaps, so that all launches are equally likely. Drawing by
 * time would favour the short launch after each long one, and so would draws that usually wait for
 * the budget of driver calls. So the mean gap grows as soon as a draw finds no budget. For well
 * known kinds on an uncontended device it also grows when there are more samples than learning
 * needs, about eighty a second. If launches are few, each of them is measured. */
#include "hooks/launch_state.h"

#define SAMPLE_CALLS 4
#define SPARE_CALLS 16
#define MOST_GAP 256
#define KNOWN_FIRST_GAP 16
#define KNOWN_MOST_GAP 4096
#define KNOWN_LEAST 3 /* fewest samples of well known kinds that a period should have */
#define KNOWN_MOST 5
#define PERIOD_NS 50000000
/* Time after the last sample at which a draw needs no budget. Launches that wait at the gate use up
 * the budget by necessary calls; if they wait because a learned cost is too high, only a sample
 * corrects it. */
#define STARVED_NS 50000000

/* Reads a word that all threads share without a lock. One of two simultaneous changes may be
 * lost. */
static uint32_t get(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static void put(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

static uint32_t draw(gate_state *state, uint32_t mean) {
  uint32_t random = get(&state->random) * 1664525u + 1013904223u;
  put(&state->random, random);
  return 1 + (uint32_t)((uint64_t)(random >> 8) * (2 * mean - 1) >> 24);
}

/* Adapts the mean gap to the draws of the last period. */
static void adapt(gate_draws *draws, bool known, uint64_t now_ns) {
  if (now_ns < __atomic_load_n(&draws->period_ns, __ATOMIC_RELAXED) + PERIOD_NS) return;
  __atomic_store_n(&draws->period_ns, now_ns, __ATOMIC_RELAXED);
  uint32_t gap = get(&draws->gap), missed = get(&draws->missed), drawn = get(&draws->drawn);
  uint32_t most = known ? KNOWN_MOST_GAP : MOST_GAP;
  if (!gap) {
    gap = known ? KNOWN_FIRST_GAP : 1;
  } else if (missed > drawn / 16 || (known && drawn > KNOWN_MOST)) {
    gap += gap / 2 + 1;
  } else if (!missed && gap > 1 && !(known && drawn >= KNOWN_LEAST)) {
    gap -= (gap + 7) / 8;
  }
  put(&draws->gap, gap < most ? gap : most);
  put(&draws->drawn, 0);
  put(&draws->missed, 0);
}

/* Returns true under contention, where a sample is undisturbed only in a calibration slice, or by
 * chance. */
static bool is_contended(const gate_state *state, const gate_stream *stream, uint64_t now_ns) {
  uint64_t seen = __atomic_load_n(&state->others_seen_ns[stream->context->grant], __ATOMIC_RELAXED);
  return seen && now_ns < seen + 1000000000;
}

bool gate_sample_is_far(gate_state *state, bool known) {
  gate_draws *draws = &state->draws[known];
  uint32_t countdown = get(&draws->countdown);
  if (countdown <= 1) return false;
  put(&draws->countdown, countdown - 1);
  return true;
}

bool gate_sample_due(gate_state *state, const gate_stream *stream, bool known, uint64_t now_ns) {
  penstock_process *process = penstock_process_get();
  if (process && is_contended(state, stream, now_ns) &&
      gate_calibration_is_ours(process, stream->context->grant, now_ns)) {
    return gate_may_call(stream, now_ns, SAMPLE_CALLS, 0);
  }
  if (gate_sample_is_far(state, known)) return false;
  gate_draws *draws = &state->draws[known];
  bool may = gate_may_call(stream, now_ns, SAMPLE_CALLS, SPARE_CALLS);
  put(&draws->drawn, get(&draws->drawn) + 1);
  if (!may) put(&draws->missed, get(&draws->missed) + 1);
  may = may || now_ns > __atomic_load_n(&state->sampled_ns, __ATOMIC_RELAXED) + STARVED_NS;
  if (may) __atomic_store_n(&state->sampled_ns, now_ns, __ATOMIC_RELAXED);
  adapt(draws, known, now_ns);
  uint32_t gap = get(&draws->gap);
  put(&draws->countdown, draw(state, gap ? gap : 1));
  return may;
}
