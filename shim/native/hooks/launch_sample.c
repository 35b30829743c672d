/* Which brackets on idle streams are measured by events before and behind.
 *
 * Drawn by count with random gaps, so that each launch is as likely as another: a draw by time
 * would take the short launch after each long one. The mean gap follows the budget of driver calls;
 * where launches are few, each is measured. */
#include "hooks/launch_state.h"

#define SAMPLE_CALLS 4
#define SPARE_CALLS 16
#define MOST_GAP 256

/* Words of all threads: of two that change one at once, one change may be lost. */
static uint32_t get(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static void put(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

static uint32_t draw(gate_state *state, uint32_t mean) {
  uint32_t random = get(&state->random) * 1664525u + 1013904223u;
  put(&state->random, random);
  return 1 + (uint32_t)((uint64_t)(random >> 8) * (2 * mean - 1) >> 24);
}

/* Beside others a sample counts only in a quiet turn, or by luck. */
static bool in_company(const gate_state *state, const gate_stream *stream, uint64_t now_ns) {
  uint64_t seen = __atomic_load_n(&state->others_seen_ns[stream->context->grant], __ATOMIC_RELAXED);
  return seen && now_ns < seen + 1000000000;
}

bool gate_sample_due(gate_state *state, const gate_stream *stream, uint64_t now_ns) {
  penstock_process *process = penstock_process_get();
  if (process && in_company(state, stream, now_ns) &&
      gate_quiet_is_ours(process, state, stream->context->grant, now_ns)) {
    return gate_may_call(stream, now_ns, SAMPLE_CALLS, 0);
  }
  uint32_t countdown = get(&state->sample_countdown);
  if (countdown > 1) {
    put(&state->sample_countdown, countdown - 1);
    return false;
  }
  uint32_t gap = get(&state->sample_gap);
  if (!gap) gap = 1;
  bool may = gate_may_call(stream, now_ns, SAMPLE_CALLS, SPARE_CALLS);
  gap = may ? (gap > 8 ? gap - gap / 8 : gap > 1 ? gap - 1 : 1) : 2 * gap;
  if (gap > MOST_GAP) gap = MOST_GAP;
  put(&state->sample_gap, gap);
  put(&state->sample_countdown, draw(state, gap));
  return may;
}
