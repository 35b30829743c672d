/* builds: plain address */
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "harness.h"
#include "mechanism/share.h"
#include "mechanism/working.h"
#include "tenant.h"

#define LOOK_NS ((uint64_t)PENSTOCK_WORKING_SCAN_NS)

/* As a launch does it. */
static void admit(penstock_region *region, uint64_t ns) {
  int slot = penstock_slot_own(region);
  CHECK(slot >= 0);
  __atomic_fetch_add(&region->usage->slots[slot].gate[0].estimate_ns, ns, __ATOMIC_SEQ_CST);
  penstock_working_note(&region->usage->gate[0], (uint32_t)slot);
}

static void settle(penstock_region *region) {
  region->usage->slots[penstock_slot_own(region)].gate[0].estimate_ns = 0;
}

/* How many slots a launch walks, and the sum of what it finds there. */
static unsigned walk(const penstock_region *region, uint64_t *ns) {
  const penstock_gate_device *gate = &region->usage->gate[0];
  unsigned slots = 0;
  *ns = 0;
  for (penstock_working at = penstock_working_begin(region->usage, 0);
       penstock_working_next(gate, &at);) {
    CHECK(at.slot < PENSTOCK_MAX_SLOTS);
    *ns += region->usage->slots[at.slot].gate[0].estimate_ns;
    slots++;
  }
  return slots;
}

TEST(shares_add_nothing_to_the_slots_that_a_launch_walks) {
  penstock_region region = tenant_open("t", 1, 64 * MIB);
  uint64_t ns;
  admit(&region, 5);
  CHECK_EQUAL(walk(&region, &ns), 1);
  for (unsigned i = 0; i < 760; i++) CHECK(penstock_share_make(&region, 0, 0, i + 1));
  CHECK(region.usage->slots_high > 760);
  penstock_working_scan(region.usage, 0, 10 * LOOK_NS);
  CHECK_EQUAL(walk(&region, &ns), PENSTOCK_WORKING_SLOTS);
  CHECK_EQUAL(ns, 5);
}

TEST(processes_that_have_no_work_any_more_are_not_walked_after_the_next_look) {
  penstock_region region = tenant_open("t", 1, 64 * MIB);
  uint64_t ns, now_ns = 10 * LOOK_NS;
  penstock_working_scan(region.usage, 0, now_ns);
  pid_t children[40];
  for (unsigned i = 0; i < 40; i++) { /* all live at once: none is reaped by another's claim */
    children[i] = fork();
    if (children[i] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      admit(&region, 1);
      for (;;) pause();
    }
    while (!(region.usage->gate[0].working[0] >> i / PENSTOCK_WORKING_SLOTS & 1)) usleep(100);
    while (tenant_slots_in_use(&region) <= i) usleep(100);
    while (!__atomic_load_n(&region.usage->slots[i].gate[0].estimate_ns, __ATOMIC_RELAXED)) {
      usleep(100);
    }
  }
  CHECK_EQUAL(walk(&region, &ns), 40);
  CHECK_EQUAL(ns, 40);
  for (unsigned i = 0; i < 40; i++) {
    kill(children[i], SIGKILL);
    wait_for_killed(children[i]);
  }
  penstock_reap_all(region.usage, region.quota);
  admit(&region, 7);
  penstock_working_scan(region.usage, 0, now_ns + LOOK_NS - 1); /* too early */
  penstock_working_scan(region.usage, 0, now_ns + LOOK_NS);
  CHECK_EQUAL(walk(&region, &ns), PENSTOCK_WORKING_SLOTS);
  CHECK_EQUAL(ns, 7);
  settle(&region);
  penstock_working_scan(region.usage, 0, now_ns + 2 * LOOK_NS);
  CHECK_EQUAL(walk(&region, &ns), 0);
  admit(&region, 3); /* it comes back at once */
  CHECK_EQUAL(walk(&region, &ns), PENSTOCK_WORKING_SLOTS);
  CHECK_EQUAL(ns, 3);
}

/* A process that was killed before it set its bit, or whose release sets none. */
TEST(work_without_a_bit_is_walked_from_the_next_look_on) {
  penstock_region region = tenant_open("t", 1, 64 * MIB);
  uint64_t ns;
  penstock_working_scan(region.usage, 0, 10 * LOOK_NS);
  int slot = penstock_slot_own(&region);
  region.usage->slots[slot].gate[0].estimate_ns = 9;
  CHECK_EQUAL(walk(&region, &ns), 0);
  penstock_working_scan(region.usage, 0, 11 * LOOK_NS);
  CHECK_EQUAL(walk(&region, &ns), 1);
  CHECK_EQUAL(ns, 9);
  region.usage->slots[slot].gate[0].estimate_ns = 0;
  region.usage->slots[slot].gate[0].busy_since_ns = 1; /* it runs on beyond its estimate */
  penstock_working_scan(region.usage, 0, 12 * LOOK_NS);
  CHECK_EQUAL(walk(&region, &ns), 1);
}

TEST(bits_of_any_kind_lead_to_no_slot_outside_the_page_and_go_by_themselves) {
  penstock_region region = tenant_open("t", 1, 64 * MIB);
  penstock_gate_device *gate = &region.usage->gate[0];
  uint64_t ns;
  for (unsigned i = 0; i < sizeof gate->working / 8; i++) gate->working[i] = UINT64_MAX;
  gate->working_scanned =
      50 * LOOK_NS / PENSTOCK_WORKING_TICK_NS; /* as after a jump back of the clock */
  CHECK_EQUAL(walk(&region, &ns), PENSTOCK_MAX_SLOTS / PENSTOCK_WORKING_SLOTS);
  region.usage->slots_high = UINT64_MAX;
  CHECK_EQUAL(walk(&region, &ns), PENSTOCK_MAX_SLOTS);
  region.usage->slots_high = 0;
  penstock_working_scan(region.usage, 0, 10 * LOOK_NS);
  CHECK_EQUAL(walk(&region, &ns), 0);
}

/* Between clearing a bit and looking once more it may be hidden for a few instructions. */
TEST(work_is_not_hidden_for_good_by_somebody_who_looks_all_the_time) {
  penstock_region region = tenant_open("t", 1, 64 * MIB);
  CHECK(penstock_slot_own(&region) >= 0);
  pid_t looker = fork();
  if (looker == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint64_t now_ns = 10 * LOOK_NS;; now_ns += LOOK_NS) {
      penstock_working_scan(region.usage, 0, now_ns);
    }
  }
  uint64_t ns, until = monotonic_ns() + 300000000;
  while (monotonic_ns() < until) {
    admit(&region, 1);
    uint64_t most = monotonic_ns() + 10000000000u;
    do {
      CHECK(monotonic_ns() < most);
      walk(&region, &ns);
    } while (ns == 0);
    CHECK_EQUAL(ns, 1);
    settle(&region);
  }
  kill(looker, SIGKILL);
  wait_for_killed(looker);
}
