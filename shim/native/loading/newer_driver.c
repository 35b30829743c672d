#define _GNU_SOURCE /* for secure_getenv */
#include "loading/newer_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loading/loader_cache.h"

#define FILE_NAME "libcuda.so.1"
#define PARTS 4
/* Smallest first part of a driver version; the name of WSL's file, libcuda.so.1.1, contains no
 * version. */
#define LEAST_RELEASE 100

/* A driver version such as "535.261.03", as numbers. */
typedef struct version {
  unsigned long part[PARTS];
} version;

typedef struct search {
  version below;
  penstock_newer_visit visit;
  void *context;
} search;

/* Reads the version from the name of the file that `path` leads to. Returns false if the name
 * contains none. */
static bool version_of(const char *path, version *out) {
  static const char stem[] = "libcuda.so.";
  char file[PATH_MAX];
  if (!realpath(path, file)) return false;
  const char *text = strrchr(file, '/') + 1;
  if (strncmp(text, stem, sizeof stem - 1) != 0) return false;
  text += sizeof stem - 1;
  *out = (version){{0}};
  unsigned parts = 0;
  while (parts < PARTS && *text >= '0' && *text <= '9') {
    char *end;
    out->part[parts++] = strtoul(text, &end, 10);
    text = *end == '.' ? end + 1 : end;
  }
  return *text == '\0' && parts >= 2 && out->part[0] >= LEAST_RELEASE;
}

static int compare(const version *one, const version *other) {
  for (unsigned i = 0; i < PARTS; i++) {
    if (one->part[i] != other->part[i]) return one->part[i] < other->part[i] ? -1 : 1;
  }
  return 0;
}

static bool is_there(const char *path) {
  char ignored[1];
  return access(path, F_OK) == 0 || readlink(path, ignored, sizeof ignored) >= 0;
}

/* Returns true if the file is the shim, which a container has mounted at the driver's usual
 * path. */
static bool is_shim(const struct stat *file) {
  Dl_info own;
  struct stat found;
  return dladdr(version_of, &own) && stat(own.dli_fname, &found) == 0 &&
         found.st_ino == file->st_ino && found.st_dev == file->st_dev;
}

/* Visits one path of the search. Returns true if the search ends there. */
static bool look_at(const char *path, void *context) {
  const search *search = context;
  const char *unfit = NULL;
  struct stat file;
  version found;
  if (path[0] != '/' || !is_there(path)) return false;
  if (stat(path, &file) != 0) {
    unfit = strerror(errno);
  } else if (!S_ISREG(file.st_mode)) { /* opening a FIFO would block for ever */
    unfit = "it is not a regular file";
  } else if (is_shim(&file)) {
    return true;
  } else if (!version_of(path, &found)) {
    unfit = "its file name contains no version";
  } else if (compare(&found, &search->below) == 0) {
    return true;
  } else if (compare(&found, &search->below) < 0) {
    unfit = "it is older than this machine's";
  }
  return search->visit(path, unfit, search->context);
}

static bool look_in_folders(search *search, const char *list) {
  while (list && *list) {
    char path[PATH_MAX];
    size_t length = strcspn(list, ":;");
    int written = snprintf(path, sizeof path, "%.*s/" FILE_NAME, (int)length, list);
    if (length && written < (int)sizeof path && look_at(path, search)) return true;
    list += length + (list[length] != '\0');
  }
  return false;
}

void penstock_newer_drivers(const char *driver, penstock_newer_visit visit, void *context) {
  int saved_errno = errno;
  search search = {.visit = visit, .context = context};
  if (version_of(driver, &search.below) &&
      !look_in_folders(&search, secure_getenv("LD_LIBRARY_PATH"))) {
    penstock_loader_cache_each(FILE_NAME, look_at, &search);
  }
  errno = saved_errno;
}
