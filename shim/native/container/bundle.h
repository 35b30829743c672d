/* The container that is being made, as the runtime tells its hooks about it. */
#pragma once

#include <limits.h>
#include <stdbool.h>

/* Finds the container's root from the OCI state on standard input. False, with what is wrong. */
bool bundle_root(char root[PATH_MAX], const char **wrong);
