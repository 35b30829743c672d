/* Random numbers from the kernel that no other process can predict. */
#pragma once

#include <stdint.h>

/* Scatters the bits of `x`. Different inputs have different results. */
uint64_t penstock_mix(uint64_t x);

/* Returns a random number without ever waiting: while the kernel has no random numbers yet, it is
 * derived from the time and the process. Preserves errno. */
uint64_t penstock_random(void);
