/* Which brackets on idle streams are measured by events before and behind.
 *
 * Drawn by count with random gaps, so that each launch is as likely as another: a draw by time
 * would take the short launch after each long one, and so would a draw that mostly waits for the
 * budget of driver calls. So the mean gap grows as soon as draws find no budget, and where more is
 * measured than is learned from. Of a kind that little is known of each launch is measured while
 * there is budget; of others some eighty a second, so that what comes singly costs little. */
#include "hooks/launch_state.h"

#define SAMPLE_CALLS 4
#define SPARE_CALLS 16
/* Gaps are counted in launches of kinds that are well known; one of another kind counts as many:
 * while the gap is the least, each of those is drawn. */
#define LEAST_GAP 16
#define OTHER_WEIGHT (2 * LEAST_GAP)
#define MOST_GAP 4096
/* Samples of well known kinds in a window: more teach nothing new. */
#define KNOWN_LEAST 2
#define KNOWN_MOST 4
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
static void adapt(gate_state *state, uint64_t now_ns) {
  uint64_t since = __atomic_load_n(&state->sample_window_ns, __ATOMIC_RELAXED);
  if (now_ns < since + WINDOW_NS) return;
  __atomic_store_n(&state->sample_window_ns, now_ns, __ATOMIC_RELAXED);
  uint32_t gap = get(&state->sample_gap), missed = get(&state->samples_missed);
  uint32_t known = get(&state->samples_known);
  if (missed > get(&state->samples_drawn) / 16 || known > KNOWN_MOST) {
    gap += gap / 2;
  } else if (!missed && known < KNOWN_LEAST) {
    gap -= gap / 8;
  }
  put(&state->sample_gap, gap < LEAST_GAP ? LEAST_GAP : gap < MOST_GAP ? gap : MOST_GAP);
  put(&state->samples_drawn, 0);
  put(&state->samples_known, 0);
  put(&state->samples_missed, 0);
}

/* Beside others a sample counts only in a quiet turn, or by luck. */
static bool in_company(const gate_state *state, const gate_stream *stream, uint64_t now_ns) {
  uint64_t seen = __atomic_load_n(&state->others_seen_ns[stream->context->grant], __ATOMIC_RELAXED);
  return seen && now_ns < seen + 1000000000;
}

static uint32_t weight(const gate_kind *kind, uint64_t now_ns) {
  return penstock_cost_is_sure(&kind->cost, now_ns) ? 1 : OTHER_WEIGHT;
}

bool gate_sample_is_far(gate_state *state, const gate_kind *kind, uint64_t now_ns) {
  uint32_t countdown = get(&state->sample_countdown), counts = weight(kind, now_ns);
  if (countdown <= counts) return false;
  put(&state->sample_countdown, countdown - counts);
  return true;
}

bool gate_sample_due(gate_state *state, const gate_stream *stream, const gate_kind *kind,
                     uint64_t now_ns) {
  penstock_process *process = penstock_process_get();
  if (process && in_company(state, stream, now_ns) &&
      gate_quiet_is_ours(process, stream->context->grant, now_ns)) {
    return gate_may_call(stream, now_ns, SAMPLE_CALLS, 0);
  }
  if (gate_sample_is_far(state, kind, now_ns)) return false;
  bool may = gate_may_call(stream, now_ns, SAMPLE_CALLS, SPARE_CALLS);
  put(&state->samples_drawn, get(&state->samples_drawn) + 1);
  if (weight(kind, now_ns) == 1) put(&state->samples_known, get(&state->samples_known) + 1);
  if (!may) put(&state->samples_missed, get(&state->samples_missed) + 1);
  may = may || now_ns > __atomic_load_n(&state->sampled_ns, __ATOMIC_RELAXED) + STARVED_NS;
  if (may) __atomic_store_n(&state->sampled_ns, now_ns, __ATOMIC_RELAXED);
  adapt(state, now_ns);
  uint32_t gap = get(&state->sample_gap);
  put(&state->sample_countdown, draw(state, gap));
  return may;
}
