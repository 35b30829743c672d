/* builds: address */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "mechanism/gate.h"
#include "tenant.h"

static uint64_t owner_of(const penstock_region *region, int slot) {
  return region->usage->slots[slot].owner;
}

/* A child that holds `bytes`, says so, and then does `after`. */
static pid_t child_holding(penstock_region *region, uint64_t bytes, void (*after)(void)) {
  int pipe_[2];
  CHECK(pipe(pipe_) == 0);
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQUAL(penstock_ledger_reserve(region, 0, bytes), PENSTOCK_OK);
    CHECK(write(pipe_[1], "x", 1) == 1);
    after();
    _exit(0);
  }
  char byte;
  close(pipe_[1]);
  CHECK(read(pipe_[0], &byte, 1) == 1);
  close(pipe_[0]);
  return child;
}

static void sleep_until_killed(void) {
  for (;;) pause();
}
static void end_now(void) { _exit(0); }

TEST(a_process_keeps_the_slot_that_it_claimed) {
  penstock_region region = tenant_open("t", 1, MIB);
  CHECK_EQUAL(penstock_slot_owned(&region), -PENSTOCK_E_NO_SLOT);
  CHECK_EQUAL(penstock_slot_own(&region), 0);
  CHECK_EQUAL(penstock_slot_own(&region), 0);
  CHECK_EQUAL(penstock_owner_pid(owner_of(&region, 0)), getpid());
  CHECK_EQUAL(tenant_slots_in_use(&region), 1);
  char comm[17] = {0};
  memcpy(comm, region.usage->slots[0].command, 16);
  CHECK(strcmp(comm, "test_slots") == 0);
}

static void *own_and_be_cancelled(void *region) {
  pthread_cancel(pthread_self());
  penstock_slot_own(region);
  pthread_testcancel();
  return NULL;
}

TEST(a_thread_that_is_cancelled_as_it_claims_leaves_the_claim_to_others) {
  penstock_region region = tenant_open("t", 1, MIB);
  pthread_t thread;
  void *result;
  CHECK(pthread_create(&thread, NULL, own_and_be_cancelled, &region) == 0);
  CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
  alarm(10);
  CHECK_EQUAL(penstock_slot_own(&region), 0);
  alarm(0);
}

TEST(two_copies_of_the_library_in_one_process_own_two_slots) {
  penstock_region region = tenant_open("t", 1, MIB);
  penstock_region second = tenant_second(&region);
  CHECK(penstock_slot_own(&region) != penstock_slot_own(&second));
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_reserve(&second, 0, 1024), PENSTOCK_OK);
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 0);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 1536);
}

TEST(the_child_of_a_fork_owns_nothing_and_claims_a_slot_of_its_own) {
  penstock_region region = tenant_open("t", 1, MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 4096), PENSTOCK_OK);
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQUAL(penstock_slot_owned(&region), -PENSTOCK_E_NO_SLOT);
    penstock_ledger_release(&region, 0, 4096); /* the parent's: not the child's to give back */
    CHECK_EQUAL(penstock_ledger_total(&region, 0), 4096);
    CHECK_EQUAL(penstock_slot_own(&region), 1);
    CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
    _exit(0);
  }
  wait_for(child);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 4608);
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 1);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 4096);
  CHECK_EQUAL(penstock_slot_owned(&region), 0);
}

TEST(where_the_kernel_cannot_wipe_on_fork_the_pid_tells_the_child) {
  penstock_region region = tenant_open("t", 1, MIB);
  region.claim->compare_pid = 1;
  CHECK(madvise((void *)region.claim, 4096, MADV_KEEPONFORK) == 0);
  CHECK_EQUAL(penstock_slot_own(&region), 0);
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQUAL(penstock_slot_owned(&region), -PENSTOCK_E_NO_SLOT);
    CHECK_EQUAL(penstock_slot_own(&region), 1);
    _exit(0);
  }
  wait_for(child);
  CHECK_EQUAL(penstock_slot_owned(&region), 0);
}

TEST(a_zombie_is_dead_though_its_parent_has_not_waited) {
  penstock_region region = tenant_open("t", 1, MIB);
  pid_t child = child_holding(&region, 4096, end_now);
  siginfo_t info;
  CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0);
  CHECK(kill(child, 0) == 0);
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 1);
  tenant_check_empty(&region);
  wait_for(child);
}

static void *only_thread(void *unused) {
  (void)unused;
  sleep_until_killed();
  return NULL;
}
static void end_the_leader_only(void) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, only_thread, NULL) == 0);
  pthread_exit(NULL);
}

TEST(a_process_whose_first_thread_ended_lives_while_another_runs) {
  penstock_region region = tenant_open("t", 1, MIB);
  pid_t child = child_holding(&region, 4096, end_the_leader_only);
  char path[64], line[512];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)child);
  for (;;) { /* until the leader is a zombie */
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(line, sizeof line, file));
    fclose(file);
    if (strstr(line, ") Z ")) break;
    sched_yield();
  }
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 0);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 4096);
  kill(child, SIGKILL);
  wait_for_killed(child);
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 1);
  tenant_check_empty(&region);
}

HELPER(after_exec) {
  penstock_region region;
  CHECK_EQUAL(penstock_region_open(&region, argv[0]), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 4096 + 512);
  CHECK(penstock_slot_own(&region) >= 0);
  /* What the former image held came back; what another process holds did not. */
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 512);
  CHECK_EQUAL(tenant_slots_in_use(&region), 2);
}

static void exec_and_claim(void) { exec_helper("after_exec", "t", NULL); }

TEST(charges_from_before_exec_come_back_when_the_new_image_claims) {
  penstock_region region = tenant_open("t", 1, MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
  wait_for(child_holding(&region, 4096, exec_and_claim));
}

HELPER(only_wait) { sleep_until_killed(); }
static void exec_and_wait(void) { exec_helper("only_wait", "t", NULL); }

TEST(charges_from_before_exec_are_taken_back_by_others_if_the_new_image_never_claims) {
  penstock_region region = tenant_open("t", 1, MIB);
  pid_t child = child_holding(&region, 4096, exec_and_wait);
  uint64_t deadline = monotonic_ns() + 10000000000;
  while (penstock_reap_all(region.usage, region.quota) == 0) CHECK(monotonic_ns() < deadline);
  tenant_check_empty(&region);
  kill(child, SIGKILL);
  wait_for_killed(child);
}

TEST(a_reused_pid_is_told_from_the_process_that_had_it) {
  penstock_region region = tenant_open("t", 1, MIB);
  pid_t child = child_holding(&region, 4096, sleep_until_killed);
  uint64_t owner = owner_of(&region, 0);
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 0);
  /* As if the pid had belonged to a process that started one tick earlier. */
  region.usage->slots[0].owner = owner - 1;
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 1);
  tenant_check_empty(&region);
  kill(child, SIGKILL);
  wait_for_killed(child);
}

TEST(an_owner_of_an_unknown_or_other_pid_namespace_is_dead_only_when_the_quota_page_says_so) {
  penstock_region region = tenant_open("t", 1, MIB);
  penstock_quota_page *quota = tenant_quota("t");
  wait_for(child_holding(&region, 4096, end_now));
  static const uint32_t spaces[] = {PENSTOCK_NAMESPACE_UNKNOWN, 7};
  uint64_t owner = 0;
  for (int i = 0; i < 2; i++) {
    owner = penstock_owner_pack(PENSTOCK_SLOT_LIVE, spaces[i], 12345, 1, 99);
    region.usage->slots[0].owner = owner;
    CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 0);
  }
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 4096);
  penstock_quota_mark_dead(quota, 0, owner);
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 1);
  tenant_check_empty(&region);
}

TEST(an_old_mark_of_death_does_not_strike_the_slots_next_owner) {
  penstock_region region = tenant_open("t", 1, MIB);
  penstock_quota_page *quota = tenant_quota("t");
  CHECK_EQUAL(penstock_slot_own(&region), 0);
  penstock_quota_mark_dead(quota, 0, owner_of(&region, 0));
  penstock_slot_release(&region);
  /* The same process, the same slot: only the generation differs. */
  CHECK_EQUAL(penstock_slot_own(&region), 0);
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 0);
  CHECK_EQUAL(penstock_slot_owned(&region), 0);
}

TEST(a_process_whose_slot_was_taken_goes_on_with_another_and_corrupts_nothing) {
  penstock_region region = tenant_open("t", 1, MIB);
  penstock_quota_page *quota = tenant_quota("t");
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 4096), PENSTOCK_OK);
  penstock_quota_mark_dead(quota, 0, owner_of(&region, 0));
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 1);
  penstock_ledger_release(&region, 0, 4096);
  tenant_check_empty(&region);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_own(&region, 0), 512);
}

TEST(processes_of_another_pid_namespace_are_left_alone_and_enter_their_own) {
  penstock_region region = tenant_open("t", 1, MIB);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
  pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWPID) != 0) _exit(77);
    pid_t first = fork();
    if (first == 0) {
      CHECK_EQUAL(getpid(), 1);
      /* /proc still shows the outer namespace: its pids mean nothing here. */
      CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 1024), PENSTOCK_OK);
      CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 0);
      _exit(0);
    }
    wait_for(first);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    harness_skip("making a pid namespace needs root");
  }
  CHECK_EQUAL(status, 0);
  CHECK(region.usage->pid_namespaces[0] != 0 && region.usage->pid_namespaces[1] != 0);
  /* pid 1 of a dead namespace: this process cannot know. */
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 0);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 1536);
}

TEST(device_time_admitted_to_a_dead_process_is_not_held_back_any_more) {
  penstock_region region = tenant_open("t", 1, MIB);
  wait_for(child_holding(&region, 512, end_now));
  region.usage->slots[0].gate[0].estimate_ns = 1000000;
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 1);
  CHECK_EQUAL(region.usage->slots[0].gate[0].estimate_ns, 0);
}

TEST(work_that_a_dead_process_left_unsettled_is_charged_once_as_far_as_nobody_was) {
  enum { MS = 1000000, AGO_MS = 500, CHARGED_MS = 100 };
  penstock_region region = tenant_open("t", 1, MIB);
  penstock_gate_device *gate = &region.usage->gate[0];
  wait_for(child_holding(&region, 512, end_now));
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t since = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec - AGO_MS * MS;
  region.usage->slots[0].gate[0].unsettled_since_ns = since;
  region.usage->slots[0].gate[0].estimate_ns = 20000;
  penstock_gate_mark(gate, since, since + CHARGED_MS * MS, UINT64_MAX);
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 1);
  uint64_t spent = gate->spent_ns;
  CHECK(spent >= (uint64_t)(AGO_MS - CHARGED_MS - 1) * MS);
  CHECK(spent < (uint64_t)(AGO_MS - CHARGED_MS) * MS + 60000 * (uint64_t)MS);
  CHECK_EQUAL(penstock_reap_all(region.usage, region.quota), 0);
  CHECK_EQUAL(gate->spent_ns, spent);
}

TEST(a_process_without_a_slot_leaves_reaping_before_a_refusal_to_others) {
  penstock_region region = tenant_open("t", 1, MIB), view;
  wait_for(child_holding(&region, 512, end_now));
  CHECK(!penstock_reap_for_refusal(&region, 0));
  CHECK_EQUAL(penstock_region_open_view(&view, "t"), PENSTOCK_OK);
  CHECK(!penstock_reap_for_refusal(&view, 0));
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 512);
}

TEST(a_full_table_is_an_error_and_one_death_makes_room) {
  penstock_region region = tenant_open("t", 1, MIB);
  penstock_quota_page *quota = tenant_quota("t");
  for (int i = 0; i < PENSTOCK_MAX_SLOTS; i++) {
    region.usage->slots[i].owner =
        penstock_owner_pack(PENSTOCK_SLOT_LIVE, PENSTOCK_NAMESPACE_UNKNOWN, 1, 1, 1);
  }
  region.usage->slots_high = PENSTOCK_MAX_SLOTS;
  CHECK_EQUAL(penstock_slot_own(&region), -PENSTOCK_E_NO_SLOT);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_E_NO_SLOT);
  penstock_quota_mark_dead(quota, 700, owner_of(&region, 700));
  CHECK_EQUAL(penstock_slot_own(&region), 700);
}

TEST(a_claim_costs_the_same_errno_and_descriptors_as_before) {
  penstock_region region = tenant_open("t", 1, MIB);
  wait_for(child_holding(&region, 512, end_now));
  errno = 4711;
  CHECK_EQUAL(penstock_slot_own(&region), 0); /* the dead child's, reaped on the way */
  CHECK_EQUAL(errno, 4711);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 2 * MIB), PENSTOCK_E_OVER_LIMIT);
  CHECK_EQUAL(errno, 4711);
}
