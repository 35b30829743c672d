/* What the ledger costs: nanoseconds a reserve and release, a refusal, and a first claim.
 *
 *   bench_ledger DIRECTORY     DIRECTORY must not exist; one JSON object a line on stdout
 *
 * Each figure is the median of its runs, with the lowest and highest. `processes` run at once on
 * one page, so beyond the machine's processors the time of a pair holds waiting for one's turn.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mechanism/publish.h"
#include "mechanism/reap.h"

#define RUNS 11
#define PAIRS 200000
#define LIMIT_BYTES ((uint64_t)1 << 30)

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void must(int condition, const char *what) {
  if (condition) return;
  perror(what);
  exit(1);
}

static void *map_new(const char *directory, const char *name, size_t size) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  must(fd >= 0 && ftruncate(fd, (off_t)size) == 0, path);
  void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  must(page != MAP_FAILED, "mmap");
  close(fd);
  return page;
}

static void create(const char *directory) {
  must(mkdir(directory, 0700) == 0, directory);
  penstock_limits limits = {.device_count = 1};
  limits.devices[0].memory_bytes = LIMIT_BYTES;
  penstock_quota_init(map_new(directory, "quota", sizeof(penstock_quota_page)), &limits, "bench",
                      "", "");
  penstock_usage_init(map_new(directory, "usage", sizeof(penstock_usage_page)));
}

static double pairs(penstock_region *region) {
  double begin = now_ns();
  for (int i = 0; i < PAIRS; i++) {
    penstock_ledger_reserve(region, 0, 4096);
    penstock_ledger_release(region, 0, 4096);
  }
  return (now_ns() - begin) / PAIRS;
}

static double refusals(penstock_region *region) {
  double begin = now_ns();
  for (int i = 0; i < PAIRS; i++) penstock_ledger_reserve(region, 0, LIMIT_BYTES);
  return (now_ns() - begin) / PAIRS;
}

/* What no process can do faster: two uncontended atomic exchanges. */
static double baseline(penstock_region *region) {
  uint64_t *word = &region->usage->ledger[PENSTOCK_MAX_DEVICES - 1].reserved[0];
  double begin = now_ns();
  for (int i = 0; i < PAIRS; i++) {
    __atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(word, 1, __ATOMIC_SEQ_CST);
  }
  return (now_ns() - begin) / PAIRS;
}

static double claim(penstock_region *region) {
  penstock_slot_release(region);
  double begin = now_ns();
  penstock_slot_own(region);
  return now_ns() - begin;
}

static int ascending(const void *a, const void *b) {
  double difference = *(const double *)a - *(const double *)b;
  return (difference > 0) - (difference < 0);
}

/* Runs `measure` in `processes` at once, RUNS times; prints the median over all. */
static void report(const char *what, penstock_region *region, int processes,
                   double (*measure)(penstock_region *)) {
  double *results = mmap(NULL, sizeof(double) * (size_t)(processes * RUNS), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(results != MAP_FAILED, "mmap");
  for (int run = 0; run < RUNS; run++) {
    for (int i = 0; i < processes; i++) {
      pid_t child = fork();
      must(child >= 0, "fork");
      if (child != 0) continue;
      /* Something held, so that a refusal has neighbours to look at. */
      penstock_ledger_reserve(region, 0, 4096);
      results[run * processes + i] = measure(region);
      _exit(0);
    }
    while (wait(NULL) > 0) {
    }
    penstock_reap_all(region->usage, region->quota);
  }
  int count = processes * RUNS;
  qsort(results, (size_t)count, sizeof *results, ascending);
  printf(
      "{\"what\": \"%s\", \"processes\": %d, \"runs\": %d, \"median_ns\": %.1f, \"min_ns\": %.1f, "
      "\"max_ns\": %.1f}\n",
      what, processes, RUNS, results[count / 2], results[0], results[count - 1]);
  munmap(results, sizeof(double) * (size_t)count);
}

/* Slots as if of as many living processes that hold something. */
static void crowd(penstock_region *region, uint32_t count) {
  penstock_identity self;
  penstock_identity_read(region->usage, &self);
  for (uint32_t i = 0; i < count; i++) {
    penstock_slot *slot = &region->usage->slots[i];
    slot->owner =
        penstock_owner_pack(PENSTOCK_SLOT_LIVE, self.pid_namespace, self.pid, 1, self.start_ticks);
    slot->ledger[0].charged = penstock_ledger_pack(1, 0, 0);
  }
  region->usage->slots_high = count;
}

int main(int argc, char **argv) {
  must(argc == 2, "usage: bench_ledger DIRECTORY");
  create(argv[1]);
  penstock_region region;
  must(penstock_region_open(&region, argv[1]) == PENSTOCK_OK, argv[1]);
  setvbuf(stdout, NULL, _IOLBF, 0);
  report("two_atomic_adds", &region, 1, baseline);
  static const int counts[] = {1, 2, 8};
  for (int i = 0; i < 3; i++) report("reserve_and_release", &region, counts[i], pairs);
  for (int i = 0; i < 3; i++) report("refusal", &region, counts[i], refusals);
  for (int i = 0; i < 3; i++) report("slot_claim", &region, counts[i], claim);
  crowd(&region, 1000);
  report("refusal_beside_1000", &region, 1, refusals);
  report("slot_claim_beside_1000", &region, 1, claim);
  return 0;
}
