#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "below.h"
#include "log.h"
#include "process.h"

/* Where distributions, container toolkits and WSL put the driver. */
static const char *const driver_folders[] = {
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

static char no_library; /* its address stands for "looked for, not there" */

static CUresult answer_not_supported(void) { return CUDA_ERROR_NOT_SUPPORTED; }
static CUresult answer_no_device(void) { return CUDA_ERROR_NO_DEVICE; }

/* A library at an absolute path that is not the shim itself (which may be mounted there). */
static void *open_driver_at(const char *path) {
  void *library = penstock_below_dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return NULL;
  if (dlsym(library, PENSTOCK_CUDA_MARKER)) {
    dlclose(library);
    return NULL;
  }
  penstock_log("driver: %s", path);
  return library;
}

static void *open_driver_in(const char *folder, size_t folder_length) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%.*s/libcuda.so.1", (int)folder_length, folder);
  if (path[0] != '/' || length >= (int)sizeof path) return NULL;
  return open_driver_at(path);
}

/* What the loader would have found without the shim: LD_LIBRARY_PATH, then the usual folders. */
static void *search_driver(void) {
  const char *list = secure_getenv("LD_LIBRARY_PATH");
  while (list && *list) {
    size_t length = strcspn(list, ":;");
    void *library = length ? open_driver_in(list, length) : NULL;
    if (library) return library;
    list += length + (list[length] != '\0');
  }
  for (size_t i = 0; i < sizeof driver_folders / sizeof *driver_folders; i++) {
    void *library = open_driver_in(driver_folders[i], strlen(driver_folders[i]));
    if (library) return library;
  }
  return NULL;
}

static void *open_driver(void) {
  const penstock_process *process = penstock_process_get();
  if (process && process->region.quota->driver_path[0]) {
    char path[sizeof process->region.quota->driver_path + 1] = {0};
    memcpy(path, process->region.quota->driver_path, sizeof path - 1);
    void *library = open_driver_at(path);
    if (!library) penstock_log("driver: the quota page names %s, which cannot be opened", path);
    return library; /* no search: the page says which one */
  }
  void *library = search_driver();
  if (!library) {
    penstock_log("driver: no libcuda.so.1 in LD_LIBRARY_PATH or in the usual folders");
  }
  return library;
}

/* The driver's handle, opened once; NULL when there is none. No lock: dlopen runs constructors,
 * which may come back here from another thread. Whoever loses the race closes its second handle. */
static void *driver_library(void) {
  static void *library;
  void *known = __atomic_load_n(&library, __ATOMIC_ACQUIRE);
  if (!known) {
    void *opened = open_driver();
    void *mine = opened ? opened : &no_library;
    if (__atomic_compare_exchange_n(&library, &known, mine, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
      known = mine;
    } else if (opened) {
      dlclose(opened);
    }
  }
  return known == &no_library ? NULL : known;
}

void *penstock_driver_symbol(const char *name) {
  void *library = driver_library();
  return library ? dlsym(library, name) : NULL;
}

bool penstock_driver_has(unsigned index) {
  return penstock_driver_symbol(penstock_cuda_names[index]) != NULL;
}

void *penstock_cuda_resolve(unsigned index) {
  int saved_errno = errno;
  void *found = (void *)answer_no_device;
  void *library = driver_library();
  if (library) {
    found = dlsym(library, penstock_cuda_names[index]);
    if (!found) found = (void *)answer_not_supported;
  }
  __atomic_store_n(&penstock_cuda_real[index], found, __ATOMIC_RELEASE);
  errno = saved_errno;
  return found;
}

static int compare_name(const void *name, const void *entry) {
  return strcmp(name, *(const char *const *)entry);
}

int penstock_cuda_index(const char *name) {
  const char *const *found = bsearch(name, penstock_cuda_names, PENSTOCK_CUDA_SYMBOLS,
                                     sizeof *penstock_cuda_names, compare_name);
  return found ? (int)(found - penstock_cuda_names) : -1;
}
