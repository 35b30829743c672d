#define _GNU_SOURCE
#include "loading/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/below.h"
#include "common/log.h"
#include "common/search.h"
#include "loading/newer_driver.h"
#include "loading/unknown.h"
#include "process/process.h"

static char no_library; /* its address stands for "searched for and not found" */

static CUresult answer_not_supported(void) { return CUDA_ERROR_NOT_SUPPORTED; }
static CUresult answer_no_device(void) { return CUDA_ERROR_NO_DEVICE; }

static const penstock_search below = {
    .file = "libcuda.so.1", .marker = PENSTOCK_CUDA_MARKER, .open = penstock_below_dlopen};

/* Returns why a library is not a usable driver, after closing its handle, or NULL if it is one. */
static const char *why_no_driver(void *library) {
  const char *why = NULL;
  if (!library) return dlerror();
  if (dlsym(library, PENSTOCK_CUDA_MARKER))
    why = "it is the shim";
  else if (!dlsym(library, "cuInit"))
    why = "it has no cuInit";
  if (why) dlclose(library);
  return why;
}

/* Opens a newer driver library of the program. Returns false if it cannot be used. */
static bool open_newer(const char *path, const char *unfit, void *opened) {
  void *library = unfit ? NULL : below.open(path, RTLD_NOW | RTLD_LOCAL);
  if (!unfit) unfit = why_no_driver(library);
  if (unfit) {
    penstock_log("driver: %s is ignored: %s", path, unfit);
    return false;
  }
  penstock_log("%s: %s, newer than this machine's", below.file, path);
  *(void **)opened = library;
  return true;
}

static void *open_driver(void) {
  const penstock_process *process = penstock_process_get();
  if (process && process->region.quota->driver_path[0]) {
    char path[sizeof process->region.quota->driver_path + 1] = {0};
    memcpy(path, process->region.quota->driver_path, sizeof path - 1);
    void *library = NULL;
    penstock_newer_drivers(path, open_newer, &library);
    if (library) return library;
    library = penstock_open_below(&below, path);
    if (!library) penstock_log("driver: the quota page names %s, which cannot be opened", path);
    return library; /* there is no further search because the page names the library */
  }
  return penstock_search_below(&below);
}

/* Returns the driver's handle, which is opened once, or NULL if there is no driver. No lock is
 * held, because dlopen runs constructors, which may call this function in another thread. A thread
 * that loses the race closes its handle. */
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

/* Defined by the linker. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

/* Returns true if the shim itself makes the call, that is, if the caller lies in a segment of this
 * library. */
static bool is_own(const void *caller) {
  uintptr_t base = (uintptr_t)&__ehdr_start;
  const ElfW(Phdr) *segments = (const void *)(base + __ehdr_start.e_phoff);
  for (unsigned i = 0; i < __ehdr_start.e_phnum; i++) {
    uintptr_t from = base + segments[i].p_vaddr;
    if (segments[i].p_type == PT_LOAD && (uintptr_t)caller - from < segments[i].p_memsz) {
      return true;
    }
  }
  return false;
}

/* Counts a call of a function that the driver lacks or that the shim only forwards. Returns true if
 * the next call must be counted as well. */
static bool note_call(unsigned index, const void *caller, bool absent) {
  bool hooked = penstock_cuda_is_hooked[index];
  if (is_own(caller) && !hooked) return penstock_names_are_recorded();
  if (absent) {
    penstock_name_count(PENSTOCK_ASKED_ABSENT, penstock_cuda_names[index], PENSTOCK_ASKED_CALL);
  } else if (!hooked && penstock_names_are_recorded()) {
    penstock_name_count(PENSTOCK_ASKED_FORWARDED, penstock_cuda_names[index], PENSTOCK_ASKED_CALL);
    return true;
  }
  return false;
}

void *penstock_cuda_resolve(unsigned index, const void *caller) {
  int saved_errno = errno;
  void *found = (void *)answer_no_device;
  void *library = driver_library();
  bool counted = false;
  if (library) {
    found = dlsym(library, penstock_cuda_names[index]);
    counted = note_call(index, caller, !found);
    if (!found) found = (void *)answer_not_supported;
  }
  if (!counted) __atomic_store_n(&penstock_cuda_real[index], found, __ATOMIC_RELEASE);
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
