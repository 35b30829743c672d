/* Rounds. A round is the sequence of a thread's launches from one run on a stream to its next run
 * on that stream.
 *
 * A thread that queues on several streams of a device, one after the other, expects their work to
 * run in parallel. If the gate admits less than a round at a time, that work runs sequentially, and
 * because device time is charged by the clock, the program pays for each stream separately.
 * Therefore an opening of the gate admits a whole round, and no round starts for which the credit
 * is too low. */
#include "hooks/launch_state.h"

/* Longest round that is admitted as a whole. Longer rounds are admitted in pieces like other work,
 * so that a tenant that is suspended or gets a smaller share has no more than one period of
 * unfinished work. */
#define LONGEST_NS ((uint64_t)PENSTOCK_GATE_PERIOD_NS)
/* Part by which the longest round fades with each further round. It is remembered because a
 * program's step may have several short rounds and one long one. */
#define FADES_PART 64
#define MARGIN_PART 4 /* margin that is needed because estimates are means */

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static gate_round *round_of(gate_thread *thread, int grant) {
  gate_round *round = &thread->rounds[(unsigned)grant % GATE_ROUNDS];
  if (round->device != (uint32_t)grant + 1) *round = (gate_round){.device = (uint32_t)grant + 1};
  return round;
}

/* Learns a round. `ns` is the usual time of the round's launches, some of which overlap. */
static void learn(gate_state *state, gate_round *round, uint64_t ns) {
  uint64_t out_ns = ns * __atomic_load_n(&state->overlap, __ATOMIC_RELAXED) / GATE_FULL_SCALE;
  uint64_t faded_ns = round->longest_ns - (round->longest_ns + FADES_PART - 1) / FADES_PART;
  round->longest_ns = later(out_ns > LONGEST_NS ? 0 : out_ns, faded_ns);
}

/* Starts a run when the thread launches on another stream than before. If several threads do so on
 * one stream, one of their writes is lost. */
static void begin_run(gate_state *state, gate_round *round, gate_stream *stream) {
  uint64_t since_ns = __atomic_load_n(&stream->round_ns, __ATOMIC_RELAXED);
  bool ours = __atomic_load_n(&stream->round, __ATOMIC_RELAXED) == round;
  if (ours && since_ns <= round->launched_ns) learn(state, round, round->launched_ns - since_ns);
  __atomic_store_n(&stream->round, round, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->round_ns, round->launched_ns, __ATOMIC_RELAXED);
  round->stream = stream;
}

void gate_round_launched(gate_state *state, gate_stream *stream, const penstock_pass *pass) {
  gate_thread *thread = gate_thread_get(state);
  if (!thread) return;
  gate_round *round = round_of(thread, stream->context->grant);
  round->waits = thread->waits;
  round->asked_ns = 0;
  if (round->stream != stream) begin_run(state, round, stream);
  /* The mean includes time for which a kernel waited for others of the round; the usual time does
   * not. */
  if (!pass->guessed) round->launched_ns += penstock_cost_usual_ns(&pass->kind->cost);
}

void gate_round_waited(gate_state *state) {
  gate_thread *thread = gate_thread_get(state);
  if (thread) thread->waits++;
}

/* Returns true if the launch has waited longer than it takes to earn a round. Other threads of the
 * tenant, with shorter rounds, then probably use up what is saved for it. */
static bool is_overdue(const gate_round *round, uint64_t ns, uint32_t permille, uint64_t now_ns) {
  return (now_ns - round->asked_ns) * permille > 2 * ns * (uint64_t)PENSTOCK_GATE_FULL_PERMILLE;
}

void gate_round_ask(gate_state *state, int grant, const penstock_gate_slot *own, uint32_t permille,
                    penstock_gate_launch *launch) {
  gate_thread *thread = gate_thread_get(state);
  gate_round *round = thread ? round_of(thread, grant) : NULL;
  if (!round || __builtin_expect(!round->longest_ns, 1)) return;
  uint64_t ns = earlier(round->longest_ns + round->longest_ns / MARGIN_PART, LONGEST_NS);
  if (!round->asked_ns) round->asked_ns = launch->now_ns;
  if (is_overdue(round, ns, permille, launch->now_ns)) return;
  launch->round_ns = ns;
  launch->begins_round =
      round->waits != thread->waits && !__atomic_load_n(&own->estimate_ns, __ATOMIC_RELAXED);
}
