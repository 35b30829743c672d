#include "mechanism/gate.h"

#include <stdbool.h>

#define WORD_BITS 32

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

uint64_t penstock_gate_burst_ns(uint32_t permille) {
  uint64_t rest =
      permille < PENSTOCK_GATE_FULL_PERMILLE ? PENSTOCK_GATE_FULL_PERMILLE - permille : 0;
  uint64_t period = (uint64_t)PENSTOCK_GATE_PERIOD_NS * rest * 3 / 2 / PENSTOCK_GATE_FULL_PERMILLE;
  if (period > PENSTOCK_GATE_PERIOD_NS) period = PENSTOCK_GATE_PERIOD_NS;
  if (period < PENSTOCK_GATE_SHORTEST_NS) period = PENSTOCK_GATE_SHORTEST_NS;
  return period * permille / PENSTOCK_GATE_FULL_PERMILLE;
}

static int64_t earned_ns(uint64_t paid_until_ns, uint32_t permille, uint64_t now_ns) {
  return (int64_t)(now_ns - paid_until_ns) * (int64_t)permille / PENSTOCK_GATE_FULL_PERMILLE;
}

/* Returns the wall time in which a share of `permille` earns `ns` of device time. */
static uint64_t wall_ns(uint64_t ns, uint32_t permille) {
  return ns * PENSTOCK_GATE_FULL_PERMILLE / (permille ? permille : 1);
}

int64_t penstock_gate_credit_ns(const penstock_gate_device *gate, uint32_t permille,
                                uint64_t now_ns, uint64_t in_flight_ns) {
  return earned_ns(load(&gate->paid_until_ns), permille, now_ns) - (int64_t)in_flight_ns;
}

/* Reduces credit to at most `most_ns`. If several processes do this at the same time, only one of
 * them succeeds. */
static void drop_credit(penstock_gate_device *gate, uint32_t permille, uint64_t now_ns,
                        int64_t most_ns, uint64_t in_flight_ns) {
  uint64_t paid = load(&gate->paid_until_ns);
  int64_t excess = earned_ns(paid, permille, now_ns) - (int64_t)in_flight_ns - most_ns;
  if (excess <= 0) return;
  __atomic_compare_exchange_n(&gate->paid_until_ns, &paid,
                              paid + wall_ns((uint64_t)excess, permille), false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
}

/* Converts the overdraft after a change of the share. An overdraft is device time, but
 * paid_until_ns holds it as wall time, which depends on the share. If several processes see the
 * change, one of them converts; if that process is killed halfway, the overdraft keeps its old
 * length. */
static void rescale_overdraft(penstock_gate_device *gate, uint32_t permille, uint64_t now_ns) {
  uint64_t former = load(&gate->overdraft_permille);
  if (former == permille) return;
  if (!__atomic_compare_exchange_n(&gate->overdraft_permille, &former, permille, false,
                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    return;
  }
  uint64_t paid = load(&gate->paid_until_ns);
  while (former && paid > now_ns) {
    uint64_t overdraft_ns = (paid - now_ns) * former / PENSTOCK_GATE_FULL_PERMILLE;
    if (__atomic_compare_exchange_n(&gate->paid_until_ns, &paid,
                                    now_ns + wall_ns(overdraft_ns, permille), false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      return;
    }
  }
}

static void begin_once(penstock_gate_device *gate, uint64_t now_ns) {
  if (__builtin_expect(load(&gate->origin_ns) != 0, 1)) return;
  uint64_t none = 0;
  __atomic_compare_exchange_n(&gate->origin_ns, &none, now_ns, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
}

static void open_gate(penstock_gate_device *gate) {
  __atomic_store_n(&gate->overdraft_ns, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&gate->closed, 0, __ATOMIC_RELAXED);
}

void penstock_gate_follow(penstock_gate_device *gate, uint32_t permille, uint64_t now_ns) {
  begin_once(gate, now_ns);
  rescale_overdraft(gate, permille, now_ns);
  drop_credit(gate, permille, now_ns, (int64_t)penstock_gate_burst_ns(permille), 0);
  uint64_t paid = load(&gate->paid_until_ns), most = now_ns + PENSTOCK_GATE_PERIOD_NS;
  if (paid > most) {
    __atomic_compare_exchange_n(&gate->paid_until_ns, &paid, most, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
  }
  if (load(&gate->closed)) open_gate(gate);
}

int penstock_gate_admit(penstock_gate_device *gate, uint32_t permille,
                        const penstock_gate_launch *launch, uint64_t *wait_ns) {
  uint64_t now_ns = launch->now_ns, in_flight_ns = launch->in_flight_ns;
  begin_once(gate, now_ns);
  rescale_overdraft(gate, permille, now_ns);
  int64_t burst = (int64_t)penstock_gate_burst_ns(permille), round = (int64_t)launch->round_ns;
  if (__builtin_expect(round > burst, 0)) burst = round;
  bool closed = load(&gate->closed) != 0;
  int64_t most = burst + (closed ? PENSTOCK_GATE_LATE_NS : PENSTOCK_GATE_SAVED_NS);
  int64_t credit = penstock_gate_credit_ns(gate, permille, now_ns, in_flight_ns);
  if (credit > most) {
    drop_credit(gate, permille, now_ns, most, in_flight_ns);
    credit = most;
  }
  int64_t theirs = earned_ns(launch->theirs_ns, permille, now_ns) - (int64_t)in_flight_ns;
  if (launch->theirs_ns && theirs < credit) credit = theirs;
  if (credit >= (closed ? burst : launch->begins_round ? round : 0)) {
    if (closed) open_gate(gate);
    return 1;
  }
  if (!closed) __atomic_store_n(&gate->closed, 1, __ATOMIC_RELAXED);
  *wait_ns = wall_ns((uint64_t)(burst - credit), permille);
  return 0;
}

/* Returns the `most` lowest set bits of `bits`. */
static uint32_t lowest(uint32_t bits, uint64_t most) {
  uint32_t kept = 0;
  for (; most && bits; most--) {
    kept |= bits & -bits;
    bits &= bits - 1;
  }
  return kept;
}

/* Sets up to `most` bits of `want` in the ring word for `index` and returns how many were not set
 * before. The upper half of a word is its epoch, the number of the pass through the ring. Epochs
 * start at 1. */
static uint64_t mark_word(penstock_gate_device *gate, uint64_t index, uint32_t want,
                          uint64_t most) {
  uint64_t *word = &gate->ring[index % PENSTOCK_RING_WORDS];
  uint32_t epoch = (uint32_t)(index / PENSTOCK_RING_WORDS + 1);
  uint64_t seen = load(word);
  for (;;) {
    int32_t age = (int32_t)((uint32_t)(seen >> 32) - epoch);
    if ((seen >> 32) != 0 && age > 0) { /* the ring has moved on, so older marks are unknown */
      return (uint64_t)__builtin_popcount(lowest(want, most));
    }
    uint32_t have = age == 0 ? (uint32_t)seen : 0;
    uint32_t fresh = lowest(want & ~have, most);
    uint64_t next = (uint64_t)epoch << 32 | have | fresh;
    if (__atomic_compare_exchange_n(word, &seen, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      return (uint64_t)__builtin_popcount(fresh);
    }
  }
}

uint64_t penstock_gate_mark(penstock_gate_device *gate, uint64_t begin_ns, uint64_t end_ns,
                            uint64_t limit_ns) {
  uint64_t first = begin_ns / PENSTOCK_RING_BIT_NS;
  uint64_t last = end_ns / PENSTOCK_RING_BIT_NS; /* exclusive */
  uint64_t left = limit_ns / PENSTOCK_RING_BIT_NS;
  uint64_t fresh = 0;
  while (first < last && left) {
    uint32_t low = (uint32_t)(first % WORD_BITS);
    uint64_t count = WORD_BITS - low;
    if (count > last - first) count = last - first;
    uint32_t want = (uint32_t)(((1ULL << count) - 1) << low);
    uint64_t got = mark_word(gate, first / WORD_BITS, want, left);
    fresh += got;
    left -= got;
    first += count;
  }
  return fresh * PENSTOCK_RING_BIT_NS;
}

void penstock_gate_charge(penstock_gate_device *gate, uint32_t permille, uint64_t ns) {
  if (!ns) return;
  __atomic_fetch_add(&gate->spent_ns, ns, __ATOMIC_RELAXED);
  __atomic_fetch_add(&gate->paid_until_ns, wall_ns(ns, permille), __ATOMIC_RELAXED);
}

/* Adds `ns` to a balance, keeps the balance at or above -`slack_ns`, and returns it. */
static int64_t add(int64_t *balance, int64_t ns, int64_t slack_ns) {
  int64_t now = __atomic_add_fetch(balance, ns, __ATOMIC_RELAXED);
  if (now >= -slack_ns) return now;
  __atomic_compare_exchange_n(balance, &now, -slack_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return -slack_ns;
}

uint64_t penstock_gate_charge_within(penstock_gate_device *gate, uint32_t permille,
                                     uint64_t covered_ns, uint64_t cost_ns,
                                     uint32_t least_permille) {
  const int64_t slack_ns = 10000000;
  int64_t due = (int64_t)cost_ns, covered = (int64_t)covered_ns;
  int64_t lacking = covered * least_permille / PENSTOCK_GATE_FULL_PERMILLE - due;
  lacking = add(&gate->short_ns, lacking, slack_ns);
  if (lacking > 0) {
    due += lacking;
    add(&gate->short_ns, -lacking, slack_ns);
  }
  int64_t excess = add(&gate->over_ns, due - covered, slack_ns) - slack_ns;
  if (excess > 0) {
    if (excess > due) excess = due;
    due -= excess;
    add(&gate->over_ns, -excess, slack_ns);
  }
  penstock_gate_charge(gate, permille, (uint64_t)due);
  return (uint64_t)due;
}
