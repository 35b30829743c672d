/* Finding the vendor's library below a library of the shim. */
#pragma once

#include <stdbool.h>
#include <sys/stat.h>

/* How a library of the shim opens what lies below it. */
typedef struct penstock_search {
  const char *file;   /* "libcuda.so.1" */
  const char *marker; /* whatever exports this is the shim itself (below.h) */
  void *(*open)(const char *path, int flags); /* a dlopen that is not redirected to the shim */
} penstock_search;

/* Opens the library at this absolute path, unless it is the shim (which may be mounted there).
 * NULL when that cannot be done. */
void *penstock_open_below(const penstock_search *search, const char *path);

/* What the loader would have found without the shim: LD_LIBRARY_PATH, then the usual folders. */
void *penstock_search_below(const penstock_search *search);

/* What lies at the first place of that search that has such a file; false when none has. */
bool penstock_search_stat(const char *file, struct stat *out);
