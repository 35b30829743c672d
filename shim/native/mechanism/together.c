/* Devices that are "together": work on one waits for work on another, as in collectives and
 * pipelines (gate.h). */
#include <stdbool.h>

#include "mechanism/gate.h"

/* A single overrun may be chance. Two within AGAIN_NS make devices count as together for
 * HOLDS_NS. */
#define AGAIN_NS 1000000000
#define HOLDS_NS 10000000000
/* Duration of an overrun that counts even between devices that are together. Devices that are
 * together admit the same launches, so that a shorter overrun usually only means that a launch is
 * about to come. */
#define DESPITE_NS 2000000
/* divisor: launches that are let go because of an overrun may take this fraction of its duration */
#define OVERRUN_PART 256
/* The ends of one step on several devices are at most this far apart, and at most half a step. */
#define SAME_STEP_NS 3000000

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

static void store(uint64_t *word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* Counts a launch as overdraft if it is within the allowance, and returns 1 if it is. The allowance
 * grows with the overrun, because work that overruns is charged meanwhile. */
static int overdraw(penstock_gate_device *gate, uint64_t overrun_ns, uint64_t cost_ns) {
  uint64_t used = load(&gate->overdraft_ns);
  do {
    if (used >= PENSTOCK_GATE_OVERDRAFT_NS + overrun_ns / OVERRUN_PART) return 0;
  } while (!__atomic_compare_exchange_n(&gate->overdraft_ns, &used, used + cost_ns + 1, 0,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  __atomic_fetch_add(&gate->debts, 1, __ATOMIC_RELAXED);
  return 1;
}

void penstock_gate_let_back(penstock_gate_device *gate, uint64_t ns) {
  uint64_t used = load(&gate->overdraft_ns); /* reset to 0 whenever the gate opens */
  while (!__atomic_compare_exchange_n(&gate->overdraft_ns, &used, used > ns ? used - ns : 0, 0,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

int penstock_gate_is_together(const penstock_gate_device *gate, uint64_t now_ns) {
  return load(&gate->together_until_ns) > now_ns;
}

/* Records an overrun. If two threads record something at the same time, one record may be lost; the
 * overrun will be seen again. */
static void note_overrun(penstock_gate_device *gates, unsigned devices, unsigned held,
                         unsigned waiting, uint64_t now_ns) {
  penstock_gate_device *one = &gates[held], *other = &gates[waiting];
  uint64_t all = 1ULL << held | 1ULL << waiting, seen = load(&one->together_seen_ns);
  bool again = now_ns < seen + AGAIN_NS || penstock_gate_is_together(one, now_ns);
  store(&one->together_seen_ns, now_ns);
  if (!again) return;
  if (penstock_gate_is_together(one, now_ns)) all |= load(&one->together);
  if (penstock_gate_is_together(other, now_ns)) all |= load(&other->together);
  for (unsigned i = 0; i < devices; i++) {
    if (!(all >> i & 1)) continue;
    store(&gates[i].together, all);
    store(&gates[i].together_until_ns, now_ns + HOLDS_NS);
  }
}

/* Returns the latest paid_until_ns of the devices in `all`. */
static uint64_t latest_paid_ns(const penstock_gate_device *gates, unsigned devices, uint64_t all) {
  uint64_t latest = 0;
  for (unsigned i = 0; i < devices; i++) {
    uint64_t paid = load(&gates[i].paid_until_ns);
    if (all >> i & 1 && paid > latest) latest = paid;
  }
  return latest;
}

/* Returns true if a device that is together with `here` has progressed further: to a later step of
 * the program, or further in the same step. A step ends with a wait, on all devices at about the
 * same time. */
static bool is_behind(const penstock_gate_device *gates, unsigned devices, unsigned here) {
  const penstock_gate_device *gate = &gates[here];
  uint64_t others = load(&gate->together), count = load(&gate->let_go);
  uint64_t step = load(&gate->step_ns), same = load(&gate->step_length_ns) / 2;
  if (!same || same > SAME_STEP_NS) same = SAME_STEP_NS;
  for (unsigned i = 0; i < devices; i++) {
    if (i == here || !(others >> i & 1)) continue;
    uint64_t theirs = load(&gates[i].step_ns);
    if (theirs > step + same) return true;
    if (theirs + same > step && load(&gates[i].let_go) > count) return true;
  }
  return false;
}

int penstock_gate_let_go(penstock_gate_device *gates, unsigned devices, unsigned held, int waiting,
                         uint64_t overrun_ns, uint64_t cost_ns, uint64_t now_ns) {
  penstock_gate_device *gate = &gates[held];
  bool together = penstock_gate_is_together(gate, now_ns);
  if (together && is_behind(gates, devices, held)) waiting = (int)held;
  if (waiting < 0 || (together && waiting != (int)held && overrun_ns < DESPITE_NS)) return 0;
  if (waiting != (int)held) note_overrun(gates, devices, held, (unsigned)waiting, now_ns);
  if (!overdraw(gate, overrun_ns, cost_ns)) return 0;
  __atomic_fetch_add(&gate->let_go, 1, __ATOMIC_RELAXED);
  return 1;
}

void penstock_gate_drained(penstock_gate_device *gate, uint64_t now_ns) {
  if (__builtin_expect(!penstock_gate_is_together(gate, now_ns), 1)) return;
  uint64_t before = load(&gate->step_ns), length = load(&gate->step_length_ns);
  uint64_t took = now_ns - before; /* usually too long, because it includes waits at the gate */
  if (before) store(&gate->step_length_ns, !length || took < length ? took : length + length / 8);
  store(&gate->step_ns, now_ns);
  store(&gate->let_go, 0);
}

/* Opens or shuts the gates of the devices that are together with `here`, whose gate has just been
 * opened or shut. */
static void follow_together(penstock_gate_device *gates, unsigned devices, unsigned here) {
  uint64_t all = load(&gates[here].together), closed = load(&gates[here].closed);
  for (unsigned i = 0; i < devices; i++) {
    if (!(all >> i & 1)) continue;
    if (!closed) store(&gates[i].overdraft_ns, 0);
    if (i != here) store(&gates[i].closed, closed);
  }
}

int penstock_gate_admit_together(penstock_gate_device *gates, unsigned devices, unsigned here,
                                 uint32_t permille, const penstock_gate_launch *launch,
                                 uint64_t *wait_ns) {
  penstock_gate_device *gate = &gates[here];
  if (__builtin_expect(!penstock_gate_is_together(gate, launch->now_ns), 1)) {
    return penstock_gate_admit(gate, permille, launch, wait_ns);
  }
  uint64_t before = load(&gate->closed), all = load(&gate->together);
  penstock_gate_launch behind = *launch;
  behind.theirs_ns = latest_paid_ns(gates, devices, all);
  int may = penstock_gate_admit(gate, permille, &behind, wait_ns);
  if (load(&gate->closed) != before) follow_together(gates, devices, here);
  if (may) __atomic_fetch_add(&gate->let_go, 1, __ATOMIC_RELAXED);
  return may;
}
