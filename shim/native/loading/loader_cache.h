/* The loader's cache, /etc/ld.so.cache, which lists the libraries that ldconfig found. */
#pragma once

#include <stdbool.h>

/* Calls `each` with every path of the 64-bit library `name`, in the loader's order, until `each`
 * returns true. A missing or unreadable cache contains no paths. Takes no lock, allocates
 * nothing. */
void penstock_loader_cache_each(const char *name, bool (*each)(const char *path, void *context),
                                void *context);
