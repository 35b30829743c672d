/* Which brackets on idle streams are measured by events before and behind.
 *
 * Drawn by count with random gaps, so that each launch is as likely as another: a draw by time
 * would take the short launch after each long one, and so would a draw that mostly waits for the
 * budget of driver calls. So the mean gap grows as soon as draws find no budget. Where a kind is
 * well known and nothing runs beside it, it also grows where more is measured than is learned from:
 * some eighty samples a second are enough. Where launches are few, each is measured. */
#include "hooks/launch_state.h"

#define SAMPLE_CALLS 4
#define SPARE_CALLS 16
#define MOST_GAP 256
#define KNOWN_FIRST_GAP 16
#define KNOWN_MOST_GAP 4096
#define KNOWN_LEAST 3 /* samples of well known kinds in a window … */
#define KNOWN_MOST 5
#define WINDOW_NS 50000000
/* A draw this long after the last sample needs no budget. Launches that wait at the gate make calls
 * that must be; if they wait because a cost was learned too high, only a sample tells. */
#define STARVED_NS 50000000

/* Words of all threads: of two that change one at once, one change may be lost. */
static uint32_t get(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static void put(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

static uint32_t draw(gate_state *state, uint32_t mean) {
  uint32_t random = get(&state->random) * 1664525u + 1013904223u;
  put(&state->random, random);
  return 1 + (uint32_t)((uint64_t)(random >> 8) * (2 * mean - 1) >> 24);
}

/* Looks at the last draws, now and then. */
static void adapt(gate_draws *draws, bool known, uint64_t now_ns) {
  if (now_ns < __atomic_load_n(&draws->window_ns, __ATOMIC_RELAXED) + WINDOW_NS) return;
  __atomic_store_n(&draws->window_ns, now_ns, __ATOMIC_RELAXED);
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

/* Beside others a sample counts only in a quiet turn, or by luck. */
static bool in_company(const gate_state *state, const gate_stream *stream, uint64_t now_ns) {
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
  if (process && in_company(state, stream, now_ns) &&
      gate_quiet_is_ours(process, stream->context->grant, now_ns)) {
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
