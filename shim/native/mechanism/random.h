/* Random numbers from the kernel, which no other process can predict. */
#pragma once

#include <stdint.h>

/* Scatters the bits of `x`; different numbers stay different. */
uint64_t penstock_mix(uint64_t x);

/* Never waits: while the kernel has none yet, uses the time and the process. Keeps errno. */
uint64_t penstock_random(void);
