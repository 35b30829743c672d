#pragma once

#include <stdint.h>

/* The memory that was mapped into a sparse array or mipmapped array is let go. */
void penstock_vmm_array_destroyed(uint64_t array);
