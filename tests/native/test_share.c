/* builds: plain address */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "mechanism/reap.h"
#include "mechanism/share.h"
#include "tenant.h"

#define LIMIT (64 * MIB)

/* A child that does as told through a pipe, a letter at a time, and says when it is done. */
typedef struct actor {
  pid_t pid;
  int tell, told;
} actor;

static void act(penstock_region *region, int told, int tell) {
  penstock_share share = 0;
  char order;
  while (read(told, &order, 1) == 1 && order != 'q') {
    if (order == 'm') {
      CHECK_EQUAL(penstock_ledger_reserve(region, 0, 8 * MIB), PENSTOCK_OK);
      share = penstock_share_make(region, 0, 8 * MIB, 42);
      CHECK(share);
    }
    if (order == 'j') CHECK(share = penstock_share_join(region, 42));
    if (order == 'l') penstock_share_leave(region, share);
    CHECK(write(tell, &order, 1) == 1);
  }
  _exit(0);
}

static actor start(penstock_region *region) {
  int there[2], back[2];
  CHECK(pipe(there) == 0 && pipe(back) == 0);
  actor a = {.pid = fork()};
  if (a.pid == 0) {
    close(there[1]);
    act(region, there[0], back[1]);
  }
  close(there[0]);
  close(back[1]);
  a.tell = there[1];
  a.told = back[0];
  return a;
}

static void order(const actor *a, char what) {
  char answer;
  CHECK(write(a->tell, &what, 1) == 1);
  CHECK(read(a->told, &answer, 1) == 1 && answer == what);
}

static void end(actor *a, char how) {
  if (how == 'k') {
    kill(a->pid, SIGKILL);
    wait_for_killed(a->pid);
  } else {
    order(a, 'l');
    CHECK(write(a->tell, "q", 1) == 1); /* others hold the pipe open, too */
    wait_for(a->pid);
  }
}

TEST(shared_memory_is_charged_once_until_the_last_holder_ends_in_every_order_and_way) {
  penstock_region region = tenant_open("t", 1, LIMIT);
  static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                   {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (int n = 0; n < 6 * 8; n++) {
    actor actors[3] = {start(&region), start(&region), start(&region)};
    order(&actors[0], 'm');
    order(&actors[1], 'j');
    order(&actors[2], 'j');
    for (int i = 0; i < 3; i++) {
      CHECK_EQUAL(penstock_ledger_total(&region, 0), 8 * MIB);
      end(&actors[orders[n % 6][i]], n / 6 >> i & 1 ? 'k' : 'l');
      penstock_reap_all(region.usage, region.quota);
    }
    tenant_check_empty(&region);
    CHECK_EQUAL(tenant_slots_in_use(&region), 0);
  }
  CHECK(region.usage->ledger[0].peak_bytes == 8 * MIB);
}

TEST(a_share_whose_holders_died_makes_room_for_the_next_reservation_without_any_agent) {
  penstock_region region = tenant_open("t", 1, 8 * MIB);
  actor maker = start(&region), other = start(&region);
  order(&maker, 'm');
  order(&other, 'j');
  end(&maker, 'k');
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, MIB), PENSTOCK_E_OVER_LIMIT);
  end(&other, 'k');
  uint64_t until = monotonic_ns() + 10000000000u;
  while (penstock_ledger_reserve(&region, 0, 8 * MIB) != PENSTOCK_OK) CHECK(monotonic_ns() < until);
}

TEST(memory_shared_anew_under_an_old_name_is_what_the_next_process_joins) {
  penstock_region region = tenant_open("t", 1, LIMIT);
  penstock_region second = tenant_second(&region);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 3 * MIB), PENSTOCK_OK);
  penstock_share old = penstock_share_make(&region, 0, MIB, 42);
  penstock_share fresh = penstock_share_make(&region, 0, 2 * MIB, 42);
  CHECK(old && fresh && old != fresh);
  CHECK(penstock_share_join(&second, 42) == fresh);
  penstock_share_leave(&region, old);
  penstock_share_leave(&region, fresh);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 2 * MIB);
  penstock_share_leave(&second, fresh);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 0);
  CHECK_EQUAL(penstock_share_join(&second, 42), 0);
}

TEST(a_share_grows_and_shrinks_by_its_makers_hand_and_stays_when_the_maker_is_killed) {
  penstock_region region = tenant_open("t", 1, LIMIT);
  int ready[2];
  char byte;
  CHECK(pipe(ready) == 0);
  pid_t maker = fork();
  if (maker == 0) {
    penstock_share share = penstock_share_make(&region, 0, 0, 7);
    CHECK_EQUAL(penstock_share_attempt(&region, share, 0, 32 * MIB), PENSTOCK_OK);
    CHECK_EQUAL(penstock_share_attempt(&region, share, 0, LIMIT), PENSTOCK_E_OVER_LIMIT);
    penstock_share_release(&region, share, 0, 12 * MIB);
    CHECK_EQUAL(penstock_ledger_own(&region, 0), 0);
    CHECK(write(ready[1], "", 1) == 1);
    for (;;) pause();
  }
  CHECK(read(ready[0], &byte, 1) == 1);
  penstock_share share = penstock_share_join(&region, 7);
  CHECK(share);
  kill(maker, SIGKILL);
  wait_for_killed(maker);
  penstock_reap_all(region.usage, region.quota);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 20 * MIB);
  penstock_share_leave(&region, share);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 0);
}

TEST(more_than_a_process_is_charged_cannot_be_shared) {
  penstock_region region = tenant_open("t", 1, LIMIT);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, MIB), PENSTOCK_OK);
  CHECK_EQUAL(penstock_share_make(&region, 0, 2 * MIB, 1), 0);
  CHECK_EQUAL(penstock_ledger_own(&region, 0), MIB);
  CHECK_EQUAL(tenant_slots_in_use(&region), 1);
}

TEST(shares_leave_slots_for_processes) {
  penstock_region region = tenant_open("t", 1, LIMIT);
  unsigned made = 0;
  while (penstock_share_make(&region, 0, 0, made + 1)) made++;
  CHECK_EQUAL(made, PENSTOCK_SHARE_SLOTS - 1);
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQUAL(penstock_ledger_reserve(&region, 0, MIB), PENSTOCK_OK);
    _exit(0);
  }
  wait_for(child);
}

/* The words as a process leaves them that is killed after each step of making a share. */
static void leave_half_made(penstock_region *region, int step) {
  penstock_usage_page *usage = region->usage;
  CHECK_EQUAL(penstock_ledger_reserve(region, 0, 8 * MIB), PENSTOCK_OK);
  uint32_t own = (uint32_t)penstock_slot_owned(region);
  uint64_t owner;
  int taken = penstock_slot_take_free(region, 1, PENSTOCK_SHARE_SLOTS, &owner);
  CHECK(taken > 0);
  penstock_slot *share = &usage->slots[taken];
  uint64_t units = penstock_ledger_to_units(8 * MIB);
  uint64_t charged = usage->slots[own].ledger[0].charged;
  uint64_t seq = penstock_ledger_seq(charged) + 1, minus = (uint64_t)-(int64_t)units;
  if (step > 0) share->share_maker = own + 1;
  if (step > 0) usage->shares_made++;
  if (step > 1) {
    usage->slots[own].ledger[0].intent = penstock_ledger_pack(minus, (uint32_t)taken, seq);
  }
  if (step > 2) {
    uint64_t there = share->ledger[0].charged;
    share->ledger[0].charged = penstock_ledger_pack(units, 0, penstock_ledger_seq(there));
  }
  if (step > 3) usage->slots[own].ledger[0].charged = penstock_ledger_pack(0, 0, seq);
  if (step > 4) share->share_key = 42;
  if (step > 5) share->holders[own / 64] |= (uint64_t)1 << own % 64;
  if (step > 6) share->owner = penstock_owner_with_state(owner, PENSTOCK_SLOT_SHARED);
}

TEST(a_kill_after_any_step_of_making_a_share_leaves_exactly_nothing) {
  penstock_region region = tenant_open("t", 1, LIMIT);
  for (int step = 0; step < 8; step++) {
    for (int twice = 0; twice < 2; twice++) { /* the slot numbers change places */
      pid_t blocker = 0;
      if (twice) {
        blocker = fork();
        if (blocker == 0) {
          CHECK(penstock_slot_own(&region) >= 0);
          for (;;) pause();
        }
        while (tenant_slots_in_use(&region) == 0) sched_yield();
      }
      pid_t child = fork();
      if (child == 0) {
        leave_half_made(&region, step);
        _exit(0);
      }
      wait_for(child);
      if (twice) {
        kill(blocker, SIGKILL);
        wait_for_killed(blocker);
      }
      /* A first look may find the two slots in the wrong order. */
      penstock_reap_all(region.usage, region.quota);
      penstock_reap_all(region.usage, region.quota);
      tenant_check_empty(&region);
      CHECK_EQUAL(tenant_slots_in_use(&region), 0);
    }
  }
}

/* Reserves, shares, joins what others made, leaves, releases, at random and for ever. */
static void shuffle(penstock_region *region, uint64_t seed) {
  penstock_share held[16] = {0};
  uint64_t charged = 0;
  for (;;) {
    uint64_t random = random_next(&seed);
    penstock_share *one = &held[random % 16];
    uint64_t key = 1 + (random >> 8) % 8;
    if (random >> 60 == 0) sched_yield();
    if (*one) {
      bool again = false; /* joined under two places: left once */
      for (int i = 0; i < 16; i++) again |= &held[i] != one && held[i] == *one;
      if (!again) penstock_share_leave(region, *one);
      *one = 0;
    } else if (random >> 32 & 1) {
      *one = penstock_share_join(region, key);
    } else if (charged) {
      *one = penstock_share_make(region, 0, charged, key);
      if (*one) charged = 0;
    } else {
      uint64_t bytes = 1 + (random >> 16) % (LIMIT / 16);
      if (penstock_ledger_reserve(region, 0, bytes) == PENSTOCK_OK) charged = bytes;
    }
  }
}

TEST(after_kills_at_random_moments_shares_are_exactly_gone_a_hundred_times) {
  penstock_region region = tenant_open("t", 1, LIMIT);
  uint64_t seed = 99;
  for (int round = 0; round < 100; round++) {
    pid_t children[6];
    for (int i = 0; i < 6; i++) {
      uint64_t child_seed = random_next(&seed);
      children[i] = fork();
      if (children[i] == 0) shuffle(&region, child_seed);
    }
    uint64_t until = monotonic_ns() + 2000000 + random_next(&seed) % 10000000;
    int killed = 0;
    while (monotonic_ns() < until) {
      CHECK(penstock_ledger_total(&region, 0) <= LIMIT);
      if (killed < 3 && random_next(&seed) % 4096 == 0) { /* some go while the others go on */
        kill(children[killed], SIGKILL);
        wait_for_killed(children[killed++]);
      }
    }
    while (killed < 6) {
      kill(children[killed], SIGKILL);
      wait_for_killed(children[killed++]);
    }
    penstock_reap_all(region.usage, region.quota);
    penstock_reap_all(region.usage, region.quota);
    tenant_check_empty(&region);
    CHECK_EQUAL(tenant_slots_in_use(&region), 0);
  }
  CHECK(region.usage->shares_made > 1000);
  CHECK(region.usage->ledger[0].peak_bytes <= LIMIT);
}

TEST(a_share_stays_charged_as_long_as_a_marked_file_is_open) {
  penstock_region region = tenant_open("marked", 1, LIMIT);
  penstock_identity self;
  penstock_identity_read(region.usage, &self);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 8 * MIB), PENSTOCK_OK);
  penstock_share share = penstock_share_make(&region, 0, 8 * MIB, 42);
  int first = open("/dev/zero", O_RDWR), second = memfd_create("other", 0);
  CHECK(share && penstock_share_mark(&region, share, first));
  CHECK_EQUAL(penstock_share_join(&region, penstock_mark_of(first)), share);
  CHECK(penstock_share_mark(&region, share, second)); /* of another node: told by the list */
  CHECK_EQUAL(penstock_mark_of(second), penstock_mark_of(first));
  CHECK(!penstock_share_mark(&region, share, -1));
  penstock_share_leave(&region, share);
  CHECK_EQUAL(penstock_shares_look(region.usage, &self), 0);
  close(first);
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 0);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 8 * MIB);
  CHECK_EQUAL(penstock_share_join(&region, penstock_mark_of(second)), share);
  close(second);
  CHECK_EQUAL(penstock_shares_look(region.usage, &self), 0); /* held here again */
  penstock_share_leave(&region, share);
  for (int i = 0; i < 200 && penstock_ledger_total(&region, 0); i++) {
    usleep(1000);
    penstock_shares_look(region.usage, &self);
  }
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 0);
}
