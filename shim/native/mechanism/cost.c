#include "mechanism/cost.h"

#include <stdbool.h>

/* Each new sample takes a sixteenth of the weight of every earlier sample. */
#define KEPT (15.0 / 16.0)
/* Timer noise. An undisturbed sample may be longer than the shortest one by a tenth plus this much.
 * The limit is low because a context switch alone takes about 50 us. */
#define NOISE_NS 2000

static uint64_t least_of(uint64_t a, uint64_t b) { return a && (!b || a < b) ? a : b; }

static uint64_t most_of(uint64_t a, uint64_t b) { return a > b ? a : b; }

static bool is_long(uint64_t ns) { return ns >= PENSTOCK_COST_LONG_NS; }

/* Returns true if `a` and `b` differ by at most a tenth plus timer noise. */
static bool is_near(uint64_t a, uint64_t b) {
  return a < b + b / 10 + NOISE_NS && b < a + b / 10 + NOISE_NS;
}

static uint64_t floor_of(const penstock_cost *cost) {
  return least_of(cost->period_floor_ns, cost->floor_ns);
}

static void begin_period(penstock_cost *cost, uint64_t now_ns) {
  uint64_t age = now_ns - cost->period_began_ns;
  if (age < PENSTOCK_COST_PERIOD_NS) return;
  cost->floor_ns = age < 2 * PENSTOCK_COST_PERIOD_NS ? cost->period_floor_ns : 0;
  cost->period_floor_ns = 0;
  uint64_t longest_ns = cost->longest_ns - cost->longest_ns / 4;
  __atomic_store_n(&cost->longest_ns, longest_ns, __ATOMIC_RELAXED);
  if (is_long(cost->odd_ns)) cost->odd_ns = 0;
  cost->period_began_ns = now_ns;
}

/* Records a long launch that is far shorter than all others. There are only a few long launches per
 * second, and each sample includes time that other tenants used meanwhile, so that two similar
 * samples in a row are rare. The floor is therefore the second shortest sample of the period. */
static bool note_long(penstock_cost *cost, uint64_t each_ns) {
  uint64_t odd_ns = cost->odd_ns;
  cost->odd_ns = is_long(odd_ns) ? least_of(each_ns, odd_ns) : each_ns;
  if (!is_long(odd_ns)) return false;
  cost->period_floor_ns = least_of(cost->period_floor_ns, most_of(each_ns, odd_ns));
  return each_ns >= odd_ns || is_near(each_ns, odd_ns);
}

/* Records a sample in the current period. A sample far below all others may be a measurement error
 * and would rule out all others, so it counts only once a second sample confirms it. Returns false
 * for the first such sample. */
static bool note_floor(penstock_cost *cost, uint64_t each_ns, uint64_t now_ns) {
  begin_period(cost, now_ns);
  uint64_t floor_ns = floor_of(cost);
  if (floor_ns && each_ns < floor_ns && !is_near(each_ns, floor_ns)) {
    if (is_long(each_ns)) return note_long(cost, each_ns);
    bool again = cost->odd_ns && is_near(each_ns, cost->odd_ns);
    cost->odd_ns = each_ns;
    if (!again) return false;
  }
  cost->period_floor_ns = least_of(cost->period_floor_ns, each_ns);
  uint32_t near = cost->near - cost->near / 16;
  if (is_near(each_ns, floor_of(cost))) near += PENSTOCK_COST_NEAR / 16;
  __atomic_store_n(&cost->near, near, __ATOMIC_RELAXED);
  return true;
}

static void note_undisturbed(penstock_cost *cost, uint64_t each_ns, uint64_t mean_ns,
                             uint64_t now_ns) {
  bool stale = now_ns > cost->undisturbed_ns + PENSTOCK_COST_UNDISTURBED_NS;
  uint32_t undisturbed = stale ? 1 : cost->undisturbed + 1;
  uint64_t distance = each_ns > mean_ns ? each_ns - mean_ns : mean_ns - each_ns;
  /* the first samples form a plain mean */
  uint32_t weight = undisturbed < 16 ? undisturbed : 16;
  uint64_t spread_ns = ((weight - 1) * cost->spread_ns + distance) / weight;
  __atomic_store_n(&cost->spread_ns, spread_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&cost->undisturbed_ns, now_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&cost->undisturbed, undisturbed < 1000 ? undisturbed : 1000, __ATOMIC_RELAXED);
}

static void note_recent(penstock_cost *cost, uint64_t now_ns) {
  if (now_ns < cost->recent_at_ns + PENSTOCK_COST_SURE_NS) return;
  cost->sure_ns = cost->recent_ns;
  cost->recent_ns = cost->mean_ns;
  cost->recent_at_ns = now_ns;
}

/* Updates the usual cost: upwards by at most an eighth, downwards by half the distance. It falls
 * faster than it rises because the first sample may have been far too long. */
static void note_usual(penstock_cost *cost, uint64_t each_ns) {
  uint64_t usual_ns = cost->usual_ns, step_ns = usual_ns / 8 + 1;
  if (!usual_ns) {
    usual_ns = each_ns;
  } else if (each_ns > usual_ns) {
    usual_ns = each_ns - usual_ns > step_ns ? usual_ns + step_ns : each_ns;
  } else {
    usual_ns -= (usual_ns - each_ns) / 2;
  }
  __atomic_store_n(&cost->usual_ns, usual_ns, __ATOMIC_RELAXED);
}

int penstock_cost_learn(penstock_cost *cost, uint64_t time_ns, uint64_t launches, int disturbed,
                        uint64_t now_ns) {
  if (!launches || !time_ns) return 0;
  uint64_t each_ns = time_ns / launches ? time_ns / launches : 1;
  bool counts = note_floor(cost, each_ns, now_ns);
  note_recent(cost, now_ns);
  if (disturbed && cost->mean_ns) {
    if (!counts) return 0;
    if (cost->undisturbed_ns && now_ns < cost->undisturbed_ns + PENSTOCK_COST_UNDISTURBED_NS)
      return 0;
    uint64_t floor_ns = floor_of(cost);
    if (each_ns > floor_ns + floor_ns / 10 + NOISE_NS) return 0;
    __atomic_store_n(&cost->undisturbed, 0, __ATOMIC_RELAXED);
    if (cost->mean_ns > floor_ns + floor_ns / 5 + NOISE_NS) { /* all samples were disturbed */
      cost->time_ns = 0;
      cost->launches = 0;
    }
  }
  if (!disturbed && !cost->undisturbed) { /* all samples so far were disturbed */
    cost->time_ns = 0;
    cost->launches = 0;
  }
  cost->time_ns = cost->time_ns * KEPT + (double)time_ns;
  cost->launches = cost->launches * KEPT + (double)launches;
  note_usual(cost, each_ns);
  if (each_ns > cost->longest_ns) __atomic_store_n(&cost->longest_ns, each_ns, __ATOMIC_RELAXED);
  uint64_t mean = (uint64_t)(cost->time_ns / cost->launches);
  if (!disturbed) note_undisturbed(cost, each_ns, mean, now_ns);
  __atomic_store_n(&cost->mean_ns, mean ? mean : 1, __ATOMIC_RELAXED);
  return 1;
}

int penstock_cost_is_sure(const penstock_cost *cost, uint64_t now_ns) {
  enum { ENOUGH = 8 }; /* fewer samples may be similar by chance */
  uint64_t undisturbed_ns = __atomic_load_n(&cost->undisturbed_ns, __ATOMIC_RELAXED);
  return __atomic_load_n(&cost->undisturbed, __ATOMIC_RELAXED) >= ENOUGH &&
         now_ns < undisturbed_ns + PENSTOCK_COST_UNDISTURBED_NS;
}

int penstock_cost_is_even(const penstock_cost *cost, uint64_t now_ns) {
  uint64_t spread_ns = __atomic_load_n(&cost->spread_ns, __ATOMIC_RELAXED);
  return penstock_cost_is_sure(cost, now_ns) &&
         spread_ns < penstock_cost_ns(cost, 0) / 8 + NOISE_NS;
}

int penstock_cost_is_clustered(const penstock_cost *cost) {
  return __atomic_load_n(&cost->near, __ATOMIC_RELAXED) >= PENSTOCK_COST_NEAR / 8;
}

void penstock_cost_doubt(penstock_cost *cost) {
  uint64_t mean = cost->sure_ns ? cost->sure_ns : floor_of(cost);
  if (!mean) return;
  cost->time_ns = (double)mean;
  cost->launches = 1;
  cost->recent_ns = 0;
  __atomic_store_n(&cost->undisturbed_ns, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&cost->undisturbed, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&cost->mean_ns, mean, __ATOMIC_RELAXED);
}

void penstock_cost_forget(penstock_cost *cost) {
  cost->odd_ns = cost->floor_ns = cost->period_floor_ns = 0;
  cost->period_began_ns = 0;
  cost->sure_ns = cost->recent_ns = cost->recent_at_ns = 0;
  __atomic_store_n(&cost->usual_ns, 0, __ATOMIC_RELAXED);
  cost->time_ns = cost->launches = 0;
  __atomic_store_n(&cost->longest_ns, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&cost->near, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&cost->undisturbed_ns, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&cost->spread_ns, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&cost->undisturbed, 0, __ATOMIC_RELAXED);
}

uint64_t penstock_cost_usual_ns(const penstock_cost *cost) {
  uint64_t mean = __atomic_load_n(&cost->mean_ns, __ATOMIC_RELAXED);
  uint64_t usual = __atomic_load_n(&cost->usual_ns, __ATOMIC_RELAXED);
  return usual && usual < mean ? usual : mean;
}

void penstock_cost_clear(penstock_cost *cost) {
  __atomic_store_n(&cost->mean_ns, 0, __ATOMIC_RELAXED);
  penstock_cost_forget(cost);
}

uint64_t penstock_cost_ns(const penstock_cost *cost, uint64_t otherwise_ns) {
  uint64_t mean = __atomic_load_n(&cost->mean_ns, __ATOMIC_RELAXED);
  return mean ? mean : otherwise_ns;
}
