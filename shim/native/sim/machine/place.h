/* The machine that this process uses, and the process's tag. In a container, the files for both are
 * mounted in the directory of the simulated libraries. They take precedence over the environment,
 * because a program cannot choose the GPU of its machine. */
#pragma once

#include <stddef.h>

/* Returns the path of the file `machine` in this library's directory, or else PENSTOCK_SIM_MACHINE,
 * or NULL if there is neither or `buffer` is too small. */
const char *sim_place_machine(char *buffer, size_t size);

/* Returns the contents of the file `tag` in this library's directory, or else PENSTOCK_SIM_TAG, or
 * NULL if there is neither. */
const char *sim_place_tag(char *buffer, size_t size);
