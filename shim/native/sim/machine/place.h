/* Which machine this process is on, and as whom. A container has both mounted beside the simulated
 * libraries; what lies there counts before the environment, as no program chooses the GPU that its
 * machine has. */
#pragma once

#include <stddef.h>

/* The file `machine` beside this library, else PENSTOCK_SIM_MACHINE; NULL: neither, or no room in
 * `buffer`. */
const char *sim_place_machine(char *buffer, size_t size);

/* What the file `tag` beside this library says, else PENSTOCK_SIM_TAG; NULL: neither. */
const char *sim_place_tag(char *buffer, size_t size);
