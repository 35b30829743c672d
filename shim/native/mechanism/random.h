/* Random numbers that no other process can foresee: the kernel's. */
#pragma once

#include <stdint.h>

/* Scatters the bits of `x`; different numbers stay different. */
uint64_t penstock_mix(uint64_t x);

/* Never waits: where the kernel has none yet, from the time and the process. Keeps errno. */
uint64_t penstock_random(void);
