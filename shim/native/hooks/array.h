#pragma once

#include <stdint.h>

/* Releases the memory that was mapped into a sparse array or mipmapped array. */
void penstock_vmm_array_destroyed(uint64_t array);
