/* builds: plain */
/* A process is killed after each single store that it makes into a tenant's pages (killing.h).
 * After each kill the others must go on at once and every charge must end exactly right. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "killing.h"
#include "mechanism/gate.h"
#include "mechanism/share.h"
#include "mechanism/working.h"
#include "tenant.h"

#define LIMIT MIB
#define RING_WATCHED 8 /* words */
#define SLOTS_WATCHED 9
#define PATIENCE_S 20 /* a survivor that waits for the dead is ended by SIGALRM */

/* What is watched: everything that these operations write. */
typedef struct words {
  char head[offsetof(penstock_usage_page, ledger)];
  penstock_ledger_device ledger;
  char gate[offsetof(penstock_gate_device, ring) + RING_WATCHED * 8];
  penstock_slot slots[SLOTS_WATCHED];
  char quota[offsetof(penstock_quota_page, dead_owners)];
} words;

typedef struct scenario {
  void (*before)(penstock_region *region); /* in the parent; may be NULL */
  void (*act)(penstock_region *region);    /* in the child, which is killed */
  void (*after)(penstock_region *region);  /* in the parent, which lives on */
  unsigned least;                          /* stores there must be, lest nothing was watched */
} scenario;

static penstock_region tenant;

static void run(void *scenario_) { ((const scenario *)scenario_)->act(&tenant); }

static bool kill_after(const scenario *what, unsigned wanted) {
  static words seen;
  const penstock_usage_page *usage = tenant.usage;
  const killing_range ranges[] = {{usage, sizeof seen.head, seen.head},
                                  {&usage->ledger[0], sizeof seen.ledger, &seen.ledger},
                                  {&usage->gate[0], sizeof seen.gate, seen.gate},
                                  {usage->slots, sizeof seen.slots, seen.slots},
                                  {tenant.quota, sizeof seen.quota, seen.quota}};
  return killed_after_store(wanted, what->least, run, (void *)(uintptr_t)what, ranges,
                            sizeof ranges / sizeof *ranges);
}

static void at_every_store(const scenario *what) {
  bool more = true;
  for (unsigned wanted = 1; more; wanted++) {
    char directory[16];
    snprintf(directory, sizeof directory, "t%u", wanted);
    tenant = tenant_open(directory, 1, LIMIT);
    if (what->before) what->before(&tenant);
    more = kill_after(what, wanted);
    alarm(PATIENCE_S);
    what->after(&tenant);
    alarm(0);
    penstock_region_close(&tenant);
  }
}

/* ---- memory ---- */

/* Nothing of the dead is left, and this process gets all that there is. */
static void all_is_mine(penstock_region *region) {
  CHECK_EQUAL(penstock_ledger_reserve(region, 0, LIMIT - penstock_ledger_own(region, 0)),
              PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_total(region, 0), LIMIT);
  penstock_reap_all(region->usage, region->quota);
  CHECK_EQUAL(tenant_slots_in_use(region), 1);
  CHECK_EQUAL(penstock_ledger_total(region, 0), LIMIT);
  penstock_slot_release(region);
  tenant_check_empty(region);
}

static void hold_a_little(penstock_region *region) {
  CHECK_EQUAL(penstock_ledger_reserve(region, 0, 4096), PENSTOCK_OK);
}

static void claim(penstock_region *region) { CHECK(penstock_slot_own(region) >= 0); }

TEST(killed_at_any_store_of_a_claim_it_leaves_a_slot_that_others_reap) {
  at_every_store(&(scenario){hold_a_little, claim, all_is_mine, 4});
}

static void reserve_and_release(penstock_region *region) {
  CHECK_EQUAL(penstock_ledger_reserve(region, 0, 8192), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_reserve(region, 0, LIMIT), PENSTOCK_E_OVER_LIMIT);
  penstock_ledger_release(region, 0, 4096);
  CHECK_EQUAL(penstock_ledger_reserve(region, 0, 512), PENSTOCK_OK);
  penstock_ledger_release(region, 0, 4608);
}

TEST(killed_at_any_store_of_reservations_and_releases_it_leaves_nothing_charged) {
  at_every_store(&(scenario){hold_a_little, reserve_and_release, all_is_mine, 20});
}

static void hand_back(penstock_region *region) {
  hold_a_little(region);
  penstock_slot_release(region);
}

TEST(killed_at_any_store_of_handing_its_slot_back_it_leaves_nothing_charged) {
  at_every_store(&(scenario){hold_a_little, hand_back, all_is_mine, 12});
}

/* Two dead processes, one of them in the midst of a reservation. */
static void leave_the_dead(penstock_region *region) {
  hold_a_little(region);
  for (int i = 0; i < 2; i++) {
    pid_t child = fork();
    if (child == 0) {
      hold_a_little(region);
      int slot = penstock_slot_own(region);
      penstock_ledger_op op;
      penstock_ledger_begin(&op, region->usage, 0, (uint32_t)slot, 7, LIMIT);
      for (int steps = 0; i && steps < 5; steps++) penstock_ledger_step(&op);
      _exit(0);
    }
    wait_for(child);
  }
}

static void reap(penstock_region *region) { penstock_reap_all(region->usage, region->quota); }

TEST(a_reaper_killed_at_any_store_leaves_the_dead_to_the_next) {
  at_every_store(&(scenario){leave_the_dead, reap, all_is_mine, 10});
}

static void share_and_leave(penstock_region *region) {
  CHECK_EQUAL(penstock_ledger_reserve(region, 0, 8192), PENSTOCK_OK);
  penstock_share share = penstock_share_make(region, 0, 8192, 42);
  CHECK(share);
  penstock_share_leave(region, share);
}

TEST(killed_at_any_store_of_making_and_leaving_a_share_it_leaves_nothing_charged) {
  at_every_store(&(scenario){hold_a_little, share_and_leave, all_is_mine, 15});
}

static penstock_share kept;
static void share(penstock_region *region) {
  CHECK_EQUAL(penstock_ledger_reserve(region, 0, 8192), PENSTOCK_OK);
  CHECK(kept = penstock_share_make(region, 0, 8192, 42));
}
static void join_and_leave(penstock_region *region) {
  penstock_share joined = penstock_share_join(region, 42);
  CHECK(joined);
  penstock_share_leave(region, joined);
}
/* The maker holds it still: it is charged, once, until the maker lets go. */
static void still_shared(penstock_region *region) {
  penstock_reap_all(region->usage, region->quota);
  CHECK_EQUAL(penstock_ledger_total(region, 0), 8192);
  penstock_share_leave(region, kept);
  CHECK_EQUAL(penstock_ledger_total(region, 0), 0);
  penstock_slot_release(region);
  tenant_check_empty(region);
}

TEST(killed_at_any_store_of_joining_and_leaving_a_share_it_takes_nothing_from_the_others) {
  at_every_store(&(scenario){share, join_and_leave, still_shared, 4});
}

/* ---- quota ---- */

static penstock_quota_page *writable;
static uint64_t generation;

static penstock_limits limits_numbered(uint64_t n) {
  penstock_limits limits = {.device_count = 1};
  limits.devices[0].memory_bytes = n * 512;
  limits.devices[0].context_reserve_bytes = n * 3;
  limits.devices[0].cores_permille = (uint32_t)(n * 5);
  return limits;
}

static void publish(penstock_region *region) {
  (void)region;
  penstock_limits limits = limits_numbered(7);
  penstock_quota_publish(writable, &limits);
}
static void map_quota(penstock_region *region) {
  static unsigned round;
  char directory[16];
  snprintf(directory, sizeof directory, "t%u", ++round);
  writable = tenant_quota(directory);
  penstock_limits limits = limits_numbered(3);
  penstock_quota_publish(writable, &limits);
  generation = penstock_region_limits(region)->generation;
}
static void whole_limits(penstock_region *region) {
  penstock_device_limit limit;
  CHECK(penstock_region_device_limit(region, 0, &limit));
  uint64_t n = limit.memory_bytes / 512;
  CHECK(n == 3 || n == 7);
  CHECK(limit.context_reserve_bytes == n * 3 && limit.cores_permille == (uint32_t)(n * 5));
  CHECK_EQUAL(penstock_region_limits(region)->generation, generation + (n == 7));
  penstock_limits limits = limits_numbered(9); /* the next writer goes on from there */
  CHECK_EQUAL(penstock_quota_publish(writable, &limits), generation + (n == 7) + 1);
  CHECK_EQUAL(penstock_ledger_limit(region, 0), 9 * 512);
}

TEST(a_writer_of_the_quota_killed_at_any_store_leaves_old_or_new_limits_whole) {
  at_every_store(&(scenario){map_quota, publish, whole_limits, 8});
}

/* ---- gate ---- */

#define SECOND ((uint64_t)1000000000)
#define BUSY_NS (8 * PENSTOCK_RING_BIT_NS)

static int ask_gate(penstock_gate_device *gate, uint32_t permille, uint64_t now_ns,
                    uint64_t *wait_ns) {
  penstock_gate_launch launch = {.now_ns = now_ns};
  return penstock_gate_admit(gate, permille, &launch, wait_ns);
}

static void launch_and_settle(penstock_region *region) {
  penstock_gate_device *gate = &region->usage->gate[0];
  uint64_t wait_ns;
  ask_gate(gate, 200, 2 * SECOND, &wait_ns);
  uint64_t fresh = penstock_gate_mark(gate, 0, BUSY_NS, BUSY_NS);
  penstock_gate_charge(gate, 200, fresh);
  ask_gate(gate, 400, 2 * SECOND + BUSY_NS, &wait_ns);
}

static void begin_the_gate(penstock_region *region) {
  uint64_t wait_ns;
  ask_gate(&region->usage->gate[0], 200, SECOND, &wait_ns);
}

/* At most the charge of the interval that was being entered is lost; nothing is charged twice. */
static void gate_goes_on(penstock_region *region) {
  penstock_gate_device *gate = &region->usage->gate[0];
  uint64_t spent = gate->spent_ns, wait_ns;
  CHECK(spent == 0 || spent == BUSY_NS);
  uint64_t fresh = penstock_gate_mark(gate, 0, BUSY_NS, BUSY_NS);
  CHECK(fresh == 0 || spent == 0);
  penstock_gate_charge(gate, 400, fresh);
  CHECK_EQUAL(penstock_gate_mark(gate, 0, BUSY_NS, BUSY_NS), 0);
  int open = ask_gate(gate, 400, 3 * SECOND, &wait_ns);
  CHECK(open || wait_ns < SECOND);
  CHECK(open || ask_gate(gate, 400, 3 * SECOND + wait_ns, &wait_ns));
}

TEST(killed_at_any_store_into_the_gate_it_loses_one_interval_at_most_and_shuts_nobody_out) {
  at_every_store(&(scenario){begin_the_gate, launch_and_settle, gate_goes_on, 4});
}

static uint64_t *estimate_of(penstock_region *region) {
  int slot = penstock_slot_own(region);
  CHECK(slot >= 0);
  return &region->usage->slots[slot].gate[0].estimate_ns;
}

static void admit(penstock_region *region, uint64_t ns) {
  __atomic_fetch_add(estimate_of(region), ns, __ATOMIC_SEQ_CST);
  penstock_working_note(&region->usage->gate[0], (uint32_t)penstock_slot_own(region));
}

static void have_work(penstock_region *region) {
  admit(region, 5);
  penstock_working_scan(region->usage, 0, SECOND);
}

/* More processes than one bit stands for, so that bits come and go. */
static void admit_and_look(penstock_region *region) {
  for (unsigned i = 1; i < PENSTOCK_WORKING_SLOTS; i++) {
    uint64_t owner;
    CHECK(penstock_slot_take_free(region, i, i + 1, &owner) > 0);
  }
  admit(region, 3);
  __atomic_store_n(estimate_of(region), 0, __ATOMIC_SEQ_CST);
  penstock_working_scan(region->usage, 0, 2 * SECOND);
  admit(region, 3);
  penstock_working_scan(region->usage, 0, 3 * SECOND);
}

/* What lives is seen at any time; what is dead and was reaped is walked no more after a look. */
static void nobody_is_hidden(penstock_region *region) {
  const penstock_gate_device *gate = &region->usage->gate[0];
  for (int look = 0; look < 2; look++) {
    bool own = false;
    unsigned walked = 0;
    for (penstock_working at = penstock_working_begin(region->usage, 0);
         penstock_working_next(gate, &at);) {
      own |= (int)at.slot == penstock_slot_own(region);
      walked++;
    }
    CHECK(own);
    CHECK(look == 0 || walked <= PENSTOCK_WORKING_SLOTS);
    penstock_reap_all(region->usage, region->quota);
    penstock_working_scan(region->usage, 0, 4 * SECOND);
  }
}

TEST(killed_at_any_store_of_noting_work_and_of_a_look_it_hides_nobodys_work) {
  at_every_store(&(scenario){have_work, admit_and_look, nobody_is_hidden, 8});
}
