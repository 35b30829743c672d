/* Which names of a dlopen lead to the shim. Called from dlopen.S.
 *
 * glibc already hands the shim to everyone who asks for `libcuda.so.1`, its SONAME. What is left
 * are `libcuda.so`, other file names of the driver, paths, links of any name to its file, and new
 * namespaces.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "common/below.h"
#include "driver_file.h"

__attribute__((visibility("default"))) const int penstock_cuda_shim = 1;

typedef struct redirect {
  const char *name; /* in rax */
  void *target;     /* in rdx: libc's function */
} redirect;

static void *no_library(void) { return NULL; }

/* libc's own function, looked up at the first use: a constructor would run in every process. Two
 * threads may both look it up, and find the same. */
static void *libc_function(void **cache, const char *name) {
  void *found = __atomic_load_n(cache, __ATOMIC_ACQUIRE);
  if (__builtin_expect(!found, 0)) {
    found = dlsym(RTLD_NEXT, name);
    if (!found) return (void *)no_library;
    __atomic_store_n(cache, found, __ATOMIC_RELEASE);
  }
  return found;
}

static void *libc_dlopen(void) {
  static void *cache;
  return libc_function(&cache, "dlopen");
}

static void *libc_dlmopen(void) {
  static void *cache;
  return libc_function(&cache, "dlmopen");
}

void *penstock_below_dlopen(const char *path, int flags) {
  return ((void *(*)(const char *, int))libc_dlopen())(path, flags);
}

/* True for `stem` and `stem.<version>`; with folders before it only when there is such a file: a
 * program that tries paths must be told where there is none. */
static bool names_driver(const char *name, const char *stem) {
  const char *slash = strrchr(name, '/');
  const char *base = slash ? slash + 1 : name;
  size_t length = strlen(stem);
  if (strncmp(base, stem, length) != 0) return false;
  if (base[length] != '\0' && base[length] != '.') return false;
  if (base[length + strspn(base + length, ".0123456789")] != '\0') return false;
  return !slash || access(name, F_OK) == 0;
}

/* By its name, or by the file that a path leads to: a link may have any name. */
static bool leads_to(const char *name, const char *stem, penstock_vendor_library which) {
  return names_driver(name, stem) || (strchr(name, '/') && penstock_is_file_below(name, which));
}

/* Fills in the loaded library that holds the shim's view of NVML; false when there is none. */
static bool find_nvml_shim(Dl_info *info) {
  void *library = penstock_below_dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return false;
  void *marker = dlsym(library, PENSTOCK_NVML_MARKER);
  bool found = marker && dladdr(marker, info);
  dlclose(library);
  return found;
}

/* The library in the place of `name`: its SONAME, or for another namespace its file. NULL: leave
 * the name alone. */
static const char *replacement(const char *name, const void *caller, bool by_file) {
  Dl_info shim;
  if (leads_to(name, "libcuda.so", PENSTOCK_LIBCUDA)) {
    if (!by_file) return "libcuda.so.1";
    return dladdr(&penstock_cuda_shim, &shim) ? shim.dli_fname : NULL;
  }
  if (leads_to(name, "libnvidia-ml.so", PENSTOCK_LIBNVML) && find_nvml_shim(&shim)) {
    Dl_info from;
    /* The shim's NVML library itself, on its way to the real one. */
    if (dladdr(caller, &from) && from.dli_fbase == shim.dli_fbase) return NULL;
    return by_file ? shim.dli_fname : "libnvidia-ml.so.1";
  }
  return NULL;
}

/* Most names without a slash are neither: decided by their letters. A path is looked at: one stat,
 * beside what opening a library takes. No copy, no lock. */
static bool may_be_driver(const char *name) {
  return name &&
         (strchr(name, '/') || strstr(name, "libcuda.so") || strstr(name, "libnvidia-ml.so"));
}

__attribute__((visibility("hidden"))) redirect penstock_redirect_dlopen(const char *name,
                                                                        const void *caller) {
  redirect to = {name, libc_dlopen()};
  if (may_be_driver(name)) {
    const char *other = replacement(name, caller, false);
    if (other) to.name = other;
  }
  return to;
}

__attribute__((visibility("hidden"))) redirect penstock_redirect_dlmopen(const char *name,
                                                                         const void *caller) {
  redirect to = {name, libc_dlmopen()};
  if (may_be_driver(name)) {
    const char *other = replacement(name, caller, true);
    if (other) to.name = other;
  }
  return to;
}
