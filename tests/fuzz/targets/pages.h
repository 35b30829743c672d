/* A tenant's pages that the fuzzer spoils: input is a list of changes, each
 *   offset (4 bytes), length (1), bytes
 * applied to sound pages. An offset is taken modulo the file's size; bit 31 with length 0 cuts the
 * file there. */
#pragma once
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mechanism/publish.h"
#include "mechanism/reap.h"

#define MIB ((uint64_t)1 << 20)
#define DIRECTORY_BYTES 64

static char directory[DIRECTORY_BYTES];
static int quota_fd, usage_fd;
static penstock_quota_page sound_quota;

static void need(int held, const char *what) {
  if (held) return;
  fprintf(stderr, "not so: %s\n", what);
  abort();
}
#define NEED(condition) need(!!(condition), #condition)

static void remove_pages(void) {
  char path[DIRECTORY_BYTES + 8];
  snprintf(path, sizeof path, "%s/quota", directory);
  unlink(path);
  snprintf(path, sizeof path, "%s/usage", directory);
  unlink(path);
  rmdir(directory);
}

static void make_pages(void) {
  snprintf(directory, sizeof directory, "/dev/shm/penstock-fuzz-XXXXXX");
  NEED(mkdtemp(directory));
  atexit(remove_pages);
  penstock_limits limits = {.device_count = 2};
  for (int i = 0; i < 2; i++) {
    limits.devices[i] = (penstock_device_limit){
        .memory_bytes = MIB, .cores_permille = 500, .allowance_permille = 500, .sharers = 1};
  }
  penstock_quota_init(&sound_quota, &limits, "fuzzed", "", "");
  char path[DIRECTORY_BYTES + 8];
  snprintf(path, sizeof path, "%s/quota", directory);
  quota_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  snprintf(path, sizeof path, "%s/usage", directory);
  usage_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  NEED(quota_fd >= 0 && usage_fd >= 0);
}

/* Sound pages again. The usage page is empty but for its head. */
static void restore_pages(void) {
  penstock_usage_page *head = calloc(1, sizeof *head);
  NEED(head);
  penstock_usage_init(head);
  NEED(!ftruncate(quota_fd, 0) && !ftruncate(usage_fd, 0));
  NEED(pwrite(quota_fd, &sound_quota, sizeof sound_quota, 0) == sizeof sound_quota);
  NEED(!ftruncate(usage_fd, sizeof *head) && pwrite(usage_fd, head, 64, 0) == 64);
  free(head);
}

static void spoil(int fd, size_t file_bytes, const uint8_t *data, size_t size) {
  while (size >= 5) {
    uint32_t offset;
    memcpy(&offset, data, 4);
    size_t length = data[4];
    data += 5;
    size -= 5;
    if (length == 0 && offset >> 31) {
      NEED(!ftruncate(fd, (off_t)(offset % file_bytes)));
      continue;
    }
    if (length > size) length = size;
    NEED(pwrite(fd, data, length, (off_t)(offset % file_bytes)) == (ssize_t)length);
    data += length;
    size -= length;
  }
  /* Longer than it should be harms nobody. */
}
