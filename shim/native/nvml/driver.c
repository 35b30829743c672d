#include "driver.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "common/below.h"
#include "common/log.h"
#include "common/search.h"
#include "tenant.h"

__attribute__((visibility("default"))) const int penstock_nvml_shim = 1;

static char no_library; /* marker whose address means "searched for and not found" */

static nvmlReturn_t answer_no_permission(void) { return NVML_ERROR_NO_PERMISSION; }
static nvmlReturn_t answer_no_library(void) { return NVML_ERROR_LIBRARY_NOT_FOUND; }
static nvmlReturn_t answer_no_function(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

/* Returns the text of the shim's own errors for nvmlErrorString. */
static const char *own_error_string(nvmlReturn_t result) {
  if (result == NVML_ERROR_NO_PERMISSION) return "Insufficient Permissions (no Penstock tenant)";
  if (result == NVML_ERROR_LIBRARY_NOT_FOUND) return "NVML Shared Library Not Found";
  return result == NVML_SUCCESS ? "Success" : "Unknown Error";
}

/* Opened with plain dlopen, because the CUDA shim's dlopen does not redirect calls of this
 * library. */
static const penstock_search below = {
    .file = "libnvidia-ml.so.1", .marker = PENSTOCK_NVML_MARKER, .open = dlopen};

static void *open_library(const penstock_region *region) {
  char path[sizeof region->quota->nvml_path + 1] = {0};
  memcpy(path, region->quota->nvml_path, sizeof path - 1);
  if (!path[0]) return penstock_search_below(&below);
  /* no search is needed, because the page names the library */
  void *library = penstock_open_below(&below, path);
  if (!library) penstock_log("nvml: the quota page names %s, which cannot be opened", path);
  return library;
}

/* Opens the real library once. Two threads may both open it, which is harmless, because dlopen
 * returns the same handle to both. */
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

void *penstock_nvml_resolve(unsigned index, const void *caller) {
  (void)caller;
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
