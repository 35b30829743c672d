/* The compute gate's arithmetic and shared words: how much device time a tenant may still use.
 *
 * Nothing here knows CUDA, reads a clock or waits: times are CLOCK_MONOTONIC nanoseconds that the
 * caller passes in. Everything is lock-free between processes, and a process that is killed between
 * any two instructions loses at most the charge of the interval that it was recording.
 *
 *   credit = share * (now - paid_until) - in flight
 *
 * `paid_until` is the one word that holds the balance: a charge of x ns adds x / share to it.
 * So a changed share needs no conversion, and no process can see half of a change.
 *
 * Admission has hysteresis: the gate shuts when credit falls below zero and opens again at a full
 * burst. So work goes in chunks of one period, for all of a tenant's processes and threads at once.
 *
 * Plain declarations without inline code: cffi reads this very file.
 */
#pragma once

#include <stdint.h>

#include "abi/gate.h"

#define PENSTOCK_GATE_PERIOD_NS 20000000
#define PENSTOCK_GATE_SHORTEST_NS 5000000
/* Credit above the burst that an idle tenant keeps (SAVED), and that a waiting tenant keeps (LATE):
 * a waiting tenant woke up late and saved nothing up. */
#define PENSTOCK_GATE_SAVED_NS 5000000
#define PENSTOCK_GATE_LATE_NS 25000000
#define PENSTOCK_GATE_FULL_PERMILLE 1000
#define PENSTOCK_GATE_OVERDRAFT_NS 20000000

/* Device time that a share of `permille` admits at once: that of one period. The period is shorter
 * for large shares. A program that launches and waits, instead of queueing, stays inside one open
 * phase for burst / (1 - share): with a fixed period, 200 ms at 90 %. */
uint64_t penstock_gate_burst_ns(uint32_t permille);

/* Credit in ns of device time; below zero is overdraft. */
int64_t penstock_gate_credit_ns(const penstock_gate_device *gate, uint32_t permille,
                                uint64_t now_ns, uint64_t in_flight_ns);

/* A launch that requests admission. */
typedef struct penstock_gate_launch {
  uint64_t now_ns;
  uint64_t in_flight_ns; /* estimated device time in flight */
  uint64_t round_ns;     /* device time to be admitted together: the burst is no shorter; 0: none */
  _Bool begins_round;    /* admit only where the credit covers all of it */
  uint64_t theirs_ns;    /* balance of another device: this one must not pay less; 0: none */
} penstock_gate_launch;

/* May a launch go now? 1: yes. 0: no, and *wait_ns is the time until the next attempt if nothing
 * changes. Drops credit that may not be saved up, and opens or shuts the gate for all processes. */
int penstock_gate_admit(penstock_gate_device *gate, uint32_t permille,
                        const penstock_gate_launch *launch, uint64_t *wait_ns);

/* A launch goes in the tenant's own time slice: the time-slice scheduler keeps the account. Keeps
 * the balance within a period of zero, so that the gate can take over if the time slices end. */
void penstock_gate_follow(penstock_gate_device *gate, uint32_t permille, uint64_t now_ns);

/* Marks [begin_ns, end_ns) as busy, at most `limit_ns` of it, oldest first, and returns the part
 * that was not marked before and is to be charged. Resolution is PENSTOCK_RING_BIT_NS, unbiased
 * over many intervals: both ends are rounded down. `limit_ns` is rounded down as well: the caller
 * carries the rest. Intervals older than the ring count as new. */
uint64_t penstock_gate_mark(penstock_gate_device *gate, uint64_t begin_ns, uint64_t end_ns,
                            uint64_t limit_ns);

/* Charges `cost_ns`, a learned cost, or an amount that keeps the sum of such charges between
 * `least_permille` and all of the time that the tenant's work covered, of which `covered_ns` are
 * new; 10 ms more or less. Returns the amount charged. */
uint64_t penstock_gate_charge_within(penstock_gate_device *gate, uint32_t permille,
                                     uint64_t covered_ns, uint64_t cost_ns,
                                     uint32_t least_permille);

/* May a launch of `cost_ns` on device `held` of `gates` go although its gate is shut?
 *
 * Yes, if work on device `waiting` (-1: none) has overrun its expected time by `overrun_ns`, and so
 * may wait for the launch; up to PENSTOCK_GATE_OVERDRAFT_NS between two openings, and 1/256 of
 * `overrun_ns` beyond. Two devices for which that is seen twice within a second are together for a
 * while, with all devices that are together with one of them. Also yes, if a device that is
 * together with `held` has admitted more launches since they opened: its work will wait for this
 * launch.
 *
 * The launch is charged like any other, so the gate stays shut for longer. */
int penstock_gate_let_go(penstock_gate_device *gates, unsigned devices, unsigned held, int waiting,
                         uint64_t overrun_ns, uint64_t cost_ns, uint64_t now_ns);

/* Deducts `ns` from the cost of launches that were let go since the gate last opened. */
void penstock_gate_let_back(penstock_gate_device *gate, uint64_t ns);

/* Is the device together with others? */
int penstock_gate_is_together(const penstock_gate_device *gate, uint64_t now_ns);

/* A program waited for all its launches on the device: a step of its work ended. */
void penstock_gate_drained(penstock_gate_device *gate, uint64_t now_ns);

/* As penstock_gate_admit for device `here` of `gates`, which waits until the devices together with
 * it can pay their overdraft, and whose gate opens and shuts with theirs. Where work on two devices
 * waits for each other, one side alone would only run on until the other's gate opens, and owe that
 * time: each time more than the time before. */
int penstock_gate_admit_together(penstock_gate_device *gates, unsigned devices, unsigned here,
                                 uint32_t permille, const penstock_gate_launch *launch,
                                 uint64_t *wait_ns);

/* Charges `ns` of device time. */
void penstock_gate_charge(penstock_gate_device *gate, uint32_t permille, uint64_t ns);
