/* builds: address thread */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "tenant.h"

/* Limits whose fields all follow from one number, so that a mixture of two shows. */
static penstock_limits limits_numbered(uint64_t n) {
  penstock_limits limits = {.device_count = 1};
  limits.devices[0].memory_bytes = n * 512;
  limits.devices[0].context_reserve_bytes = n * 3;
  limits.devices[0].cores_permille = (uint32_t)(n * 5);
  return limits;
}

static void check_numbered(const penstock_device_limit *limit) {
  uint64_t n = limit->memory_bytes / 512;
  CHECK(limit->context_reserve_bytes == n * 3 && limit->cores_permille == (uint32_t)(n * 5));
}

static void publish_until(penstock_quota_page *quota, const int *stop) {
  for (uint64_t n = 1; !__atomic_load_n(stop, __ATOMIC_RELAXED); n++) {
    penstock_limits limits = limits_numbered(n);
    penstock_quota_publish(quota, &limits);
  }
}

static int stop_flag;
static void *publisher(void *quota) {
  publish_until(quota, &stop_flag);
  return NULL;
}

TEST(a_reader_of_one_devices_limit_never_sees_a_mixture_of_two_changes) {
  penstock_region region = tenant_open("t", 1, 512);
  penstock_quota_page *quota = tenant_quota("t");
  penstock_limits limits = limits_numbered(1);
  penstock_quota_publish(quota, &limits);
  /* The same address for both, so that the thread sanitizer sees the race if there is one. */
  region.quota = quota;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, publisher, quota) == 0);
  uint64_t changes = 0, last = 0;
  for (int i = 0; i < 200000; i++) {
    penstock_device_limit limit;
    CHECK(penstock_region_device_limit(&region, 0, &limit));
    check_numbered(&limit);
    changes += limit.memory_bytes != last;
    last = limit.memory_bytes;
  }
  __atomic_store_n(&stop_flag, 1, __ATOMIC_RELAXED);
  pthread_join(thread, NULL);
  CHECK(changes > 1);
}

TEST(a_writer_killed_at_a_random_moment_leaves_whole_limits_in_force) {
  penstock_region region = tenant_open("t", 1, 512);
  penstock_quota_page *quota = tenant_quota("t");
  penstock_limits limits = limits_numbered(1);
  penstock_quota_publish(quota, &limits);
  uint64_t seed = 7;
  uint64_t generation = 0;
  for (int round = 0; round < 100; round++) {
    pid_t child = fork();
    if (child == 0) publish_until(quota, &stop_flag);
    usleep(random_next(&seed) % 2000);
    kill(child, SIGKILL);
    wait_for_killed(child);
    const penstock_limits *now = penstock_region_limits(&region);
    check_numbered(&now->devices[0]);
    CHECK(now->generation != 0 && now->generation >= generation);
    generation = now->generation;
    /* The next writer goes on from there. */
    limits = limits_numbered(1);
    CHECK_EQUAL(penstock_quota_publish(quota, &limits), generation + 1);
  }
  CHECK(generation > 200);
}

static bool is_asleep(pid_t pid) {
  char path[64], line[512];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE *file = fopen(path, "r");
  CHECK(file && fgets(line, sizeof line, file));
  fclose(file);
  return strstr(line, ") S ") != NULL;
}

TEST(a_change_wakes_sleepers_on_the_page_though_it_is_mapped_read_only) {
  penstock_region region = tenant_open("t", 1, 512);
  pid_t child = fork();
  if (child == 0) {
    const uint32_t *word = &region.quota->change_futex;
    struct timespec long_ = {.tv_sec = 20};
    _exit(syscall(SYS_futex, word, FUTEX_WAIT, 0, &long_, NULL, 0) == 0 ? 0 : 1);
  }
  while (!is_asleep(child)) sched_yield();
  tenant_set_limit("t", 1024);
  wait_for(child);
}

TEST(names_too_long_for_their_field_are_cut_and_stay_terminated) {
  tenant_create("t", 1, 512);
  penstock_quota_page *quota = tenant_quota("t");
  char long_name[300];
  memset(long_name, 'n', sizeof long_name - 1);
  long_name[sizeof long_name - 1] = 0;
  penstock_limits limits = limits_numbered(1);
  penstock_quota_init(quota, &limits, long_name, long_name, long_name);
  CHECK_EQUAL(strlen(quota->tenant), sizeof quota->tenant - 1);
  CHECK_EQUAL(strlen(quota->driver_path), sizeof quota->driver_path - 1);
  penstock_region region;
  CHECK_EQUAL(penstock_region_open(&region, "t"), PENSTOCK_OK);
}
