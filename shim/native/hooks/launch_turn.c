/* Turns between tenants: a launch goes in the tenant's own turn, if it is expected to end in it.
 *
 * In its turn a tenant is alone on the device, so what it measures there is its own. Who hands out
 * turns keeps the account of shares; the local balance only follows, so that the gate goes on from
 * there should the turns end. */
#include "hooks/launch_state.h"
#include "mechanism/turn.h"

#define ASK_AGAIN_NS 20000000
/* A launch queued this much before the turn reaches the device when it begins. */
#define EARLY_NS 30000

bool gate_turns_on(const penstock_process *process, int grant) {
  return penstock_turn_any(process->region.quota, (unsigned)grant);
}

static bool is_live(const penstock_turn *turn, uint64_t now_ns) {
  return turn->begin_ns && now_ns < turn->alive_ns + PENSTOCK_TURN_SILENT_NS;
}

static bool is_own(const penstock_turn *turn, uint64_t now_ns) {
  return now_ns + EARLY_NS >= turn->begin_ns && now_ns < turn->end_ns;
}

bool gate_turns_live(const penstock_process *process, int grant, uint64_t now_ns) {
  if (__builtin_expect(!gate_turns_on(process, grant), 1)) return false;
  penstock_turn turn;
  penstock_turn_read(process->region.quota, (unsigned)grant, &turn);
  return is_live(&turn, now_ns);
}

uint64_t gate_turn_own(const penstock_process *process, int grant, uint64_t now_ns) {
  if (__builtin_expect(!gate_turns_on(process, grant), 1)) return 0;
  penstock_turn turn;
  penstock_turn_read(process->region.quota, (unsigned)grant, &turn);
  bool alone = !(turn.flags & PENSTOCK_TURN_SHARED);
  return alone && is_live(&turn, now_ns) && is_own(&turn, now_ns) ? turn.begin_ns : 0;
}

/* Will most of it be over when the turn ends, behind what is in flight? The rest is overrun, which
 * is its own; refusing that would leave half a launch of idle time at each turn's end. What is
 * longer than a whole turn goes alone and early in one. */
static bool fits(const penstock_turn *turn, uint64_t now_ns, uint64_t in_flight_ns,
                 uint64_t cost_ns) {
  uint64_t length = turn->end_ns - turn->begin_ns, left = turn->end_ns - now_ns;
  if (in_flight_ns + cost_ns / 2 <= left) return true;
  return cost_ns > length && !in_flight_ns && left > length - length / 4;
}

gate_turn_answer gate_turn_ask(penstock_process *process, gate_state *state, int grant,
                               uint64_t now_ns, uint64_t cost_ns, uint64_t *wait_ns) {
  penstock_turn turn;
  penstock_turn_read(process->region.quota, (unsigned)grant, &turn);
  if (!is_live(&turn, now_ns)) return GATE_NO_TURNS;
  uint64_t silent_ns = turn.alive_ns + PENSTOCK_TURN_SILENT_NS;
  *wait_ns = silent_ns - now_ns < ASK_AGAIN_NS ? silent_ns - now_ns : ASK_AGAIN_NS;
  if (!is_own(&turn, now_ns)) {
    if (turn.begin_ns > now_ns && turn.begin_ns - now_ns < *wait_ns) {
      *wait_ns = turn.begin_ns - now_ns;
    }
    return GATE_NOT_NOW;
  }
  uint64_t in_flight = gate_in_flight_ns(process, state, grant, now_ns);
  if (fits(&turn, now_ns, in_flight, cost_ns)) return GATE_OWN_TURN;
  if (turn.end_ns - now_ns < *wait_ns) *wait_ns = turn.end_ns - now_ns;
  return GATE_NOT_NOW;
}

void gate_turn_wanted(penstock_process *process, gate_state *state, int grant, uint64_t now_ns) {
  __atomic_store_n(&gate_device(process, grant)->wanted_ns, now_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&gate_slot(process, state, grant)->waiting_ns, now_ns, __ATOMIC_RELAXED);
}

void gate_turn_launched(penstock_process *process, int grant, uint64_t until_ns) {
  uint64_t *word = &gate_device(process, grant)->busy_until_ns;
  uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (seen < until_ns && !__atomic_compare_exchange_n(word, &seen, until_ns, true,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
