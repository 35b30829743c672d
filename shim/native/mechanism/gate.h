/* The compute gate decides how much device time a tenant may still use. This header declares its
 * arithmetic on words that the tenant's processes share.
 *
 * The code here knows nothing of CUDA, reads no clock and never waits: the caller passes in
 * CLOCK_MONOTONIC times in nanoseconds. Everything is lock-free between processes. A process that
 * is killed between any two instructions loses at most the charge of the interval that it was
 * recording.
 *
 *   credit = share * (now - paid_until) - in flight
 *
 * The single word `paid_until` holds the balance: a charge of x ns adds x / share to it. Credit
 * therefore needs no conversion when the share changes, and no process can see half of a change.
 *
 * Admission has hysteresis: the gate shuts when credit falls below zero, and opens again when
 * credit reaches a full burst. Work therefore runs in chunks of one period, for all processes and
 * threads of a tenant together.
 *
 * This header has plain declarations without inline code because cffi parses it.
 */
#pragma once

#include <stdint.h>

#include "abi/gate.h"

#define PENSTOCK_GATE_PERIOD_NS 20000000
#define PENSTOCK_GATE_SHORTEST_NS 5000000
/* Credit that a tenant keeps beyond the burst: SAVED_NS if idle, LATE_NS if it has been waiting,
 * because a waiting tenant that woke up late has not saved anything up. */
#define PENSTOCK_GATE_SAVED_NS 5000000
#define PENSTOCK_GATE_LATE_NS 25000000
#define PENSTOCK_GATE_FULL_PERMILLE 1000
#define PENSTOCK_GATE_OVERDRAFT_NS 20000000

/* Returns the burst: the device time that a share of `permille` admits at once, which is what it
 * earns in one period. The period is shorter for large shares, because a program that launches and
 * waits, without queueing, stays inside one open phase for burst / (1 - share). With a fixed
 * period, that would be 200 ms at 90 %. */
uint64_t penstock_gate_burst_ns(uint32_t permille);

/* Returns the credit in ns of device time. Negative credit is overdraft. */
int64_t penstock_gate_credit_ns(const penstock_gate_device *gate, uint32_t permille,
                                uint64_t now_ns, uint64_t in_flight_ns);

/* A launch that requests admission. */
typedef struct penstock_gate_launch {
  uint64_t now_ns;
  uint64_t in_flight_ns; /* estimated device time in flight */
  /* device time to be admitted as a unit, so that the burst is at least this long; 0 if none */
  uint64_t round_ns;
  _Bool begins_round; /* true if the launch may go only when credit covers all of round_ns */
  /* paid_until_ns of another device whose credit must suffice too, 0 if none */
  uint64_t theirs_ns;
} penstock_gate_launch;

/* Decides whether a launch may go now. Returns 1 if so. Otherwise returns 0 and sets *wait_ns to
 * the time until the next attempt, assuming that nothing changes. Also drops credit that may not be
 * saved up, and opens or shuts the gate for all processes. */
int penstock_gate_admit(penstock_gate_device *gate, uint32_t permille,
                        const penstock_gate_launch *launch, uint64_t *wait_ns);

/* Records a launch in the tenant's own time slice, where the time-slice scheduler and not the gate
 * keeps the account. Keeps the balance within one period of zero, so that the gate can take over
 * when time slices end. */
void penstock_gate_follow(penstock_gate_device *gate, uint32_t permille, uint64_t now_ns);

/* Marks at most `limit_ns` of [begin_ns, end_ns) as busy, oldest first, and returns the time that
 * was not marked before, which is to be charged. The resolution is PENSTOCK_RING_BIT_NS; both ends
 * are rounded down, so that the error averages out over many intervals. `limit_ns` is rounded down
 * too, and the caller carries the remainder over. Intervals older than the ring count as
 * unmarked. */
uint64_t penstock_gate_mark(penstock_gate_device *gate, uint64_t begin_ns, uint64_t end_ns,
                            uint64_t limit_ns);

/* Charges `cost_ns`, a learned cost, adjusted so that the sum of such charges stays between
 * `least_permille` and 100 % of the time that the tenant's work covered, to within 10 ms.
 * `covered_ns` is the newly covered time. Returns the time charged. */
uint64_t penstock_gate_charge_within(penstock_gate_device *gate, uint32_t permille,
                                     uint64_t covered_ns, uint64_t cost_ns,
                                     uint32_t least_permille);

/* Decides whether a launch of `cost_ns` on device `held` of `gates` may go although its gate is
 * shut. Returns 1 if the launch may go, 0 otherwise.
 *
 * It may go if work on device `waiting` (-1 if none) has exceeded its expected time by
 * `overrun_ns`, because that work may be waiting for the launch. Such launches may use
 * PENSTOCK_GATE_OVERDRAFT_NS between two openings of the gate, plus 1/256 of `overrun_ns`. If this
 * happens to the same two devices twice within a second, they count as "together" for a while,
 * along with all devices that are together with either of them.
 *
 * It may also go if a device that is together with `held` has admitted more launches since their
 * gates opened, because the work on that device will wait for this launch.
 *
 * The launch is charged like any other, so the gate stays shut for longer. */
int penstock_gate_let_go(penstock_gate_device *gates, unsigned devices, unsigned held, int waiting,
                         uint64_t overrun_ns, uint64_t cost_ns, uint64_t now_ns);

/* Deducts `ns` from the cost of the launches that were let go since the gate last opened. */
void penstock_gate_let_back(penstock_gate_device *gate, uint64_t ns);

/* Returns 1 if the device is together with other devices, 0 otherwise. */
int penstock_gate_is_together(const penstock_gate_device *gate, uint64_t now_ns);

/* Records that a program has waited for all its launches on the device, which ends a step of its
 * work. */
void penstock_gate_drained(penstock_gate_device *gate, uint64_t now_ns);

/* Like penstock_gate_admit, for device `here` of `gates`. If the device is together with others,
 * the launch waits until all of them can pay their overdraft, and their gates open and shut
 * together. Otherwise, where work on two devices waits for each other, one side would run on until
 * the other's gate opens and owe that time, more each time. */
int penstock_gate_admit_together(penstock_gate_device *gates, unsigned devices, unsigned here,
                                 uint32_t permille, const penstock_gate_launch *launch,
                                 uint64_t *wait_ns);

/* Charges `ns` of device time to the share. */
void penstock_gate_charge(penstock_gate_device *gate, uint32_t permille, uint64_t ns);
