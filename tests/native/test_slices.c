/* builds: address thread */
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "mechanism/slice.h"
#include "slices/account.h"
#include "tenant.h"

#define MS 1000000u

static int stop_flag;

/* Slices whose words all follow from one number, so that a mixture of two shows. */
static void *hand_out(void *argument) {
  penstock_quota_page *quota = argument;
  for (uint64_t n = 2; !__atomic_load_n(&stop_flag, __ATOMIC_RELAXED); n++) {
    penstock_slice slice = {n * 3, n * 5, n * 7, 0};
    penstock_slice_begin(quota, 0, &slice);
  }
  return NULL;
}

static void *publish(void *argument) {
  penstock_quota_page *quota = argument;
  for (uint64_t n = 1; !__atomic_load_n(&stop_flag, __ATOMIC_RELAXED); n++) {
    penstock_limits limits = {.device_count = 1};
    limits.devices[0].memory_bytes = n * 512;
    limits.devices[0].slice_begin_ns = limits.devices[0].slice_end_ns = 99;
    penstock_quota_publish(quota, &limits);
  }
  return NULL;
}

TEST(a_slice_is_read_whole_while_slices_and_limits_change) {
  penstock_region region = tenant_open("t", 1, 512);
  penstock_quota_page *quota = tenant_quota("t");
  region.quota = quota; /* one address for all, so that the thread sanitizer sees a race */
  pthread_t threads[2];
  CHECK(pthread_create(&threads[0], NULL, hand_out, quota) == 0);
  CHECK(pthread_create(&threads[1], NULL, publish, quota) == 0);
  uint64_t changes = 0, last = 0;
  uint64_t give_up_ns = monotonic_ns() + 60000 * (uint64_t)MS; /* threads may find no processor */
  while (changes < 1000) {
    CHECK(monotonic_ns() < give_up_ns);
    penstock_slice slice;
    penstock_slice_read(region.quota, 0, &slice);
    if (!slice.begin_ns || !slice.end_ns) continue; /* none yet, or half written */
    uint64_t n = slice.begin_ns / 3;
    CHECK_EQUAL(slice.begin_ns, n * 3);
    CHECK_EQUAL(slice.end_ns, n * 5);
    CHECK_EQUAL(slice.alive_ns, n * 7);
    CHECK(n >= last);
    changes += n != last;
    last = n;
  }
  __atomic_store_n(&stop_flag, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

TEST(a_change_of_limits_neither_loses_nor_brings_back_a_slice) {
  penstock_region region = tenant_open("t", 2, 512);
  penstock_quota_page *quota = tenant_quota("t");
  penstock_limits limits = *penstock_region_limits(&region);
  limits.devices[1].slice_begin_ns = 77; /* an earlier release's, read and written back */
  for (uint64_t n = 1; n < 9; n++) {
    penstock_slice slice = {n * 10, n * 10 + 5, n, PENSTOCK_SLICE_SHARED}, read;
    penstock_slice_begin(quota, 1, &slice);
    for (int i = 0; i < 3; i++) {
      penstock_quota_publish(quota, &limits);
      penstock_slice_read(region.quota, 1, &read);
      CHECK(memcmp(&slice, &read, sizeof slice) == 0);
      CHECK(!penstock_slice_any(region.quota, 0));
    }
  }
  penstock_slice_off(quota, 1);
  penstock_quota_publish(quota, &limits);
  CHECK(!penstock_slice_any(region.quota, 1));
}

/* Tenants that use the part `duty` (in 256) of each slice they get, on a device that has nothing
 * else to do; `loss_ns` between two slices. */
enum { MOST = 100 };
typedef struct model {
  penstock_account accounts[MOST];
  penstock_account *pointers[MOST];
  uint8_t wants[MOST];
  uint64_t used_ns[MOST];
  uint64_t now_ns;
} model;

static void model_run(model *m, int count, const uint32_t *duty, uint64_t loss_ns,
                      uint64_t length_ns) {
  uint64_t end_ns = m->now_ns + length_ns;
  while (m->now_ns < end_ns) {
    int next = penstock_account_choose(m->pointers, m->wants, count);
    uint64_t length = next < 0 ? 1 * MS : penstock_account_length_ns(m->pointers[next], 1000);
    uint64_t used = next < 0 ? 0 : length * duty[next] / 256;
    for (int i = 0; i < count; i++) {
      penstock_account_earn(m->pointers[i], length + loss_ns, m->wants[i]);
    }
    m->now_ns += length + loss_ns;
    if (next < 0) continue;
    penstock_account_finish(m->pointers[next], length, 0, m->now_ns);
    penstock_account_spend(m->pointers[next], used);
    m->used_ns[next] += used;
  }
}

static void model_make(model *m, int count, const uint32_t *permille, uint32_t elastic) {
  memset(m, 0, sizeof *m);
  for (int i = 0; i < count; i++) {
    penstock_account_init(&m->accounts[i], permille[i], elastic);
    m->pointers[i] = &m->accounts[i];
    m->wants[i] = 1;
  }
}

static void check_share(const model *m, int i, double permille, double tolerance) {
  double got = 1000.0 * (double)m->used_ns[i] / (double)m->now_ns;
  if (got < permille - tolerance || got > permille + tolerance) {
    harness_fail(__FILE__, __LINE__, "tenant %d got %.1f of %.1f permille", i, got, permille);
  }
}

TEST(strict_tenants_get_their_shares_and_no_more) {
  static const uint32_t shares[][8] = {
      {600, 350}, {350, 300, 200, 100}, {250, 200, 150, 100, 100, 50, 50, 50}, {10, 900}};
  static const int counts[] = {2, 4, 8, 2};
  const uint32_t whole[8] = {256, 256, 256, 256, 256, 256, 256, 256};
  for (int k = 0; k < 4; k++) {
    model m;
    model_make(&m, counts[k], shares[k], 0);
    model_run(&m, counts[k], whole, MS / 5, 20000 * (uint64_t)MS);
    for (int i = 0; i < counts[k]; i++) check_share(&m, i, shares[k][i], 5);
  }
}

TEST(a_tenant_that_uses_part_of_its_slices_gets_more_of_them) {
  const uint32_t shares[] = {300, 300}, duty[] = {128, 256};
  model m;
  model_make(&m, 2, shares, 0);
  model_run(&m, 2, duty, MS / 5, 20000 * (uint64_t)MS);
  check_share(&m, 0, 300, 5);
  check_share(&m, 1, 300, 5);
}

/* It says that it waits and is busy, or has a gap behind each launch. */
TEST(who_uses_little_of_its_slices_takes_nothing_of_anothers_share) {
  static const uint32_t shares[][2] = {{800, 200}, {500, 500}, {300, 600}, {100, 900}};
  static const uint32_t duties[] = {0, 26, 128};
  for (int k = 0; k < 12; k++) {
    const uint32_t duty[] = {256, duties[k / 4]};
    for (int elastic = 0; elastic < 2; elastic++) {
      model m;
      model_make(&m, 2, shares[k % 4], 0);
      m.accounts[1].elastic = (uint32_t)elastic;
      model_run(&m, 2, duty, 0, 20000 * (uint64_t)MS);
      check_share(&m, 0, shares[k % 4][0], 10);
    }
  }
}

TEST(elastic_tenants_share_the_whole_device_by_their_cores) {
  const uint32_t shares[] = {100, 200, 50, 50}, whole[] = {256, 256, 256, 256};
  model m;
  model_make(&m, 4, shares, 1);
  model_run(&m, 4, whole, 0, 20000 * (uint64_t)MS);
  for (int i = 0; i < 4; i++) check_share(&m, i, 2.5 * shares[i], 10);
}

TEST(an_elastic_tenant_uses_what_a_strict_one_leaves_and_takes_nothing_from_it) {
  const uint32_t shares[] = {400, 100}, whole[] = {256, 256};
  model m;
  model_make(&m, 2, shares, 0);
  m.accounts[1].elastic = 1;
  model_run(&m, 2, whole, 0, 20000 * (uint64_t)MS);
  check_share(&m, 0, 400, 5);
  check_share(&m, 1, 600, 5);
}

TEST(what_elastic_tenants_were_lent_is_no_overdraft_when_another_comes) {
  const uint32_t shares[] = {100, 100}, whole[] = {256, 256};
  model m;
  model_make(&m, 2, shares, 1);
  m.wants[1] = 0;
  model_run(&m, 2, whole, 0, 10000 * (uint64_t)MS);
  m.wants[1] = 1;
  uint64_t before[] = {m.used_ns[0], m.used_ns[1]};
  model_run(&m, 2, whole, 0, 1000 * (uint64_t)MS);
  uint64_t a = m.used_ns[0] - before[0], b = m.used_ns[1] - before[1];
  CHECK(a > 400 * (uint64_t)MS && b > 400 * (uint64_t)MS);
}

TEST(an_account_never_drifts_whatever_steps_it_is_told_in) {
  uint64_t seed = 11;
  penstock_account account;
  penstock_account_init(&account, 333, 0);
  uint64_t told = 0, used = 0;
  for (int i = 0; i < 1000000; i++) {
    uint64_t step = random_next(&seed) % 5000;
    told += step;
    penstock_account_earn(&account, step, 1);
    if (account.credit_ns < 5 * (int64_t)MS) continue;
    used += (uint64_t)account.credit_ns;
    penstock_account_spend(&account, (uint64_t)account.credit_ns);
  }
  CHECK(used > 100 * (uint64_t)MS);
  CHECK_EQUAL(used + (uint64_t)account.credit_ns, told * 333 / 1000);
}

TEST(a_slice_that_its_tenant_calls_unused_costs_a_part_and_its_overrun_all) {
  penstock_account account;
  penstock_account_init(&account, 500, 0);
  penstock_account_finish(&account, 30 * MS, 10 * MS, 0);
  CHECK_EQUAL(account.credit_ns, -15 * (int64_t)MS);
  penstock_account_spend(&account, 12 * MS); /* measured late: already paid for */
  CHECK_EQUAL(account.credit_ns, -15 * (int64_t)MS);
  penstock_account_spend(&account, 8 * MS);
  CHECK_EQUAL(account.credit_ns, -20 * (int64_t)MS);
}
