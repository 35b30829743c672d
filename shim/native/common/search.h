/* Search for the vendor's library that one of the shim's libraries forwards to. */
#pragma once

#include <stdbool.h>
#include <sys/stat.h>

/* What to search for and how to open it. */
typedef struct penstock_search {
  const char *file;   /* such as "libcuda.so.1" */
  const char *marker; /* symbol that only the shim itself exports (below.h) */
  void *(*open)(const char *path, int flags); /* dlopen without redirection to the shim */
} penstock_search;

/* Opens the library at an absolute path. Returns NULL if that fails or if the library is the shim,
 * which may be mounted at that path. */
void *penstock_open_below(const penstock_search *search, const char *path);

/* Opens the library that the loader would find without the shim, first in LD_LIBRARY_PATH and then
 * in the usual folders. Returns NULL if there is none. */
void *penstock_search_below(const penstock_search *search);

/* Calls stat on the first file of this name in the order of penstock_search_below. Returns false if
 * there is none. */
bool penstock_search_stat(const char *file, struct stat *out);
