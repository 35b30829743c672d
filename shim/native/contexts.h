/* Contexts: what each costs, and what dies with it. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "objects.h"

/* Where a call on this thread allocates: context and grant. The driver's error without a context.
 *
 * A context that nobody saw being made (the CUDA runtime can retain the primary context through a
 * private table) is charged here, at the first allocation in it. */
CUresult penstock_here(CUcontext *context, int *grant);

/* Whether this context is charged; cheap for the thread's usual one. */
bool penstock_context_is_known(CUcontext context);

/* Before the driver makes a context: charges the reserve of the device's grant.
 * CUDA_ERROR_INVALID_DEVICE when it was not granted. */
CUresult penstock_context_admit(CUdevice device, int *grant, uint64_t *bytes);

/* After it did: remembers the charge. */
void penstock_context_made(CUcontext context, int grant, uint64_t bytes);

/* The same unless it is remembered already. */
bool penstock_context_try_made(CUcontext context, int grant, uint64_t bytes);

/* Around a call that destroys a context and all that was allocated in it. What lies in it is taken
 * out before: the driver may give its handle to a new context at once. Returns `result`. */
typedef struct penstock_departure {
  penstock_object *all;
  size_t count;
} penstock_departure;
penstock_departure penstock_context_leave(CUcontext context);
CUresult penstock_context_left(penstock_departure *departure, CUresult result);
