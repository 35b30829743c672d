/* The loader's cache, /etc/ld.so.cache: where ldconfig found which library. */
#pragma once

#include <stdbool.h>

/* Calls `each` with every path of a 64-bit library called `name`, in the loader's order, until it
 * answers true. A cache that is not there or cannot be read holds none. No lock, no allocation. */
void penstock_loader_cache_each(const char *name, bool (*each)(const char *path, void *context),
                                void *context);
