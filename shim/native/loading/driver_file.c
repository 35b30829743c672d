#include "loading/driver_file.h"

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
#include "loading/newer_driver.h"
#include "mechanism/region.h"

#define MOST_FILES 4 /* the driver's library and newer ones of the program */

/* Device and inode that identify a library's file. */
typedef struct identity {
  uint64_t device, inode;
} identity;

/* Known files of one library. Threads that look them up at the same time write the same values. */
typedef struct identities {
  identity all[MOST_FILES];
  unsigned count; /* number of known files, written last; 0 if not known yet */
} identities;

typedef struct vendor_file {
  const char *file;
  size_t offset, size; /* position and size of the library's path in the quota page */
} vendor_file;

#define PAGE_PATH(field) \
  offsetof(penstock_quota_page, field), sizeof((penstock_quota_page *)NULL)->field

static const vendor_file files[] = {
    [PENSTOCK_LIBCUDA] = {"libcuda.so.1", PAGE_PATH(driver_path)},
    [PENSTOCK_LIBNVML] = {"libnvidia-ml.so.1", PAGE_PATH(nvml_path)},
};

/* Copies the path that the quota page names, or an empty string if it names none. The page is read,
 * not mapped, because this code runs before the first CUDA call, in programs that may never make
 * one. */
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

static void add(identities *found, const struct stat *file) {
  found->all[found->count++] = (identity){(uint64_t)file->st_dev, (uint64_t)file->st_ino};
}

static bool add_newer(const char *path, const char *unfit, void *found) {
  struct stat file;
  if (!unfit && stat(path, &file) == 0) add(found, &file);
  return ((const identities *)found)->count == MOST_FILES;
}

static unsigned look_up(identities *known, penstock_vendor_library which) {
  const vendor_file *library = &files[which];
  char path[sizeof((penstock_quota_page *)NULL)->driver_path];
  _Static_assert(sizeof path >= sizeof((penstock_quota_page *)NULL)->nvml_path, "holds both paths");
  struct stat file;
  if (!path_in_page(library, path)) return 0;
  if (path[0] ? stat(path, &file) != 0 : !penstock_search_stat(library->file, &file)) return 0;
  identities found = {.count = 0};
  add(&found, &file);
  if (which == PENSTOCK_LIBCUDA) penstock_newer_drivers(path, add_newer, &found);
  for (unsigned i = 0; i < found.count; i++) {
    __atomic_store_n(&known->all[i].device, found.all[i].device, __ATOMIC_RELAXED);
    __atomic_store_n(&known->all[i].inode, found.all[i].inode, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&known->count, found.count, __ATOMIC_RELEASE);
  return found.count;
}

bool penstock_is_file_below(const char *path, penstock_vendor_library which) {
  static identities below[sizeof files / sizeof *files];
  identities *known = &below[which];
  int saved_errno = errno;
  struct stat found;
  bool same = false;
  if (stat(path, &found) == 0) {
    unsigned count = __atomic_load_n(&known->count, __ATOMIC_ACQUIRE);
    if (!count) count = look_up(known, which);
    for (unsigned i = 0; i < count && !same; i++) {
      const identity *one = &known->all[i];
      same = __atomic_load_n(&one->inode, __ATOMIC_RELAXED) == (uint64_t)found.st_ino &&
             __atomic_load_n(&one->device, __ATOMIC_RELAXED) == (uint64_t)found.st_dev;
    }
  }
  errno = saved_errno;
  return same;
}
