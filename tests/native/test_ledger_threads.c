/* builds: thread address */
#include <pthread.h>

#include "harness.h"
#include "tenant.h"

#define THREADS 4
#define ROUNDS 20000

typedef struct job {
  penstock_region *region;
  uint64_t seed;
  uint64_t limit_bytes;
} job;

/* Reserves and releases at random, never trusting more than its own arithmetic. */
static void *reserve_and_release(void *argument) {
  job *own = argument;
  uint64_t held[8] = {0};
  for (int i = 0; i < ROUNDS; i++) {
    uint64_t random = random_next(&own->seed);
    uint64_t *one = &held[random % 8];
    if (*one) {
      penstock_ledger_release(own->region, 0, *one);
      *one = 0;
    } else {
      /* Eight of them are refused at times even where no other thread happens to run meanwhile. */
      uint64_t bytes = 1 + (random >> 8) % (own->limit_bytes / 4);
      penstock_error error = penstock_ledger_reserve(own->region, 0, bytes);
      CHECK(error == PENSTOCK_OK || error == PENSTOCK_E_OVER_LIMIT);
      if (error == PENSTOCK_OK) *one = bytes;
    }
    CHECK(penstock_ledger_total(own->region, 0) <= own->limit_bytes);
  }
  for (int i = 0; i < 8; i++) penstock_ledger_release(own->region, 0, held[i]);
  return NULL;
}

static void run_all(penstock_region *regions[THREADS], uint64_t limit_bytes) {
  pthread_t threads[THREADS];
  job jobs[THREADS];
  for (int i = 0; i < THREADS; i++) {
    jobs[i] = (job){regions[i], (uint64_t)i + 1, limit_bytes};
    CHECK(pthread_create(&threads[i], NULL, reserve_and_release, &jobs[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

TEST(threads_of_one_process_share_a_slot_and_end_at_exactly_zero) {
  penstock_region region = tenant_open("t", 1, MIB);
  penstock_region *regions[THREADS] = {&region, &region, &region, &region};
  run_all(regions, MIB);
  tenant_check_empty(&region);
  CHECK_EQUAL(tenant_slots_in_use(&region), 1);
  CHECK(region.usage->ledger[0].peak_bytes <= MIB && region.usage->ledger[0].refusals > 0);
}

TEST(slots_that_race_for_one_device_end_at_exactly_zero) {
  penstock_region first = tenant_open("t", 1, MIB);
  penstock_region second = tenant_second(&first), third = tenant_second(&first),
                  fourth = tenant_second(&first);
  penstock_region *regions[THREADS] = {&first, &second, &third, &fourth};
  run_all(regions, MIB);
  tenant_check_empty(&first);
  CHECK_EQUAL(tenant_slots_in_use(&first), THREADS);
  CHECK(first.usage->ledger[0].peak_bytes <= MIB && first.usage->ledger[0].refusals > 0);
}

static void *claim_and_release(void *argument) {
  penstock_region *region = argument;
  for (int i = 0; i < 300; i++) {
    CHECK(penstock_slot_own(region) >= 0);
    CHECK_EQUAL(penstock_ledger_reserve(region, 0, 512), PENSTOCK_OK);
    penstock_slot_release(region);
  }
  return NULL;
}

TEST(slots_claimed_and_handed_back_in_a_race_lose_nothing) {
  penstock_region first = tenant_open("t", 1, MIB);
  penstock_region second = tenant_second(&first), third = tenant_second(&first);
  penstock_region *regions[3] = {&first, &second, &third};
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) {
    CHECK(pthread_create(&threads[i], NULL, claim_and_release, regions[i]) == 0);
  }
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  tenant_check_empty(&first);
  CHECK_EQUAL(tenant_slots_in_use(&first), 0);
}
