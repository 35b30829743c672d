/* Launches that go at a shut gate because nothing moves: nobody can tell what they hold up.
 *
 * Where work runs on longer than it should, launch_overrun.c lets the launch that it may wait for
 * go at once. This is for what is left: work whose length nobody knows, or that nobody waits for.
 */
#include "hooks/launch_state.h"

#define STUCK_NS 100000000
#define MOST_VAIN 3     /* doublings of the patience */
#define AWAY_NS 5000000 /* between two launches: longer, and the thread was not at the gate */

/* How much was settled so far, by all processes of the tenant. */
static uint64_t progress(const penstock_process *process, int grant) {
  return __atomic_load_n(&gate_device(process, grant)->launches, __ATOMIC_RELAXED);
}

/* How many launches went as debt, of any process, with nothing settled since. */
static uint64_t debts_in_row(const penstock_gate_device *gate) {
  uint64_t launches = __atomic_load_n(&gate->launches, __ATOMIC_RELAXED);
  bool same = __atomic_load_n(&gate->row_launches, __ATOMIC_RELAXED) == launches;
  return same ? __atomic_load_n(&gate->row_debts, __ATOMIC_RELAXED) : 0;
}

/* Goes as debt, unless another thread of the tenant just did: what that does is to be seen first.
 * `debts`: as they were seen last. */
static bool go_as_debt(penstock_gate_device *gate, uint64_t debts) {
  if (!__atomic_compare_exchange_n(&gate->debts, &debts, debts + 1, false, __ATOMIC_RELAXED,
                                   __ATOMIC_RELAXED)) {
    return false;
  }
  uint64_t launches = __atomic_load_n(&gate->launches, __ATOMIC_RELAXED);
  __atomic_store_n(&gate->row_debts, debts_in_row(gate) + 1, __ATOMIC_RELAXED);
  __atomic_store_n(&gate->row_launches, launches, __ATOMIC_RELAXED);
  return true;
}

/* For how long nothing may move before a launch goes as debt. What runs may have been learned to be
 * long only because it waits for just this launch: so patience does not grow with it, up to a point
 * from which on work would pile up. But it doubles with each debt that nothing moved after: several
 * processes' long kernels move together, late, and each of their processes waits at the gate. */
static uint64_t patience_ns(const penstock_gate_device *gate, uint64_t estimates_ns) {
  enum { PILE_NS = 1000000000 };
  uint64_t vain = __atomic_load_n(&gate->vain_debts, __ATOMIC_RELAXED);
  uint64_t row = debts_in_row(gate), doublings = vain > row ? vain : row;
  uint64_t stuck_ns = (uint64_t)STUCK_NS << (doublings < MOST_VAIN ? doublings : MOST_VAIN);
  if (estimates_ns > PILE_NS) return stuck_ns + 2 * estimates_ns;
  return stuck_ns + (2 * estimates_ns < STUCK_NS ? 2 * estimates_ns : STUCK_NS);
}

/* Launches that went as debt, of all processes of the tenant. */
static uint64_t debts_of(const penstock_gate_device *gate) {
  return __atomic_load_n(&gate->debts, __ATOMIC_RELAXED);
}

/* This thread's last launch as debt, if it has been at the gate ever since. */
static __thread struct {
  uint64_t at_ns; /* 0: none */
  uint64_t progress;
  int grant;
  unsigned in_row; /* this one and those before it, less those of others since */
} debt;

/* How much longer this thread waits for its next debt than who has had fewer, so that those go
 * first: more than the difference between when two of them look. */
static uint64_t modesty_ns(void) {
  enum { EACH_NS = 5000000, MOST = 8 };
  return debt.at_ns ? (uint64_t)EACH_NS * (debt.in_row < MOST ? debt.in_row : MOST) : 0;
}

/* A launch went as debt, and something has moved since, seen right away. If that was at once, or
 * all own work is through, the work had waited for this launch, or what stands still is another
 * process. Else the work is just long, and the next debt waits longer. */
static void judge_debt(penstock_gate_device *gate, const penstock_gate_slot *own, uint64_t now_ns) {
  enum { PROMPT_NS = 20000000 };
  uint64_t vain = __atomic_load_n(&gate->vain_debts, __ATOMIC_RELAXED);
  bool helped =
      now_ns < debt.at_ns + PROMPT_NS || __atomic_load_n(&own->submitted, __ATOMIC_RELAXED) ==
                                             __atomic_load_n(&own->done, __ATOMIC_RELAXED);
  uint64_t after = helped ? 0 : vain < MOST_VAIN ? vain + 1 : MOST_VAIN;
  __atomic_store_n(&gate->vain_debts, after, __ATOMIC_RELAXED);
  debt.at_ns = 0;
}

void gate_patience_begin(gate_patience *patience, penstock_process *process, int grant,
                         uint64_t now_ns) {
  *patience = (gate_patience){.moved_ns = now_ns,
                              .progress = progress(process, grant),
                              .debts = debts_of(gate_device(process, grant))};
  if (debt.grant != grant || debt.progress != patience->progress || now_ns > debt.at_ns + AWAY_NS) {
    debt.at_ns = 0;
  }
}

bool gate_patience_ends(gate_patience *patience, penstock_process *process, gate_state *state,
                        int grant, uint64_t now_ns) {
  penstock_gate_device *gate = gate_device(process, grant);
  uint64_t seen = progress(process, grant), estimates = gate_estimates_ns(process, state, grant);
  patience->moved = seen != patience->progress;
  if (debt.at_ns && seen != debt.progress) {
    judge_debt(gate, gate_slot(process, state, grant), now_ns);
  }
  if (patience->moved || !estimates || gate_is_suspended(process)) patience->moved_ns = now_ns;
  if (!estimates) __atomic_store_n(&gate->row_debts, 0, __ATOMIC_RELAXED);
  patience->progress = seen;
  uint64_t longest_ns = patience_ns(gate, estimates), debts = debts_of(gate);
  if (debts != patience->debts) { /* another thread's; who went before in this row goes last */
    uint64_t ahead = debt.at_ns ? 0 : longest_ns / 4;
    patience->debts = debts;
    if (debt.in_row) debt.in_row--;
    if (patience->moved_ns + ahead < now_ns) patience->moved_ns = now_ns - ahead;
  }
  if (now_ns - patience->moved_ns <= longest_ns + modesty_ns()) return false;
  /* What takes no longer than it usually does is not stuck: kernels of a second would each have a
   * debt, and the device for good. It is looked for last: that reads every process's slot. */
  uint64_t expected_ns = gate_expected_ns(process, state, grant, now_ns);
  if (patience->moved_ns < expected_ns) {
    patience->moved_ns = expected_ns < now_ns ? expected_ns : now_ns;
    if (now_ns - patience->moved_ns <= longest_ns + modesty_ns()) return false;
  }
  if (!go_as_debt(gate, debts)) return false;
  debt.in_row = debt.at_ns ? debt.in_row + 1 : 1;
  debt.at_ns = now_ns;
  debt.progress = seen;
  debt.grant = grant;
  __atomic_store_n(&state->let_go_ns[grant], now_ns, __ATOMIC_RELAXED);
  return true;
}
