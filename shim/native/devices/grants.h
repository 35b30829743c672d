/* The tenant's grant that each CUDA device belongs to, matched by UUID. */
#pragma once

#include <cuda.h>

/* Returns the grant index of the current context's device, or -1 if there is no context or no
 * grant. */
int penstock_current_grant(void);

/* Returns the grant index of a CUDA device ordinal, or -1 if the device was not granted. */
int penstock_grant_of(CUdevice device);
