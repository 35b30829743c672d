/* Contexts: what each costs, and what dies with it. */
#pragma once

#include <cuda.h>
#include <stdbool.h>

/* Where a call on this thread allocates: context and grant. The driver's error without a context.
 *
 * A context that nobody saw being made (the CUDA runtime can retain the primary context through a
 * private table) is charged here, at the first allocation in it. */
CUresult penstock_here(CUcontext *context, int *grant);

/* Before the driver makes a context: charges the reserve of the device's grant.
 * CUDA_ERROR_INVALID_DEVICE when it was not granted. */
CUresult penstock_context_admit(CUdevice device, int *grant, uint64_t *bytes);

/* After it did: remembers the charge. */
void penstock_context_made(CUcontext context, int grant, uint64_t bytes);

/* The driver destroyed the context and all that was allocated in it. */
void penstock_context_gone(CUcontext context);
