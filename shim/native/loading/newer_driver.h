/* Driver libraries that a program brings along and that are newer than the machine's. These are
 * NVIDIA's forward compatibility packages, with which the CUDA version of a container image runs on
 * an older kernel module. */
#pragma once

#include <stdbool.h>

/* Visitor that is called for each library. `unfit` says why the library cannot be used, and is NULL
 * if no reason is known. The visitor returns true to stop. */
typedef bool (*penstock_newer_visit)(const char *path, const char *unfit, void *context);

/* Visits the libraries newer than `driver` that the loader would find without the shim, in the
 * loader's order: LD_LIBRARY_PATH, then its cache. The list ends at a library of the same version
 * and at the shim if it is mounted in the driver's place. Versions are read from the names of the
 * files that the paths lead to. If the name of `driver` contains no version (the simulated driver),
 * no library is visited. Takes no lock, keeps errno. */
void penstock_newer_drivers(const char *driver, penstock_newer_visit visit, void *context);
