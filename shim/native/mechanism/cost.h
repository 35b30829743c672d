/* Learned costs: what one launch of a kind takes on the device, as far as measured.
 *
 * A kind is a function with its grid, block and shared memory, a graph executable, a memset of a
 * size. Costs decide when to admit and when to close a bracket; while nobody else is on the device,
 * they never decide what is charged.
 *
 * The mean is the quotient of two decaying sums, not a mean of quotients: that would weigh short
 * brackets as much as long ones. While others are on the device, a bracket also holds their time
 * slices; such a sample counts only if it is close to the shortest seen of late (`floor`), which
 * the undisturbed ones are, and not at all while undisturbed samples are to be had.
 *
 * Plain declarations without inline code: cffi reads this very file.
 */
#pragma once

#include <stdint.h>

/* An undisturbed sample rules out disturbed ones for this long. */
#define PENSTOCK_COST_QUIET_NS 2000000000
#define PENSTOCK_COST_LONG_NS 5000000      /* longer than others' time slices */
#define PENSTOCK_COST_NEAR 4096            /* of `near`: all of them */
#define PENSTOCK_COST_WINDOW_NS 4000000000 /* the floor is that of this and the last window */
/* That other tenants have come to the device is known this much later at most. */
#define PENSTOCK_COST_SURE_NS 500000000

typedef struct penstock_cost {
  uint64_t mean_ns;  /* a launch; 0: unknown */
  uint64_t usual_ns; /* what most take at least: a few that were far too long do not move it */
  uint64_t odd_ns;   /* the last sample far below all others; 0: none */
  uint64_t floor_ns; /* shortest in the window before this one; 0: none */
  uint64_t window_floor_ns; /* shortest in this window; 0: none */
  uint64_t longest_ns;      /* the longest of this and the last window, near enough */
  uint64_t window_began_ns;
  uint64_t quiet_ns;  /* CLOCK_MONOTONIC of the last undisturbed sample; 0: none yet */
  uint64_t spread_ns; /* decaying mean of the undisturbed samples' distance from the mean */
  uint64_t sure_ns;   /* the mean as it was PENSTOCK_COST_SURE_NS ago or longer; 0: no such … */
  uint64_t recent_ns; /* … and what is that next, as it was at … */
  uint64_t recent_at_ns;
  uint32_t quiet;  /* undisturbed samples of late; 0: what is known is from disturbed ones */
  uint32_t near;   /* decaying part of the samples that were close to the floor */
  double time_ns;  /* decaying sum of measured time … */
  double launches; /* … and of launches */
} penstock_cost;

/* Takes in that `launches` launches took `time_ns` together. `disturbed`: other processes or
 * tenants were on the device meanwhile. Returns 1 if the sample counted. Callers serialise. */
int penstock_cost_learn(penstock_cost *cost, uint64_t time_ns, uint64_t launches, int disturbed,
                        uint64_t now_ns);

/* Are there enough undisturbed samples of late to rely on the mean? */
int penstock_cost_is_sure(const penstock_cost *cost, uint64_t now_ns);

/* Do launches of the kind take alike, as undisturbed samples of late say? */
int penstock_cost_is_even(const penstock_cost *cost, uint64_t now_ns);

/* Are many of its samples close to the shortest, as those are that nobody disturbed? */
int penstock_cost_is_clustered(const penstock_cost *cost);

/* Others turn out to be on the device: the last samples may not have been as undisturbed as they
 * were taken to be. Goes back to what was known before them; without any such, to the shortest. */
void penstock_cost_doubt(penstock_cost *cost);

/* Keeps the mean as an estimate; the next sample replaces it. */
void penstock_cost_forget(penstock_cost *cost);

/* What a launch takes if nothing holds it up; 0: unknown. The mean holds what a kernel spent on
 * waiting for another one; this does not, unless most of them did. Safe beside a learner. */
uint64_t penstock_cost_usual_ns(const penstock_cost *cost);

/* Nothing is known any more. */
void penstock_cost_clear(penstock_cost *cost);

/* The cost of a launch, or `otherwise_ns` while it is unknown. Safe beside a learner. */
uint64_t penstock_cost_ns(const penstock_cost *cost, uint64_t otherwise_ns);
