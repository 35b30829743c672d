/* Overdraft launches for liveness. They are admitted although the gate is shut, because nothing was
 * settled for a long time and running work may be waiting for them.
 *
 * If work runs longer than it should, launch_overrun.c at once admits a launch that the work may be
 * waiting for. This file is for the rest: work of unknown length, and work that no thread waits
 * for. */
#include "hooks/launch_state.h"

#define STUCK_NS 100000000
#define MOST_NEEDLESS 3 /* largest number of doublings of the patience */
#define AWAY_NS \
  5000000 /* longest time between two launches of a thread that is always at the gate */

/* Returns the number of launches settled so far by all processes of the tenant. */
static uint64_t progress(const penstock_process *process, int grant) {
  return __atomic_load_n(&gate_device(process, grant)->launches, __ATOMIC_RELAXED);
}

/* Returns the number of overdraft launches of all processes since the last launch was settled. */
static uint64_t overdrafts_in_row(const penstock_gate_device *gate) {
  uint64_t launches = __atomic_load_n(&gate->launches, __ATOMIC_RELAXED);
  bool same = __atomic_load_n(&gate->row_launches, __ATOMIC_RELAXED) == launches;
  return same ? __atomic_load_n(&gate->row_overdrafts, __ATOMIC_RELAXED) : 0;
}

/* Admits a launch as overdraft, unless another thread of the tenant has just done so, because the
 * effect of that must show first. `overdrafts` is the number of overdrafts at the last check. */
static bool go_as_overdraft(penstock_gate_device *gate, uint64_t overdrafts) {
  if (!__atomic_compare_exchange_n(&gate->debts, &overdrafts, overdrafts + 1, false,
                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    return false;
  }
  uint64_t launches = __atomic_load_n(&gate->launches, __ATOMIC_RELAXED);
  __atomic_store_n(&gate->row_overdrafts, overdrafts_in_row(gate) + 1, __ATOMIC_RELAXED);
  __atomic_store_n(&gate->row_launches, launches, __ATOMIC_RELAXED);
  return true;
}

/* Returns the patience, which is how long there may be no progress before a launch is admitted as
 * overdraft. The learned cost of running work may be high only because it waits for just this
 * launch, so patience does not grow with that cost until so much work is unfinished that it would
 * pile up. But patience doubles with each overdraft that brought no progress, because long kernels
 * of several processes end late and together, and each of these processes waits at the gate. */
static uint64_t patience_ns(const penstock_gate_device *gate, uint64_t estimates_ns) {
  enum { PILE_NS = 1000000000 };
  uint64_t needless = __atomic_load_n(&gate->needless_overdrafts, __ATOMIC_RELAXED);
  uint64_t row = overdrafts_in_row(gate), doublings = needless > row ? needless : row;
  uint64_t stuck_ns = (uint64_t)STUCK_NS << (doublings < MOST_NEEDLESS ? doublings : MOST_NEEDLESS);
  if (estimates_ns > PILE_NS) return stuck_ns + 2 * estimates_ns;
  return stuck_ns + (2 * estimates_ns < STUCK_NS ? 2 * estimates_ns : STUCK_NS);
}

/* Returns the total number of overdraft launches of all processes of the tenant. The usage page and
 * the metric penstock_tenant_debts_total keep their older name for them. */
static uint64_t overdrafts_of(const penstock_gate_device *gate) {
  return __atomic_load_n(&gate->debts, __ATOMIC_RELAXED);
}

/* This thread's last overdraft launch, if the thread has been at the gate ever since. */
static __thread struct {
  uint64_t at_ns; /* 0 if none */
  uint64_t progress;
  int grant;
  unsigned in_row; /* overdrafts of this thread in a row, minus those of other threads since */
} last;

/* Returns how much longer this thread waits for its next overdraft than a thread that has had fewer
 * overdrafts, so that the other thread goes first. This is more than the time between the checks of
 * two threads. */
static uint64_t modesty_ns(void) {
  enum { EACH_NS = 5000000, MOST = 8 };
  return last.at_ns ? (uint64_t)EACH_NS * (last.in_row < MOST ? last.in_row : MOST) : 0;
}

/* Judges an overdraft launch once there is progress after it. If the progress came at once, or all
 * work of this process is done, then work had waited for this launch, or another process is stuck.
 * Otherwise the work is just long: the overdraft was not needed, and the next one waits longer. */
static void judge_overdraft(penstock_gate_device *gate, const penstock_gate_slot *own,
                            uint64_t now_ns) {
  enum { PROMPT_NS = 20000000 };
  uint64_t needless = __atomic_load_n(&gate->needless_overdrafts, __ATOMIC_RELAXED);
  bool helped =
      now_ns < last.at_ns + PROMPT_NS || __atomic_load_n(&own->submitted, __ATOMIC_RELAXED) ==
                                             __atomic_load_n(&own->done, __ATOMIC_RELAXED);
  uint64_t after = helped ? 0 : needless < MOST_NEEDLESS ? needless + 1 : MOST_NEEDLESS;
  __atomic_store_n(&gate->needless_overdrafts, after, __ATOMIC_RELAXED);
  last.at_ns = 0;
}

void gate_patience_begin(gate_patience *patience, penstock_process *process, int grant,
                         uint64_t now_ns) {
  *patience = (gate_patience){.moved_ns = now_ns,
                              .progress = progress(process, grant),
                              .overdrafts = overdrafts_of(gate_device(process, grant))};
  if (last.grant != grant || last.progress != patience->progress || now_ns > last.at_ns + AWAY_NS) {
    last.at_ns = 0;
  }
}

bool gate_patience_ends(gate_patience *patience, penstock_process *process, gate_state *state,
                        int grant, uint64_t now_ns) {
  penstock_gate_device *gate = gate_device(process, grant);
  uint64_t seen = progress(process, grant), estimates = gate_estimates_ns(process, state, grant);
  patience->moved = seen != patience->progress;
  if (last.at_ns && seen != last.progress) {
    judge_overdraft(gate, gate_slot(process, state, grant), now_ns);
  }
  if (patience->moved || !estimates || gate_is_suspended(process)) patience->moved_ns = now_ns;
  if (!estimates) __atomic_store_n(&gate->row_overdrafts, 0, __ATOMIC_RELAXED);
  patience->progress = seen;
  uint64_t longest_ns = patience_ns(gate, estimates), overdrafts = overdrafts_of(gate);
  if (overdrafts != patience->overdrafts) { /* another thread's overdraft; a thread with overdrafts
                                               in this row goes last */
    uint64_t ahead = last.at_ns ? 0 : longest_ns / 4;
    patience->overdrafts = overdrafts;
    if (last.in_row) last.in_row--;
    if (patience->moved_ns + ahead < now_ns) patience->moved_ns = now_ns - ahead;
  }
  if (now_ns - patience->moved_ns <= longest_ns + modesty_ns()) return false;
  /* Work within its usual duration is not stuck. Without this check each kernel of a second would
   * cause an overdraft, and the tenant would keep the device. The check comes last because it reads
   * all slots. */
  uint64_t expected_ns = gate_expected_ns(process, state, grant, now_ns);
  if (patience->moved_ns < expected_ns) {
    patience->moved_ns = expected_ns < now_ns ? expected_ns : now_ns;
    if (now_ns - patience->moved_ns <= longest_ns + modesty_ns()) return false;
  }
  if (!go_as_overdraft(gate, overdrafts)) return false;
  last.in_row = last.at_ns ? last.in_row + 1 : 1;
  last.at_ns = now_ns;
  last.progress = seen;
  last.grant = grant;
  __atomic_store_n(&state->let_go_ns[grant], now_ns, __ATOMIC_RELAXED);
  return true;
}
