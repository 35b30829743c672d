#include "tenant.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"

static void *map_new(const char *directory, const char *name, size_t size) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  CHECK(fd >= 0);
  CHECK(ftruncate(fd, (off_t)size) == 0);
  void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(page != MAP_FAILED);
  close(fd);
  return page;
}

static penstock_limits limits_of(unsigned devices, uint64_t limit_bytes) {
  penstock_limits limits = {.device_count = devices};
  for (unsigned i = 0; i < devices; i++) {
    limits.devices[i].uuid[0] = (uint8_t)(i + 1);
    limits.devices[i].memory_bytes = limit_bytes;
    limits.devices[i].cores_permille = 1000;
    limits.devices[i].allowance_permille = 1000;
    limits.devices[i].sharers = 1;
  }
  return limits;
}

void tenant_create(const char *directory, unsigned devices, uint64_t limit_bytes) {
  CHECK(mkdir(directory, 0700) == 0);
  penstock_limits limits = limits_of(devices, limit_bytes);
  penstock_quota_page *quota = map_new(directory, "quota", sizeof *quota);
  penstock_quota_init(quota, &limits, "test", "", "");
  munmap(quota, sizeof *quota);
  penstock_usage_page *usage = map_new(directory, "usage", sizeof *usage);
  penstock_usage_init(usage);
  munmap(usage, sizeof *usage);
}

penstock_region tenant_open(const char *directory, unsigned devices, uint64_t limit_bytes) {
  tenant_create(directory, devices, limit_bytes);
  penstock_region region;
  CHECK_EQUAL(penstock_region_open(&region, directory), PENSTOCK_OK);
  return region;
}

penstock_region tenant_second(const penstock_region *region) {
  penstock_region second = *region;
  second.claim = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(second.claim != MAP_FAILED);
  CHECK(madvise(second.claim, 4096, MADV_WIPEONFORK) == 0);
  return second;
}

penstock_quota_page *tenant_quota(const char *directory) {
  char path[256];
  snprintf(path, sizeof path, "%s/quota", directory);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  CHECK(fd >= 0);
  penstock_quota_page *quota = mmap(NULL, sizeof *quota, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(quota != MAP_FAILED);
  close(fd);
  return quota;
}

void tenant_set_limit(const char *directory, uint64_t limit_bytes) {
  penstock_quota_page *quota = tenant_quota(directory);
  penstock_limits limits = limits_of(quota->copies[quota->current].device_count, limit_bytes);
  penstock_quota_publish(quota, &limits);
  munmap(quota, sizeof *quota);
}

unsigned tenant_slots_in_use(const penstock_region *region) {
  unsigned used = 0;
  for (unsigned i = 0; i < PENSTOCK_MAX_SLOTS; i++) {
    used += penstock_owner_state(region->usage->slots[i].owner) != PENSTOCK_SLOT_FREE;
  }
  return used;
}

void tenant_check_empty(const penstock_region *region) {
  for (unsigned device = 0; device < PENSTOCK_MAX_DEVICES; device++) {
    CHECK_EQUAL(penstock_ledger_total(region, device), 0);
    for (unsigned slot = 0; slot < PENSTOCK_MAX_SLOTS; slot++) {
      CHECK_EQUAL(penstock_ledger_charged(region, device, slot), 0);
    }
  }
}
