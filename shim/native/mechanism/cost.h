/* Learned costs: the measured device time of one launch of a kind.
 *
 * A kind is a function with its grid, block and shared memory, a graph executable, or a memset of a
 * size. Costs decide when to admit a launch and when to close a timing window; while the tenant is
 * alone on the device, they never decide what is charged.
 *
 * The mean is the quotient of two decaying sums, not a mean of quotients: that would weigh short
 * windows as much as long ones. Under contention a window also contains co-tenants' time slices.
 * Such a sample counts only if it is close to the shortest recent one (`floor`), as undisturbed
 * samples are, and not at all while undisturbed samples are available.
 *
 * Plain declarations without inline code: cffi reads this very file.
 */
#pragma once

#include <stdint.h>

/* An undisturbed sample rules out disturbed ones for this long. */
#define PENSTOCK_COST_QUIET_NS 2000000000
#define PENSTOCK_COST_LONG_NS 5000000      /* longer than co-tenants' time slices */
#define PENSTOCK_COST_NEAR 4096            /* value of `near` when all samples are close */
#define PENSTOCK_COST_WINDOW_NS 4000000000 /* the floor is that of this window and the last */
/* Other tenants' arrival on the device is known after this time at most. */
#define PENSTOCK_COST_SURE_NS 500000000

typedef struct penstock_cost {
  uint64_t mean_ns;  /* of one launch; 0: unknown */
  uint64_t usual_ns; /* least time of most launches: a few that were far too long do not move it */
  uint64_t odd_ns;   /* the last sample far below all others; 0: none */
  uint64_t floor_ns; /* shortest in the window before this one; 0: none */
  uint64_t window_floor_ns; /* shortest in this window; 0: none */
  uint64_t longest_ns;      /* longest of this window and the last, approximately */
  uint64_t window_began_ns;
  uint64_t quiet_ns;  /* CLOCK_MONOTONIC of the last undisturbed sample; 0: none yet */
  uint64_t spread_ns; /* decaying mean of the undisturbed samples' distance from the mean */
  uint64_t sure_ns;   /* the mean at least PENSTOCK_COST_SURE_NS ago; 0: none … */
  uint64_t recent_ns; /* … and the mean that replaces it next, as it was at … */
  uint64_t recent_at_ns;
  uint32_t quiet;  /* recent undisturbed samples; 0: the costs are from disturbed ones */
  uint32_t near;   /* decaying fraction of the samples that were close to the floor */
  double time_ns;  /* decaying sum of measured time … */
  double launches; /* … and of launches */
} penstock_cost;

/* Adds the sample that `launches` launches took `time_ns` together. `disturbed`: other processes or
 * tenants were on the device meanwhile. Returns 1 if the sample counted. Callers serialise. */
int penstock_cost_learn(penstock_cost *cost, uint64_t time_ns, uint64_t launches, int disturbed,
                        uint64_t now_ns);

/* Are there enough recent undisturbed samples to rely on the mean? */
int penstock_cost_is_sure(const penstock_cost *cost, uint64_t now_ns);

/* Do launches of the kind take similar times, by recent undisturbed samples? */
int penstock_cost_is_even(const penstock_cost *cost, uint64_t now_ns);

/* Are many of its samples close to the shortest, as undisturbed ones are? */
int penstock_cost_is_clustered(const penstock_cost *cost);

/* Other tenants turn out to be on the device, so the last samples may have been disturbed. Goes
 * back to the costs known before them, or to the shortest if there are none. */
void penstock_cost_doubt(penstock_cost *cost);

/* Keeps the mean as an estimate; the next sample replaces it. */
void penstock_cost_forget(penstock_cost *cost);

/* Time of a launch that nothing holds up; 0: unknown. The mean includes the time that a kernel
 * waited for another one; this does not, unless most launches waited. Safe beside a learner. */
uint64_t penstock_cost_usual_ns(const penstock_cost *cost);

/* Forgets all costs. */
void penstock_cost_clear(penstock_cost *cost);

/* The cost of a launch, or `otherwise_ns` while it is unknown. Safe beside a learner. */
uint64_t penstock_cost_ns(const penstock_cost *cost, uint64_t otherwise_ns);
