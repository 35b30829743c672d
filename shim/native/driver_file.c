#include "driver_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/quota.h"
#include "common/search.h"
#include "common/tenant_directory.h"
#include "mechanism/region.h"

/* Device and inode of a library below. Every thread that looks them up writes the same. */
typedef struct identity {
  uint64_t device, inode;
  bool known; /* stored last */
} identity;

typedef struct vendor_file {
  const char *file;
  size_t offset, size; /* of its path in the quota page */
} vendor_file;

#define PAGE_PATH(field) \
  offsetof(penstock_quota_page, field), sizeof((penstock_quota_page *)NULL)->field

static const vendor_file files[] = {
    [PENSTOCK_LIBCUDA] = {"libcuda.so.1", PAGE_PATH(driver_path)},
    [PENSTOCK_LIBNVML] = {"libnvidia-ml.so.1", PAGE_PATH(nvml_path)},
};

/* The path that the quota page names; empty when it names none. The page is read, not mapped: this
 * runs before the first CUDA call, in programs that may never make one. */
static bool path_in_page(const vendor_file *library, char *out) {
  const char *directory = penstock_tenant_directory();
  char page[4096];
  if (!directory || snprintf(page, sizeof page, "%s/quota", directory) >= (int)sizeof page) {
    return false;
  }
  int fd = open(page, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return false;
  bool read =
      penstock_page_check(fd, PENSTOCK_QUOTA_MAGIC, sizeof(penstock_quota_page)) == PENSTOCK_OK &&
      pread(fd, out, library->size, (off_t)library->offset) == (ssize_t)library->size &&
      out[library->size - 1] == '\0';
  close(fd);
  return read;
}

static bool find(const vendor_file *library, struct stat *found) {
  char path[sizeof((penstock_quota_page *)NULL)->driver_path];
  _Static_assert(sizeof path >= sizeof((penstock_quota_page *)NULL)->nvml_path, "holds both paths");
  if (!path_in_page(library, path)) return false;
  return path[0] ? stat(path, found) == 0 : penstock_search_stat(library->file, found);
}

static bool look_up(identity *known, penstock_vendor_library which) {
  if (__atomic_load_n(&known->known, __ATOMIC_ACQUIRE)) return true;
  struct stat found;
  if (!find(&files[which], &found)) return false;
  __atomic_store_n(&known->device, (uint64_t)found.st_dev, __ATOMIC_RELAXED);
  __atomic_store_n(&known->inode, (uint64_t)found.st_ino, __ATOMIC_RELAXED);
  __atomic_store_n(&known->known, true, __ATOMIC_RELEASE);
  return true;
}

bool penstock_is_file_below(const char *path, penstock_vendor_library which) {
  static identity identities[sizeof files / sizeof *files];
  identity *known = &identities[which];
  int saved_errno = errno;
  struct stat found;
  bool same = stat(path, &found) == 0 && look_up(known, which) &&
              __atomic_load_n(&known->inode, __ATOMIC_RELAXED) == (uint64_t)found.st_ino &&
              __atomic_load_n(&known->device, __ATOMIC_RELAXED) == (uint64_t)found.st_dev;
  errno = saved_errno;
  return same;
}
