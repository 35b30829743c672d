/* The compute gate's arithmetic and shared words: how much device time a tenant may still use.
 *
 * Nothing here knows CUDA, reads a clock or waits: times are CLOCK_MONOTONIC nanoseconds that the
 * caller passes in. Everything is lock-free between processes, and a process that is killed between
 * any two instructions loses at most the charge of the interval that it was entering.
 *
 *   credit = share * (now - paid_until) - in flight
 *
 * `paid_until` is the one word that holds the balance: a charge of x ns moves it on by x / share.
 * So a changed share needs no conversion, and no process can see half of a change.
 *
 * Admission has hysteresis: shut when credit falls below zero, open again when it is a full burst.
 * That makes chunks of one period, and a tenant's processes and threads all open together.
 *
 * Plain declarations without inline code: cffi reads this very file.
 */
#pragma once

#include <stdint.h>

#include "abi/gate.h"

#define PENSTOCK_GATE_PERIOD_NS 20000000
#define PENSTOCK_GATE_SHORTEST_NS 5000000
/* Credit above the burst that an idle tenant keeps, and one that was waiting: its wake-up was late,
 * it saved nothing up. */
#define PENSTOCK_GATE_SAVED_NS 5000000
#define PENSTOCK_GATE_LATE_NS 25000000
#define PENSTOCK_GATE_FULL_PERMILLE 1000
#define PENSTOCK_GATE_OVERDRAFT_NS 20000000

/* Device time that a share of `permille` lets through at once: that of one period. The period is
 * shorter for large shares. A program that launches and waits, instead of queueing, stays inside
 * one open phase for burst / (1 - share): with a fixed period, 200 ms at 90 %. */
uint64_t penstock_gate_burst_ns(uint32_t permille);

/* Credit in ns of device time; below zero is debt. */
int64_t penstock_gate_credit_ns(const penstock_gate_device *gate, uint32_t permille,
                                uint64_t now_ns, uint64_t in_flight_ns);

/* A launch that asks to go. */
typedef struct penstock_gate_launch {
  uint64_t now_ns;
  uint64_t in_flight_ns; /* device time that is out, by estimate */
  uint64_t round_ns;     /* device time that is to go together: its burst is no shorter; 0: none */
  _Bool begins_round;    /* and only where the credit covers all of it */
  uint64_t theirs_ns;    /* the balance of another, than whom it must not pay less; 0: none */
} penstock_gate_launch;

/* May a launch go now? 1: yes. 0: no, and *wait_ns says when to ask again if nothing changes.
 * Drops what may not be saved up, and opens or shuts the gate for all processes. */
int penstock_gate_admit(penstock_gate_device *gate, uint32_t permille,
                        const penstock_gate_launch *launch, uint64_t *wait_ns);

/* A launch goes in the tenant's own turn: who hands out turns keeps the account. Keeps the balance
 * within a period of zero, so that the gate can take over should the turns end. */
void penstock_gate_follow(penstock_gate_device *gate, uint32_t permille, uint64_t now_ns);

/* Marks [begin_ns, end_ns) as busy, at most `limit_ns` of it, oldest first, and returns what was
 * not marked before: the part that is to be charged. Resolution is PENSTOCK_RING_BIT_NS, unbiased
 * over many intervals: both ends are rounded down. `limit_ns` is rounded down as well: the caller
 * carries the rest. Intervals older than the ring count as new. */
uint64_t penstock_gate_mark(penstock_gate_device *gate, uint64_t begin_ns, uint64_t end_ns,
                            uint64_t limit_ns);

/* Charges `cost_ns`, which is by experience, or what keeps the sum of such charges between
 * `least_permille` and all of the time that the tenant's work covered, of which `covered_ns` are
 * new; 10 ms more or less. Returns what was charged. */
uint64_t penstock_gate_charge_within(penstock_gate_device *gate, uint32_t permille,
                                     uint64_t covered_ns, uint64_t cost_ns,
                                     uint32_t least_permille);

/* May a launch of `cost_ns` on device `held` of `gates` go although its gate is shut?
 *
 * Yes, if work on device `waiting` (-1: none) has overrun by `overrun_ns` what it should take, and
 * so may wait for it; up to PENSTOCK_GATE_OVERDRAFT_NS between two openings, and 1/256 of
 * `overrun_ns` beyond. Two devices of which that is seen twice within a second are together for a
 * while, with all that are together with one of them. And yes, if one that is together with it has
 * let more launches go since they opened: that one's work will wait for this.
 *
 * It is charged like any other, so the gate stays shut for longer. */
int penstock_gate_let_go(penstock_gate_device *gates, unsigned devices, unsigned held, int waiting,
                         uint64_t overrun_ns, uint64_t cost_ns, uint64_t now_ns);

/* Of launches that were let go so `ns` less counts until the gate opens. */
void penstock_gate_let_back(penstock_gate_device *gate, uint64_t ns);

/* Is the device together with others? */
int penstock_gate_is_together(const penstock_gate_device *gate, uint64_t now_ns);

/* A program waited for all that it had launched there: a step of its work ended. */
void penstock_gate_drained(penstock_gate_device *gate, uint64_t now_ns);

/* As penstock_gate_admit for device `here` of `gates`, which waits until those that are together
 * with it can pay what they owe, and whose gate opens and shuts with theirs. Where work on both
 * waits for each other, one side alone would only run on until the other's gate opens, and owe
 * that: each time more than the time before. */
int penstock_gate_admit_together(penstock_gate_device *gates, unsigned devices, unsigned here,
                                 uint32_t permille, const penstock_gate_launch *launch,
                                 uint64_t *wait_ns);

/* Charges `ns` of device time. */
void penstock_gate_charge(penstock_gate_device *gate, uint32_t permille, uint64_t ns);
