/* Redirection of the driver's names in dlopen and dlmopen to the shim. Called from dlopen.S.
 *
 * glibc itself returns the shim for its SONAME, `libcuda.so.1`. The code here handles `libcuda.so`,
 * other file names of the driver, paths, links with any name to its file, and new namespaces. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "common/below.h"
#include "loading/driver_file.h"

__attribute__((visibility("default"))) const int penstock_cuda_shim = 1;

typedef struct redirect {
  const char *name; /* returned in rax */
  void *target;     /* libc's function, returned in rdx */
} redirect;

static void *no_library(void) { return NULL; }

/* Returns libc's own function. It is looked up at the first use because a constructor would run in
 * every process. If two threads look it up at the same time, both find the same address. */
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

/* Returns true for `stem` and `stem.<version>`. For a path to such a name it returns true only if
 * the file exists, because dlopen of a path that does not exist must fail. */
static bool names_driver(const char *name, const char *stem) {
  const char *slash = strrchr(name, '/');
  const char *base = slash ? slash + 1 : name;
  size_t length = strlen(stem);
  if (strncmp(base, stem, length) != 0) return false;
  if (base[length] != '\0' && base[length] != '.') return false;
  if (base[length + strspn(base + length, ".0123456789")] != '\0') return false;
  return !slash || access(name, F_OK) == 0;
}

/* Returns true if `name` means the driver, by the name itself or by the file that the path leads
 * to, because a link may have any name. */
static bool leads_to(const char *name, const char *stem, penstock_vendor_library which) {
  return names_driver(name, stem) || (strchr(name, '/') && penstock_is_file_below(name, which));
}

/* Finds the loaded library that contains the shim's NVML. Returns false if it is not loaded. */
static bool find_nvml_shim(Dl_info *info) {
  void *library = penstock_below_dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return false;
  void *marker = dlsym(library, PENSTOCK_NVML_MARKER);
  bool found = marker && dladdr(marker, info);
  dlclose(library);
  return found;
}

/* Returns what to open instead of `name`: the shim's SONAME, or the shim's file if another
 * namespace is opened. Returns NULL if `name` itself should be opened. */
static const char *replacement(const char *name, const void *caller, bool by_file) {
  Dl_info shim;
  if (leads_to(name, "libcuda.so", PENSTOCK_LIBCUDA)) {
    if (!by_file) return "libcuda.so.1";
    return dladdr(&penstock_cuda_shim, &shim) ? shim.dli_fname : NULL;
  }
  if (leads_to(name, "libnvidia-ml.so", PENSTOCK_LIBNVML) && find_nvml_shim(&shim)) {
    Dl_info from;
    /* The shim's own NVML library opens the real one. */
    if (dladdr(caller, &from) && from.dli_fbase == shim.dli_fbase) return NULL;
    return by_file ? shim.dli_fname : "libnvidia-ml.so.1";
  }
  return NULL;
}

/* Excludes most names cheaply. A path costs one stat, which is little compared with opening a
 * library. */
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
