#define _GNU_SOURCE /* for O_PATH */
#include "mechanism/region.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mechanism/slots.h"

const char *penstock_error_text(penstock_error error) {
  switch (error) {
    case PENSTOCK_OK:
      return "is in order";
    case PENSTOCK_E_MISSING:
      return "does not exist";
    case PENSTOCK_E_UNREADABLE:
      return "cannot be read";
    case PENSTOCK_E_NOT_A_FILE:
      return "is not a regular file";
    case PENSTOCK_E_TRUNCATED:
      return "is shorter than the page it should hold";
    case PENSTOCK_E_WRONG_MAGIC:
      return "is not a page of this kind";
    case PENSTOCK_E_OTHER_VERSION:
      return "is a page of another version";
    case PENSTOCK_E_INVALID:
      return "holds a field that is out of bounds";
    case PENSTOCK_E_NO_MEMORY:
      return "found no memory, or its file system is full";
    case PENSTOCK_E_READ_ONLY:
      return "is open for reading only";
    case PENSTOCK_E_NO_SLOT:
      return "has no free slot: every one is held by a living process";
    case PENSTOCK_E_OVER_LIMIT:
      return "would exceed the limit";
    case PENSTOCK_E_UNWRITABLE:
      return "holds a usage page that may be read but not written";
  }
  return "failed in an unknown way";
}

_Static_assert(PENSTOCK_ABI_VERSION - PENSTOCK_ABI_OLDEST <= 1, "this version, or the one before");

bool penstock_version_is_read(uint32_t version) {
  return version >= PENSTOCK_ABI_OLDEST && version <= PENSTOCK_ABI_VERSION;
}

penstock_error penstock_page_check(int fd, uint64_t magic, uint64_t size) {
  struct {
    uint64_t magic;
    uint32_t version;
    uint32_t size_bytes;
  } header;
  struct stat stat;
  if (fstat(fd, &stat) != 0) return PENSTOCK_E_UNREADABLE;
  if (!S_ISREG(stat.st_mode)) return PENSTOCK_E_NOT_A_FILE;
  ssize_t got = pread(fd, &header, sizeof header, 0);
  if (got < 0) return PENSTOCK_E_UNREADABLE;
  if (got < (ssize_t)sizeof header) return PENSTOCK_E_TRUNCATED;
  if (header.magic != magic) return PENSTOCK_E_WRONG_MAGIC;
  if (!penstock_version_is_read(header.version)) return PENSTOCK_E_OTHER_VERSION;
  if (header.size_bytes != size) return PENSTOCK_E_OTHER_VERSION;
  if ((uint64_t)stat.st_size < size) return PENSTOCK_E_TRUNCATED;
  return PENSTOCK_OK;
}

/* Returns the error for a failed openat, from errno. */
static penstock_error why_not(int directory, const char *name, bool writable) {
  if (errno == ENOENT) return PENSTOCK_E_MISSING;
  if (errno == ELOOP || errno == EISDIR) return PENSTOCK_E_NOT_A_FILE;
  if (!writable || (errno != EACCES && errno != EPERM && errno != EROFS)) {
    return PENSTOCK_E_UNREADABLE;
  }
  int saved = errno;
  int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (fd >= 0) close(fd);
  errno = saved;
  return fd >= 0 ? PENSTOCK_E_UNWRITABLE : PENSTOCK_E_UNREADABLE;
}

/* Maps a page's file without following a symbolic link in the last path component and without
 * blocking on a pipe. */
static penstock_error map_page(int directory, const char *name, uint64_t magic, size_t size,
                               bool writable, void **out) {
  int flags = (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  int fd = openat(directory, name, flags);
  if (fd < 0) return why_not(directory, name, writable);
  penstock_error error = penstock_page_check(fd, magic, size);
  if (error == PENSTOCK_OK) {
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *page = mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
      error = errno == ENOMEM ? PENSTOCK_E_NO_MEMORY : PENSTOCK_E_UNREADABLE;
    } else {
      *out = page;
    }
  }
  close(fd);
  return error;
}

/* Checks the fields that later code relies on: strings and counts. */
static penstock_error check_quota(const penstock_quota_page *quota) {
  if (quota->tenant[sizeof quota->tenant - 1] != 0) return PENSTOCK_E_INVALID;
  if (quota->driver_path[sizeof quota->driver_path - 1] != 0) return PENSTOCK_E_INVALID;
  if (quota->nvml_path[sizeof quota->nvml_path - 1] != 0) return PENSTOCK_E_INVALID;
  if (__atomic_load_n(&quota->current, __ATOMIC_ACQUIRE) > 1) return PENSTOCK_E_INVALID;
  const penstock_limits *limits = &quota->copies[quota->current & 1];
  if (limits->device_count < 1 || limits->device_count > PENSTOCK_MAX_DEVICES) {
    return PENSTOCK_E_INVALID;
  }
  return PENSTOCK_OK;
}

/* Returns the version in a page's header, or 0 if it cannot be read. */
static uint32_t version_of(const char *directory, const char *name) {
  uint32_t version = 0;
  int folder = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  int fd = folder < 0 ? -1 : openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd >= 0) {
    ssize_t got = pread(fd, &version, sizeof version, offsetof(penstock_quota_page, version));
    if (got != (ssize_t)sizeof version) version = 0;
    close(fd);
  }
  if (folder >= 0) close(folder);
  return version;
}

/* Returns the name of the page that caused the error: the quota page, which is opened first, unless
 * that is valid. Returns an empty string if the error concerns no page, or the directory itself. */
static const char *page_at_fault(const char *directory, penstock_error error) {
  if (error == PENSTOCK_E_NO_MEMORY || error == PENSTOCK_E_NO_SLOT) return "";
  int folder = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return "";
  void *quota = NULL;
  penstock_error found =
      map_page(folder, "quota", PENSTOCK_QUOTA_MAGIC, sizeof(penstock_quota_page), false, &quota);
  if (found == PENSTOCK_OK) {
    found = check_quota(quota);
    munmap(quota, sizeof(penstock_quota_page));
  }
  close(folder);
  return found != PENSTOCK_OK ? "/quota" : "/usage";
}

void penstock_region_explain(penstock_error error, const char *directory, char *out, size_t size) {
  _Static_assert(offsetof(penstock_quota_page, version) == offsetof(penstock_usage_page, version),
                 "both pages begin alike");
  if (error == PENSTOCK_E_UNWRITABLE) {
    snprintf(out, size,
             "%s %s by this user; its processes keep account there: give them write permission, or "
             "run as the user that started the tenant",
             directory, penstock_error_text(error));
    return;
  }
  if (error != PENSTOCK_E_OTHER_VERSION) {
    snprintf(out, size, "%s%s %s; start the program with `penstock run`, or see `penstock doctor`",
             directory, page_at_fault(directory, error), penstock_error_text(error));
    return;
  }
  uint32_t quota = version_of(directory, "quota");
  uint32_t usage = version_of(directory, "usage");
  uint32_t found = penstock_version_is_read(quota) ? usage : quota;
  snprintf(
      out, size,
      "%s holds a page of version %u%s, and this shim reads version %u%s; use the release that "
      "wrote it, or let the tenant end and start it again",
      directory, found, penstock_version_is_read(found) ? " but of another size" : "",
      PENSTOCK_ABI_VERSION,
      PENSTOCK_ABI_OLDEST < PENSTOCK_ABI_VERSION ? " and the one before" : "");
}

static penstock_error map_both(penstock_region *region, const char *directory, bool writable) {
  int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return PENSTOCK_E_MISSING;
    return errno == ENOTDIR ? PENSTOCK_E_NOT_A_FILE : PENSTOCK_E_UNREADABLE;
  }
  void *quota = NULL;
  void *usage = NULL;
  penstock_error error =
      map_page(fd, "quota", PENSTOCK_QUOTA_MAGIC, sizeof(penstock_quota_page), false, &quota);
  if (error == PENSTOCK_OK) {
    region->quota = quota;
    error = check_quota(quota);
  }
  if (error == PENSTOCK_OK) {
    error =
        map_page(fd, "usage", PENSTOCK_USAGE_MAGIC, sizeof(penstock_usage_page), writable, &usage);
    region->usage = usage;
  }
  close(fd);
  return error;
}

/* Maps the claim on a page of its own, because the kernel wipes whole pages on fork. */
static penstock_error map_claim(penstock_region *region) {
  size_t size = (size_t)sysconf(_SC_PAGESIZE);
  _Static_assert(sizeof(penstock_claim) <= 4096, "the claim fits a page");
  void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return PENSTOCK_E_NO_MEMORY;
  region->claim = page;
  region->claim->compare_pid = madvise(page, size, MADV_WIPEONFORK) != 0;
  return PENSTOCK_OK;
}

static penstock_error open_region(penstock_region *region, const char *directory, bool writable) {
  memset(region, 0, sizeof *region);
  penstock_error error = map_both(region, directory, writable);
  if (error == PENSTOCK_OK && writable) error = map_claim(region);
  if (error != PENSTOCK_OK) {
    int saved = errno;
    penstock_region_close(region);
    errno = saved;
  }
  return error;
}

penstock_error penstock_region_open(penstock_region *region, const char *directory) {
  return open_region(region, directory, true);
}

penstock_error penstock_region_open_view(penstock_region *region, const char *directory) {
  return open_region(region, directory, false);
}

void penstock_region_close(penstock_region *region) {
  if (region->quota) munmap((void *)region->quota, sizeof *region->quota);
  if (region->usage) munmap(region->usage, sizeof *region->usage);
  if (region->claim) munmap(region->claim, (size_t)sysconf(_SC_PAGESIZE));
  memset(region, 0, sizeof *region);
}

/* Copies word by word, as the writer stores the words. Each load has acquire order, so that the
 * generation is read after them. */
static void copy_limit(penstock_device_limit *to, const penstock_device_limit *from) {
  _Static_assert(sizeof *to % 8 == 0, "a device's limit is whole words");
  uint64_t words[sizeof *to / 8];
  for (size_t i = 0; i < sizeof *to / 8; i++) {
    words[i] = __atomic_load_n((const uint64_t *)from + i, __ATOMIC_ACQUIRE);
  }
  memcpy(to, words, sizeof *to);
}

bool penstock_region_device_limit(const penstock_region *region, unsigned device,
                                  penstock_device_limit *out) {
  /* A copy is rewritten only after `current` has moved on, so a retry reads the other copy. The
   * number of retries is bounded, so that a writer that publishes continuously cannot block a
   * reader. */
  for (int i = 0; i < 8; i++) {
    const penstock_limits *limits = penstock_region_limits(region);
    uint64_t before = __atomic_load_n(&limits->generation, __ATOMIC_ACQUIRE);
    if (device >= penstock_region_device_count(region)) return false;
    copy_limit(out, &limits->devices[device]);
    if (before != 0 && __atomic_load_n(&limits->generation, __ATOMIC_RELAXED) == before) break;
  }
  return true;
}
