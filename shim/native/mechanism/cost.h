/* Learned costs: the measured device time of one launch of a kind.
 *
 * A kind is a function with its grid, block and shared memory size, a graph executable, or a memset
 * of a certain size. Costs decide when a launch is admitted and when a timing window is closed.
 * While the tenant is alone on the device, they never decide what is charged.
 *
 * The mean is the quotient of two decaying sums. A mean of quotients would give a short timing
 * window as much weight as a long one. Under contention, a timing window also contains time slices
 * of other tenants. A sample from such a window counts only if it is close to the shortest recent
 * sample (`floor`), as undisturbed samples are, and it does not count at all while undisturbed
 * samples are available.
 *
 * This header has plain declarations without inline code because cffi parses it.
 */
#pragma once

#include <stdint.h>

/* time for which an undisturbed sample rules out disturbed ones */
#define PENSTOCK_COST_UNDISTURBED_NS 2000000000
/* length of a long launch: more than other tenants' time slices */
#define PENSTOCK_COST_LONG_NS 5000000
#define PENSTOCK_COST_NEAR 4096 /* value of `near` when all samples are close to the floor */
/* the floor is the minimum over this period and the previous one */
#define PENSTOCK_COST_PERIOD_NS 4000000000
/* upper bound of the time until the arrival of another tenant on the device is known */
#define PENSTOCK_COST_SURE_NS 500000000

typedef struct penstock_cost {
  uint64_t mean_ns; /* mean time of one launch, 0 if unknown */
  /* minimum time of most launches, which a few far too long ones do not change */
  uint64_t usual_ns;
  uint64_t odd_ns;          /* the last sample far below all others, 0 if none */
  uint64_t floor_ns;        /* shortest sample of the previous period, 0 if none */
  uint64_t period_floor_ns; /* shortest sample of this period, 0 if none */
  uint64_t longest_ns;      /* approximate longest sample of this period and the previous one */
  uint64_t period_began_ns;
  /* CLOCK_MONOTONIC time of the last undisturbed sample, 0 before the first */
  uint64_t undisturbed_ns;
  uint64_t spread_ns; /* decaying mean distance of undisturbed samples from the mean */
  uint64_t sure_ns;   /* mean as it was at least PENSTOCK_COST_SURE_NS ago, 0 if none */
  uint64_t recent_ns; /* mean at recent_at_ns, which replaces sure_ns next */
  uint64_t recent_at_ns;
  /* number of recent undisturbed samples, 0 if the costs come from disturbed ones */
  uint32_t undisturbed;
  uint32_t near;   /* decaying fraction of samples that were close to the floor */
  double time_ns;  /* decaying sum of measured time */
  double launches; /* decaying sum of launches */
} penstock_cost;

/* Adds a sample in which `launches` launches took `time_ns` together. `disturbed` is true if other
 * processes or tenants used the device meanwhile. Returns 1 if the sample counted, 0 otherwise.
 * Callers must serialise their calls. */
int penstock_cost_learn(penstock_cost *cost, uint64_t time_ns, uint64_t launches, int disturbed,
                        uint64_t now_ns);

/* Returns 1 if there are enough recent undisturbed samples to rely on the mean, 0 otherwise. */
int penstock_cost_is_sure(const penstock_cost *cost, uint64_t now_ns);

/* Returns 1 if launches of the kind take similar times, judging by recent undisturbed samples; 0
 * otherwise. */
int penstock_cost_is_even(const penstock_cost *cost, uint64_t now_ns);

/* Returns 1 if many samples are close to the shortest one, as undisturbed samples are; 0
 * otherwise. */
int penstock_cost_is_clustered(const penstock_cost *cost);

/* Restores the costs known before the last samples, or the shortest sample if there are no such
 * costs. The gate calls this when it learns that other tenants are on the device, because the last
 * samples may then have been disturbed. */
void penstock_cost_doubt(penstock_cost *cost);

/* Forgets all samples, but keeps the mean as an estimate until the next sample replaces it. */
void penstock_cost_forget(penstock_cost *cost);

/* Returns the time of a launch that nothing delays, 0 if unknown. The mean includes time that a
 * kernel spent waiting for another kernel; this value does not, unless most launches waited. May
 * run concurrently with penstock_cost_learn. */
uint64_t penstock_cost_usual_ns(const penstock_cost *cost);

/* Forgets all costs, including the mean. */
void penstock_cost_clear(penstock_cost *cost);

/* Returns the mean cost of a launch, or `otherwise_ns` while it is unknown. May run concurrently
 * with penstock_cost_learn. */
uint64_t penstock_cost_ns(const penstock_cost *cost, uint64_t otherwise_ns);
