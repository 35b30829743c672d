/* builds: thread address */
/* The table of requested names: one entry for each name, whole after a kill, bounded. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "mechanism/asked.h"
#include "tenant.h"

static const penstock_asked *entry_of(const penstock_usage_page *usage, const char *name) {
  for (unsigned i = 0; i < PENSTOCK_ASKED_ENTRIES; i++) {
    if (usage->asked[i].kind && strcmp(usage->asked[i].name, name) == 0) return &usage->asked[i];
  }
  return NULL;
}

static unsigned entries(const penstock_usage_page *usage) {
  unsigned count = 0;
  for (unsigned i = 0; i < PENSTOCK_ASKED_ENTRIES; i++) count += usage->asked[i].key != 0;
  return count;
}

TEST(a_name_is_counted_in_one_entry_requests_apart_from_calls) {
  penstock_usage_page *usage = tenant_open("t", 1, MIB).usage;
  for (int i = 0; i < 3; i++) {
    penstock_asked_count(usage, PENSTOCK_ASKED_REFUSED, "cuTileAlloc", PENSTOCK_ASKED_REQUEST);
  }
  penstock_asked_count(usage, PENSTOCK_ASKED_FORWARDED, "cuCtxGetId", PENSTOCK_ASKED_CALL);
  CHECK_EQUAL(entries(usage), 2);
  CHECK_EQUAL(entry_of(usage, "cuTileAlloc")->requests, 3);
  CHECK_EQUAL(entry_of(usage, "cuTileAlloc")->kind, PENSTOCK_ASKED_REFUSED);
  CHECK_EQUAL(entry_of(usage, "cuCtxGetId")->calls, 1);
  CHECK_EQUAL(usage->asked_changes, 4);
}

TEST(a_name_longer_than_its_field_is_cut_and_still_one_entry) {
  penstock_usage_page *usage = tenant_open("t", 1, MIB).usage;
  char name[4096];
  memset(name, 'x', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  penstock_asked_count(usage, PENSTOCK_ASKED_UNKNOWN, name, PENSTOCK_ASKED_REQUEST);
  penstock_asked_count(usage, PENSTOCK_ASKED_UNKNOWN, name, PENSTOCK_ASKED_REQUEST);
  CHECK_EQUAL(entries(usage), 1);
  name[PENSTOCK_ASKED_NAME_BYTES - 1] = '\0';
  CHECK_EQUAL(entry_of(usage, name)->requests, 2);
}

TEST(an_entry_whose_owner_was_killed_before_it_wrote_the_name_is_finished_by_the_next) {
  penstock_usage_page *usage = tenant_open("t", 1, MIB).usage;
  penstock_asked_count(usage, PENSTOCK_ASKED_ABSENT, "cuGone", PENSTOCK_ASKED_REQUEST);
  penstock_asked *entry = (penstock_asked *)entry_of(usage, "cuGone");
  entry->kind = 0; /* as after a kill between the claim and the last store */
  memset(entry->name, 0, sizeof entry->name);
  entry->requests = 0;
  penstock_asked_count(usage, PENSTOCK_ASKED_ABSENT, "cuGone", PENSTOCK_ASKED_REQUEST);
  CHECK_EQUAL(entries(usage), 1);
  CHECK_EQUAL(entry_of(usage, "cuGone")->requests, 1);
}

TEST(names_that_do_not_fit_are_counted_together_and_the_others_each) {
  penstock_usage_page *usage = tenant_open("t", 1, MIB).usage;
  for (unsigned i = 0; i < PENSTOCK_ASKED_ENTRIES + 7; i++) {
    char name[32];
    snprintf(name, sizeof name, "cuName%u", i);
    penstock_asked_count(usage, PENSTOCK_ASKED_UNKNOWN, name, PENSTOCK_ASKED_REQUEST);
  }
  CHECK_EQUAL(entries(usage), PENSTOCK_ASKED_ENTRIES);
  CHECK_EQUAL(usage->asked_overflow, 7);
  penstock_asked_count(usage, PENSTOCK_ASKED_UNKNOWN, "cuName0", PENSTOCK_ASKED_REQUEST);
  CHECK_EQUAL(entry_of(usage, "cuName0")->requests, 2);
}

#define THREADS 4
#define ROUNDS 2000

static void *count_many(void *usage) {
  for (int i = 0; i < ROUNDS; i++) {
    char name[32];
    snprintf(name, sizeof name, "cuShared%d", i % 16);
    penstock_asked_count(usage, PENSTOCK_ASKED_FORWARDED, name, PENSTOCK_ASKED_CALL);
  }
  return NULL;
}

TEST(threads_that_race_for_the_same_names_lose_no_count) {
  penstock_usage_page *usage = tenant_open("t", 1, MIB).usage;
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, count_many, usage));
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL));
  CHECK_EQUAL(entries(usage), 16);
  uint64_t calls = 0;
  for (unsigned i = 0; i < PENSTOCK_ASKED_ENTRIES; i++) calls += usage->asked[i].calls;
  CHECK_EQUAL(calls, THREADS * ROUNDS);
  CHECK_EQUAL(usage->asked_changes, THREADS * ROUNDS);
}
