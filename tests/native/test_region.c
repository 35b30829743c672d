/* builds: address */
#define _GNU_SOURCE /* close_range */
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "mechanism/slots.h"
#include "tenant.h"

static penstock_error open_error(void) {
  penstock_region region;
  penstock_error error = penstock_region_open(&region, "t");
  if (error != PENSTOCK_OK) CHECK(!region.quota && !region.usage && !region.claim);
  return error;
}

static void overwrite(const char *path, long offset, const void *bytes, size_t size) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  CHECK(fd >= 0);
  CHECK_EQUAL(pwrite(fd, bytes, size, offset), size);
  close(fd);
}

static int open_descriptors(void) {
  int open_ = 0;
  for (int fd = 0; fd < 256; fd++) open_ += fcntl(fd, F_GETFD) >= 0;
  return open_;
}

TEST(an_opened_region_shows_the_limits_and_an_empty_ledger) {
  penstock_region region = tenant_open("t", 2, 100 * MIB);
  CHECK_EQUAL(penstock_region_device_count(&region), 2);
  CHECK_EQUAL(penstock_ledger_limit(&region, 1), 100 * MIB);
  CHECK_EQUAL(penstock_ledger_limit(&region, 2), 0);
  tenant_check_empty(&region);
  CHECK_EQUAL(tenant_slots_in_use(&region), 0);
}

TEST(opening_leaves_no_descriptor_behind_whether_it_succeeds_or_not) {
  tenant_create("t", 1, MIB);
  int before = open_descriptors();
  CHECK_EQUAL(open_error(), PENSTOCK_OK);
  CHECK_EQUAL(open_descriptors(), before);
  CHECK(truncate("t/usage", 100) == 0);
  CHECK_EQUAL(open_error(), PENSTOCK_E_TRUNCATED);
  CHECK_EQUAL(open_descriptors(), before);
}

TEST(a_region_goes_on_after_the_program_closed_every_descriptor) {
  penstock_region region = tenant_open("t", 1, MIB);
  CHECK(close_range(3, ~0U, 0) == 0);
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 512), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 512);
}

TEST(a_missing_directory_or_page_is_reported_as_missing) {
  CHECK_EQUAL(open_error(), PENSTOCK_E_MISSING);
  tenant_create("t", 1, MIB);
  CHECK(unlink("t/usage") == 0);
  CHECK_EQUAL(open_error(), PENSTOCK_E_MISSING);
}

TEST(a_truncated_page_is_refused_at_every_length) {
  tenant_create("t", 1, MIB);
  static const long lengths[] = {sizeof(penstock_quota_page) - 1, 4096, 16, 15, 1, 0};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    CHECK(truncate("t/quota", lengths[i]) == 0);
    CHECK_EQUAL(open_error(), PENSTOCK_E_TRUNCATED);
  }
}

TEST(a_page_of_another_kind_is_refused) {
  tenant_create("t", 1, MIB);
  CHECK(unlink("t/quota") == 0 && link("t/usage", "t/quota") == 0);
  CHECK_EQUAL(open_error(), PENSTOCK_E_WRONG_MAGIC);
}

TEST(a_page_of_another_version_or_size_is_refused_not_guessed) {
  tenant_create("t", 1, MIB);
  uint32_t version = PENSTOCK_ABI_VERSION + 1;
  overwrite("t/quota", offsetof(penstock_quota_page, version), &version, sizeof version);
  CHECK_EQUAL(open_error(), PENSTOCK_E_OTHER_VERSION);
  version = PENSTOCK_ABI_OLDEST - 1;
  overwrite("t/quota", offsetof(penstock_quota_page, version), &version, sizeof version);
  CHECK_EQUAL(open_error(), PENSTOCK_E_OTHER_VERSION);
  uint32_t right[2] = {PENSTOCK_ABI_VERSION, sizeof(penstock_quota_page) + 8};
  overwrite("t/quota", offsetof(penstock_quota_page, version), right, sizeof right);
  CHECK_EQUAL(open_error(), PENSTOCK_E_OTHER_VERSION);
}

TEST(pages_of_every_version_from_the_oldest_on_are_read) {
  tenant_create("t", 1, MIB);
  for (uint32_t version = PENSTOCK_ABI_OLDEST; version <= PENSTOCK_ABI_VERSION; version++) {
    overwrite("t/quota", offsetof(penstock_quota_page, version), &version, sizeof version);
    overwrite("t/usage", offsetof(penstock_usage_page, version), &version, sizeof version);
    CHECK_EQUAL(open_error(), PENSTOCK_OK);
  }
}

TEST(a_directory_a_link_or_a_pipe_in_a_pages_place_is_refused_without_hanging) {
  tenant_create("t", 1, MIB);
  CHECK(rename("t/quota", "t/real") == 0 && symlink("real", "t/quota") == 0);
  CHECK_EQUAL(open_error(), PENSTOCK_E_NOT_A_FILE);
  CHECK(unlink("t/quota") == 0 && mkdir("t/quota", 0700) == 0);
  CHECK_EQUAL(open_error(), PENSTOCK_E_NOT_A_FILE);
  CHECK(rmdir("t/quota") == 0 && mkfifo("t/quota", 0600) == 0);
  CHECK_EQUAL(open_error(), PENSTOCK_E_NOT_A_FILE);
}

TEST(a_page_that_may_not_be_read_is_reported_as_unreadable) {
  tenant_create("t", 1, MIB);
  CHECK(chmod("t/quota", 0) == 0);
  pid_t child = fork();
  if (child == 0) {
    if (getuid() == 0) CHECK(chmod("t", 0755) == 0 && setuid(65534) == 0);
    /* The runner's directory may itself be closed to others: either way it is unreadable. */
    CHECK_EQUAL(open_error(), PENSTOCK_E_UNREADABLE);
    _exit(0);
  }
  wait_for(child);
}

TEST(a_usage_page_that_may_only_be_read_is_reported_as_unwritable) {
  tenant_create("t", 1, MIB);
  CHECK(chmod("t", 0755) == 0 && chmod("t/quota", 0444) == 0 && chmod("t/usage", 0444) == 0);
  int folder = open("t", O_PATH | O_DIRECTORY); /* those above may be closed to others */
  pid_t child = fork();
  if (child == 0) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", folder);
    if (getuid() == 0) CHECK(setuid(65534) == 0);
    penstock_region region;
    CHECK_EQUAL(penstock_region_open(&region, path), PENSTOCK_E_UNWRITABLE);
    CHECK_EQUAL(penstock_region_open_view(&region, path), PENSTOCK_OK);
    _exit(0);
  }
  close(folder);
  wait_for(child);
}

TEST(fields_out_of_bounds_are_refused) {
  tenant_create("t", 1, MIB);
  uint32_t counts[] = {0, PENSTOCK_MAX_DEVICES + 1, UINT32_MAX};
  long at = offsetof(penstock_quota_page, copies) + offsetof(penstock_limits, device_count);
  for (int i = 0; i < 3; i++) {
    overwrite("t/quota", at, &counts[i], 4);
    CHECK_EQUAL(open_error(), PENSTOCK_E_INVALID);
  }
  uint32_t one = 1, two = 2;
  overwrite("t/quota", at, &one, 4);
  CHECK_EQUAL(open_error(), PENSTOCK_OK);
  overwrite("t/quota", offsetof(penstock_quota_page, current), &two, 4);
  CHECK_EQUAL(open_error(), PENSTOCK_E_INVALID);
  overwrite("t/quota", offsetof(penstock_quota_page, current), "\0\0\0\0", 4);
  char endless[256];
  memset(endless, 'x', sizeof endless);
  overwrite("t/quota", offsetof(penstock_quota_page, driver_path), endless, sizeof endless);
  CHECK_EQUAL(open_error(), PENSTOCK_E_INVALID);
}

TEST(every_error_has_its_own_text) {
  for (int a = PENSTOCK_OK; a <= PENSTOCK_E_OVER_LIMIT; a++) {
    for (int b = PENSTOCK_OK; b < a; b++) {
      CHECK(strcmp(penstock_error_text(a), penstock_error_text(b)) != 0);
    }
    CHECK(strcmp(penstock_error_text(a), penstock_error_text(-1)) != 0);
  }
}

TEST(a_view_reads_but_neither_claims_nor_reserves) {
  penstock_region region = tenant_open("t", 1, MIB), view;
  CHECK_EQUAL(penstock_ledger_reserve(&region, 0, 1024), PENSTOCK_OK);
  CHECK_EQUAL(penstock_region_open_view(&view, "t"), PENSTOCK_OK);
  CHECK_EQUAL(penstock_ledger_total(&view, 0), 1024);
  CHECK_EQUAL(penstock_ledger_reserve(&view, 0, 512), PENSTOCK_E_READ_ONLY);
  penstock_ledger_release(&view, 0, 512);
  CHECK_EQUAL(penstock_slot_own(&view), -PENSTOCK_E_READ_ONLY);
  CHECK_EQUAL(penstock_ledger_total(&region, 0), 1024);
}

TEST(a_change_of_limits_is_seen_at_once_in_the_mapped_page) {
  penstock_region region = tenant_open("t", 1, MIB);
  uint64_t generation = penstock_region_limits(&region)->generation;
  tenant_set_limit("t", 3 * MIB);
  CHECK_EQUAL(penstock_ledger_limit(&region, 0), 3 * MIB);
  tenant_set_limit("t", 2 * MIB);
  CHECK_EQUAL(penstock_ledger_limit(&region, 0), 2 * MIB);
  CHECK_EQUAL(penstock_region_limits(&region)->generation, generation + 2);
}
