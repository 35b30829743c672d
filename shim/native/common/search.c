#define _GNU_SOURCE /* for secure_getenv */
#include "common/search.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

/* Where distributions, container toolkits and WSL install the driver's libraries. */
static const char *const folders[] = {
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/lib/x86_64-linux-gnu",
    "/lib64",
};

void *penstock_open_below(const penstock_search *search, const char *path) {
  void *library = search->open(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return NULL;
  if (dlsym(library, search->marker)) {
    dlclose(library);
    return NULL;
  }
  penstock_log("%s: %s", search->file, path);
  return library;
}

static void *open_in(const penstock_search *search, const char *folder, size_t folder_length) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%.*s/%s", (int)folder_length, folder, search->file);
  if (path[0] != '/' || length >= (int)sizeof path) return NULL;
  return penstock_open_below(search, path);
}

void *penstock_search_below(const penstock_search *search) {
  const char *list = secure_getenv("LD_LIBRARY_PATH");
  while (list && *list) {
    size_t length = strcspn(list, ":;");
    void *library = length ? open_in(search, list, length) : NULL;
    if (library) return library;
    list += length + (list[length] != '\0');
  }
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    void *library = open_in(search, folders[i], strlen(folders[i]));
    if (library) return library;
  }
  penstock_log("%s is not in LD_LIBRARY_PATH or the usual folders", search->file);
  return NULL;
}

static bool stat_in(const char *folder, size_t folder_length, const char *file, struct stat *out) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%.*s/%s", (int)folder_length, folder, file);
  return path[0] == '/' && length < (int)sizeof path && stat(path, out) == 0;
}

bool penstock_search_stat(const char *file, struct stat *out) {
  const char *list = secure_getenv("LD_LIBRARY_PATH");
  while (list && *list) {
    size_t length = strcspn(list, ":;");
    if (length && stat_in(list, length, file, out)) return true;
    list += length + (list[length] != '\0');
  }
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    if (stat_in(folders[i], strlen(folders[i]), file, out)) return true;
  }
  return false;
}
