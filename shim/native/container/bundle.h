/* The container that is being created, from the OCI state that the runtime passes to its hooks. */
#pragma once

#include <limits.h>
#include <stdbool.h>

/* Reads the path of the container's root from the OCI state on standard input. Returns false with
 * the reason in `wrong` on failure.
 */
bool bundle_root(char root[PATH_MAX], const char **wrong);
