/* builds: address */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "tenant.h"

TEST(the_limit_is_reached_to_the_byte_and_not_passed) {
  penstock_region region = tenant_open("t", 1, MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, MIB - 512), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 513), PENSTOCK_E_OVER_LIMIT);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 1), PENSTOCK_E_OVER_LIMIT);
  penstock_ledger_release(&region, 0, 512);
  penstock_ledger_release(&region, 0, MIB - 512);
  tenant_check_empty(&region);
}

TEST(requests_are_rounded_up_and_the_limit_down_to_units) {
  penstock_region region = tenant_open("t", 1, 1024 + 511);
  CHECK_EQUAL(penstock_ledger_limit(&region, 0), 1024);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 1), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 512);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 513), PENSTOCK_E_OVER_LIMIT);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
  penstock_ledger_release(&region, 0, 1);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 512);
}

TEST(a_refused_reservation_changes_nothing_but_the_count_of_refusals) {
  penstock_region region = tenant_open("t", 1, MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 4096), PENSTOCK_OK);
  penstock_slot before = region.usage->slots[0];
  uint64_t total = region.usage->ledger[0].total;
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, MIB), PENSTOCK_E_OVER_LIMIT);
  CHECK_EQUAL(region.usage->ledger[0].total, total);
  CHECK_EQUAL(region.usage->slots[0].ledger[0].charged, before.ledger[0].charged);
  CHECK_EQUAL(region.usage->slots[0].ledger_ack[0], before.ledger_ack[0]);
  CHECK_EQUAL(region.usage->ledger[0].refusals, 1);
  CHECK_EQUAL(region.usage->ledger[0].refused_bytes, MIB);
}

TEST(absurd_sizes_are_refused_and_nothing_overflows) {
  penstock_region region = tenant_open("t", 1, UINT64_MAX);
  static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 511, (uint64_t)1 << 63,
                                   (uint64_t)1 << 45};
  for (int i = 0; i < 4; i++) {
    CHECK_EQUAL(penstock_ledger_reserve(&region, 0, sizes[i]), PENSTOCK_E_OVER_LIMIT);
    penstock_ledger_release(&region, 0, sizes[i]);
  }
  tenant_check_empty(&region);
}

TEST(a_request_of_nothing_always_fits) {
  penstock_region region = tenant_open("t", 1, 512);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 0), PENSTOCK_OK);
  penstock_ledger_release(&region, 0, 0);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 512);
}

TEST(devices_have_ledgers_of_their_own_and_one_that_was_not_granted_has_no_room) {
  penstock_region region = tenant_open("t", 2, MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, MIB), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 1, MIB), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 2, 512), PENSTOCK_E_OVER_LIMIT);
  CHECK_EQUAL(penstock_ledger_reserve(&region, PENSTOCK_MAX_DEVICES, 512), PENSTOCK_E_INVALID);
  penstock_ledger_release(&region, PENSTOCK_MAX_DEVICES, 512);
  penstock_ledger_release(&region, 0, MIB);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 0);
  CHECK_EQUAL(penstock_ledger_total(&region, 1), MIB);
}

TEST(giving_back_more_than_is_held_gives_back_what_is_held) {
  penstock_region region = tenant_open("t", 1, MIB);
  penstock_region second = tenant_second(&region);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 4096), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_reserve(&second, 0, 8192), PENSTOCK_OK);
  penstock_ledger_release(&region, 0, MIB);
  CHECK_EQUAL(penstock_ledger_own(&region, 0), 0);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 8192);
}

TEST(a_limit_shrunk_below_use_refuses_new_requests_and_takes_releases) {
  penstock_region region = tenant_open("t", 1, MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, MIB / 2), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, MIB / 2), PENSTOCK_OK);
  tenant_set_limit("t", MIB / 4);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 1), PENSTOCK_E_OVER_LIMIT);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), MIB);
  penstock_ledger_release(&region, 0, MIB / 2);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 1), PENSTOCK_E_OVER_LIMIT);
  penstock_ledger_release(&region, 0, MIB / 2);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, MIB / 4), PENSTOCK_OK);
}

TEST(the_peak_remembers_the_highest_total) {
  penstock_region region = tenant_open("t", 1, MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 8192), PENSTOCK_OK);
  penstock_ledger_release(&region, 0, 4096);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
  CHECK_EQUAL(region.usage->ledger[0].peak_bytes, 8192);
}

TEST(operation_numbers_wrap_without_a_trace) {
  penstock_region region = tenant_open("t", 1, MIB);
  penstock_region second = tenant_second(&region);
  for (unsigned i = 0; i < (1 << 18) + 10; i++) {
    CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
    if (i % 1000 == 0) CHECK_EQUAL(penstock_ledger_reserve(&second, 0, 512), PENSTOCK_OK);
    penstock_ledger_release(&region, 0, 512);
  }
  CHECK_EQUAL(penstock_ledger_total(&region, 0), penstock_ledger_own(&second, 0));
}

TEST(a_refusal_gets_dead_processes_charges_back_before_it_is_final) {
  penstock_region region = tenant_open("t", 1, MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQUAL(penstock_ledger_reserve(&region, 0, MIB - 512), PENSTOCK_OK);
    _exit(0);
  }
  wait_for(child);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, MIB / 2), PENSTOCK_OK);
  CHECK_EQUAL(region.usage->ledger[0].refusals, 0);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), MIB / 2 + 512);
}

/* A child that runs `steps` steps of an operation of its slot and ends there. True when the
 * operation was over before that. */
static bool child_stops_after(penstock_region *region, int64_t delta_units, int steps) {
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQUAL(penstock_ledger_reserve(region, 0, 4 * 512), PENSTOCK_OK);
    int slot = penstock_slot_own(region);
    penstock_ledger_op op;
    penstock_ledger_begin(&op, region->usage, 0, (uint32_t)slot, delta_units, MIB / 512);
    for (int i = 0; i < steps; i++) penstock_ledger_step(&op);
    _exit(op.state >= PENSTOCK_LEDGER_DONE ? 10 : 0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 10);
  return WEXITSTATUS(status) == 10;
}

/* With `other` the parent applies an operation between the death and the reaping, so that the dead
 * one's must be found in its ack. */
static void check_every_stop(int64_t delta_units, bool other) {
  penstock_region region = tenant_open("t", 1, MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
  bool over = false;
  int steps = 0;
  for (; !over; steps++) {
    over = child_stops_after(&region, delta_units, steps);
    if (other) penstock_ledger_reserve(&region, 0, 512);
    CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 1);
    CHECK_EQUAL(penstock_ledger_total(&region, 0), penstock_ledger_own(&region, 0));
  }
  CHECK(steps >= 4);
  penstock_ledger_release(&region, 0, MIB);
  tenant_check_empty(&region);
}

TEST(a_process_that_ends_at_any_step_of_a_reservation_leaves_exact_charges) {
  check_every_stop(3, false);
}
TEST(a_process_that_ends_at_any_step_of_a_release_leaves_exact_charges) {
  check_every_stop(-2, false);
}
TEST(a_process_that_ends_at_any_step_of_a_refusal_leaves_exact_charges) {
  check_every_stop(MIB, false);
}
TEST(a_reservation_cut_short_is_decided_though_others_went_on) { check_every_stop(3, true); }
TEST(a_release_cut_short_is_decided_though_others_went_on) { check_every_stop(-2, true); }

TEST(a_reaper_that_ends_at_any_step_leaves_the_rest_to_the_next) {
  penstock_region region = tenant_open("t", 2, MIB);
  bool over = false;
  int steps = 0;
  for (; !over; steps++) {
    child_stops_after(&region, 3, 7); /* applied, not folded */
    uint32_t slot = 0;
    while (penstock_owner_state(region.usage->slots[slot].owner) == PENSTOCK_SLOT_FREE) slot++;
    pid_t reaper = fork();
    if (reaper == 0) {
      penstock_identity self;
      penstock_identity_read(region.usage, &self);
      penstock_reap_op op;
      penstock_reap_begin(&op, region.usage, &self, slot, region.usage->slots[slot].owner);
      for (int i = 0; i < steps; i++) penstock_reap_step(&op);
      _exit(op.state == PENSTOCK_REAP_DONE ? 10 : 0);
    }
    int status;
    CHECK(waitpid(reaper, &status, 0) == reaper && WIFEXITED(status));
    over = WEXITSTATUS(status) == 10;
    CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), over ? 0 : 1);
    tenant_check_empty(&region);
    CHECK_EQUAL(tenant_slots_in_use(&region), 0);
  }
  CHECK(steps > 10);
}
