/* builds: plain address */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "tenant.h"

#define PROCESSES 8
#define LIMIT (64 * MIB)

/* One reservation or release at random; `held` has `slots` places. */
static void one_move(penstock_region *region, uint64_t *seed, uint64_t *held, unsigned places) {
  uint64_t random = random_next(seed);
  /* Moves are so short that without this each process would run nearly alone in its time slice. */
  if (random >> 60 == 0) sched_yield();
  uint64_t *one = &held[random % places];
  if (*one) {
    penstock_ledger_release(region, 0, *one);
    *one = 0;
    return;
  }
  uint64_t bytes = 1 + (random >> 8) % (LIMIT / 16);
  penstock_error error = penstock_ledger_reserve(region, 0, bytes);
  CHECK(error == PENSTOCK_OK || error == PENSTOCK_E_OVER_LIMIT);
  if (error == PENSTOCK_OK) *one = bytes;
}

TEST(eight_racing_processes_with_ten_thousand_reservations_each_never_exceed_the_limit) {
  penstock_region region = tenant_open("t", 1, LIMIT);
  pid_t children[PROCESSES];
  for (int i = 0; i < PROCESSES; i++) {
    children[i] = fork();
    if (children[i] != 0) continue;
    uint64_t seed = (uint64_t)i + 1, held[16] = {0};
    for (int n = 0; n < 20000; n++) { /* every other one gives back */
      one_move(&region, &seed, held, 16);
      CHECK(penstock_ledger_total(&region, 0) <= LIMIT);
    }
    for (int n = 0; n < 16; n++) penstock_ledger_release(&region, 0, held[n]);
    CHECK_EQUAL(penstock_ledger_own(&region, 0), 0);
    _exit(0);
  }
  uint64_t samples = 0, busy = 0;
  for (int running = PROCESSES; running > 0; samples++) {
    uint64_t total = penstock_ledger_total(&region, 0);
    CHECK(total <= LIMIT);
    busy += total > LIMIT / 2;
    int status;
    if (samples % 64 == 0 && waitpid(-1, &status, WNOHANG) > 0) {
      CHECK_EQUAL(status, 0);
      running--;
    }
  }
  CHECK(busy > 0);
  tenant_check_empty(&region);
  CHECK(region.usage->ledger[0].peak_bytes <= LIMIT);
  CHECK(region.usage->ledger[0].peak_bytes > LIMIT / 2 && region.usage->ledger[0].refusals > 100);
}

TEST(after_a_kill_at_a_random_moment_the_ledger_is_exactly_zero_two_hundred_times) {
  penstock_region region = tenant_open("t", 1, LIMIT);
  uint64_t seed = 2026, worst_ns = 0, open_operations = 0;
  /* On a busy machine it may take more until a kill has hit an operation. */
  for (int round = 0; round < 200 || (open_operations == 0 && round < 4000); round++) {
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
      uint64_t child_seed = random_next(&seed);
      children[i] = fork();
      if (children[i] != 0) continue;
      uint64_t held[16] = {0};
      for (;;) one_move(&region, &child_seed, held, 16);
    }
    uint64_t until = monotonic_ns() + 1000000 + random_next(&seed) % 8000000;
    while (monotonic_ns() < until) {
      CHECK(penstock_ledger_total(&region, 0) <= LIMIT);
      usleep(100);
    }
    for (int i = 0; i < PROCESSES; i++) kill(children[i], SIGKILL);
    uint64_t killed = monotonic_ns();
    for (int i = 0; i < PROCESSES; i++) wait_for_killed(children[i]);
    for (unsigned i = 0; i < region.usage->slots_high; i++) {
      const penstock_ledger_slot *words = &region.usage->slots[i].ledger[0];
      open_operations += penstock_ledger_seq(words->intent) != penstock_ledger_seq(words->charged);
    }
    penstock_reap_all(region.usage, region.quota);
    uint64_t took = monotonic_ns() - killed;
    if (took > worst_ns) worst_ns = took;
    tenant_check_empty(&region);
    CHECK_EQUAL(tenant_slots_in_use(&region), 0);
  }
  CHECK(worst_ns < 1000000000);
  CHECK(open_operations > 0); /* else no kill hit an operation, and nothing was shown */
  CHECK(region.usage->ledger[0].peak_bytes <= LIMIT);
  printf("zero at most %.1f ms after the kill; %llu operations were cut short\n",
         (double)worst_ns / 1e6, (unsigned long long)open_operations);
}

TEST(reapers_killed_at_random_moments_leave_nothing_that_the_last_one_cannot_finish) {
  penstock_region region = tenant_open("t", 1, LIMIT);
  uint64_t seed = 42;
  CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  for (int round = 0; round < 60; round++) {
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
      children[i] = fork();
      if (children[i] != 0) continue;
      if (i % 2) { /* reap as fast as possible */
        for (;;) penstock_reap_all(region.usage, region.quota);
      }
      for (uint64_t child_seed = random_next(&seed);;) { /* children that end holding something */
        pid_t grandchild = fork();
        if (grandchild == 0) {
          uint64_t held[4] = {0};
          for (int n = 0; n < 7; n++) one_move(&region, &child_seed, held, 4);
          _exit(0);
        }
        random_next(&child_seed);
        wait_for(grandchild);
      }
    }
    usleep(1000 + random_next(&seed) % 6000);
    for (int i = 0; i < 4; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < 4; i++) wait_for_killed(children[i]);
    while (wait(NULL) > 0) { /* grandchildren that outlived their parent come to us */
    }
    penstock_reap_all(region.usage, region.quota);
    tenant_check_empty(&region);
    CHECK_EQUAL(tenant_slots_in_use(&region), 0);
  }
}
