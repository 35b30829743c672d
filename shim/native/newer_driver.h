/* Driver libraries that a program brings along, newer than the machine's: NVIDIA's forward
 * compatibility packages, which images have so that their CUDA runs above an older kernel module.
 */
#pragma once

#include <stdbool.h>

/* Hears of a library; `unfit` is why it cannot be used, NULL: nothing is known against it. True: no
 * further one is wanted. */
typedef bool (*penstock_newer_visit)(const char *path, const char *unfit, void *context);

/* Visits the libraries of a newer version than `driver` that the loader would find for a program
 * without the shim, in its order: LD_LIBRARY_PATH, then its cache. One of the version of `driver`,
 * or the shim where it is mounted in the driver's place, ends the list. A version is told by the
 * name of the file that a path leads to; nothing is visited when that of `driver` tells none, as
 * the simulated one's. No lock, errno is kept.
 */
void penstock_newer_drivers(const char *driver, penstock_newer_visit visit, void *context);
