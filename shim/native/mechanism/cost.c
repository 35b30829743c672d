#include "mechanism/cost.h"

/* A sample loses a sixteenth of its weight with each that follows. */
#define KEPT (15.0 / 16.0)
/* How far above the shortest an undisturbed sample may lie: a tenth, and timer noise. A switch of
 * contexts alone takes some 50 us. */
#define NOISE_NS 2000

static uint64_t least_of(uint64_t a, uint64_t b) { return a && (!b || a < b) ? a : b; }

/* Notes `each_ns` in the window of `now_ns`; returns the shortest of this and the last window. */
static uint64_t note_floor(penstock_cost *cost, uint64_t each_ns, uint64_t now_ns) {
  uint64_t age = now_ns - cost->window_began_ns;
  if (age >= PENSTOCK_COST_WINDOW_NS) {
    cost->floor_ns = age < 2 * PENSTOCK_COST_WINDOW_NS ? cost->window_floor_ns : 0;
    cost->window_floor_ns = 0;
    cost->longest_ns -= cost->longest_ns / 4;
    cost->window_began_ns = now_ns;
  }
  cost->window_floor_ns = least_of(cost->window_floor_ns, each_ns);
  cost->least_ns = least_of(cost->least_ns, each_ns);
  return least_of(cost->window_floor_ns, cost->floor_ns);
}

int penstock_cost_learn(penstock_cost *cost, uint64_t time_ns, uint64_t launches, int disturbed,
                        uint64_t now_ns) {
  if (!launches || !time_ns) return 0;
  uint64_t each_ns = time_ns / launches ? time_ns / launches : 1;
  uint64_t floor_ns = note_floor(cost, each_ns, now_ns);
  if (disturbed && cost->mean_ns) {
    if (cost->quiet_ns && now_ns < cost->quiet_ns + PENSTOCK_COST_QUIET_NS) return 0;
    if (each_ns > floor_ns + floor_ns / 10 + NOISE_NS) return 0;
    if (cost->mean_ns > floor_ns + floor_ns / 5 + NOISE_NS) { /* learned from disturbed ones only */
      cost->time_ns = 0;
      cost->launches = 0;
    }
  }
  cost->time_ns = cost->time_ns * KEPT + (double)time_ns;
  cost->launches = cost->launches * KEPT + (double)launches;
  if (!disturbed) cost->quiet_ns = now_ns;
  if (each_ns > cost->longest_ns) __atomic_store_n(&cost->longest_ns, each_ns, __ATOMIC_RELAXED);
  uint64_t mean = (uint64_t)(cost->time_ns / cost->launches);
  uint64_t distance = each_ns > mean ? each_ns - mean : mean - each_ns;
  __atomic_store_n(&cost->spread_ns, (15 * cost->spread_ns + distance) / 16, __ATOMIC_RELAXED);
  __atomic_store_n(&cost->mean_ns, mean ? mean : 1, __ATOMIC_RELAXED);
  return 1;
}

/* The mean stays in place: others may be reading it. */
void penstock_cost_forget(penstock_cost *cost) {
  cost->least_ns = cost->floor_ns = cost->window_floor_ns = cost->longest_ns = 0;
  cost->window_began_ns = cost->quiet_ns = 0;
  cost->time_ns = cost->launches = 0;
  __atomic_store_n(&cost->spread_ns, 0, __ATOMIC_RELAXED);
}

uint64_t penstock_cost_ns(const penstock_cost *cost, uint64_t otherwise_ns) {
  uint64_t mean = __atomic_load_n(&cost->mean_ns, __ATOMIC_RELAXED);
  return mean ? mean : otherwise_ns;
}
