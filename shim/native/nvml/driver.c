#define _GNU_SOURCE /* secure_getenv */
#include "driver.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "tenant.h"

/* Whatever exports this is the shim, under whatever path (a bind mount, a copy) it was reached. */
#define MARKER "penstock_nvml_shim"
__attribute__((visibility("default"))) const int penstock_nvml_shim = 1;

/* Where distributions, container toolkits and WSL put the driver's libraries. */
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

static char no_library; /* its address stands for "looked for, not there" */

static nvmlReturn_t answer_no_permission(void) { return NVML_ERROR_NO_PERMISSION; }
static nvmlReturn_t answer_no_library(void) { return NVML_ERROR_LIBRARY_NOT_FOUND; }
static nvmlReturn_t answer_no_function(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

/* The one function whose answer is not a code: what the shim's own codes mean. */
static const char *own_error_string(nvmlReturn_t result) {
  if (result == NVML_ERROR_NO_PERMISSION) return "Insufficient Permissions (no Penstock tenant)";
  if (result == NVML_ERROR_LIBRARY_NOT_FOUND) return "NVML Shared Library Not Found";
  return result == NVML_SUCCESS ? "Success" : "Unknown Error";
}

/* The libcuda shim's dlopen leaves this library's own calls alone, so an absolute path reaches the
 * file that it names. */
static void *open_at(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library && dlsym(library, MARKER)) {
    dlclose(library);
    return NULL;
  }
  return library;
}

static void *open_in(const char *folder, size_t folder_length) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%.*s/libnvidia-ml.so.1", (int)folder_length, folder);
  if (path[0] != '/' || length >= (int)sizeof path) return NULL;
  return open_at(path);
}

/* What the loader would have found without the shim: LD_LIBRARY_PATH, then the usual folders. */
static void *search(void) {
  const char *list = secure_getenv("LD_LIBRARY_PATH");
  while (list && *list) {
    size_t length = strcspn(list, ":;");
    void *library = length ? open_in(list, length) : NULL;
    if (library) return library;
    list += length + (list[length] != '\0');
  }
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    void *library = open_in(folders[i], strlen(folders[i]));
    if (library) return library;
  }
  return NULL;
}

static void *open_library(const penstock_region *region) {
  char path[sizeof region->quota->nvml_path + 1] = {0};
  memcpy(path, region->quota->nvml_path, sizeof path - 1);
  void *library = path[0] ? open_at(path) : search(); /* no search when the page says which one */
  if (!library) penstock_log("nvml: no library at %s", path[0] ? path : "the usual places");
  return library;
}

/* Two threads may both open it; dlopen gives both the same. */
static void *library(const penstock_region *region) {
  static void *opened;
  void *found = __atomic_load_n(&opened, __ATOMIC_ACQUIRE);
  if (!found) {
    found = open_library(region);
    if (!found) found = &no_library;
    __atomic_store_n(&opened, found, __ATOMIC_RELEASE);
  }
  return found == &no_library ? NULL : found;
}

void *penstock_nvml_resolve(unsigned index) {
  bool is_text = index == PENSTOCK_IX_nvmlErrorString;
  const penstock_region *region = penstock_nvml_tenant();
  if (!region) return is_text ? (void *)own_error_string : (void *)answer_no_permission;
  void *handle = library(region);
  void *function = handle ? dlsym(handle, penstock_nvml_names[index]) : NULL;
  if (!function && is_text) function = (void *)own_error_string;
  if (!function) function = handle ? (void *)answer_no_function : (void *)answer_no_library;
  __atomic_store_n(&penstock_nvml_real[index], function, __ATOMIC_RELEASE);
  return function;
}
