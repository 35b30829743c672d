/* Charges for contexts: the cost of each context, and the objects that are uncharged when it
 * ends. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memory/objects.h"

/* Finds the current context of this thread and its grant. Without a context, returns the driver's
 * error.
 *
 * Some contexts are created without a call that the shim sees: the CUDA runtime can retain the
 * primary context through a private table. Such a context is charged here, at the first allocation
 * in it. */
CUresult penstock_here(CUcontext *context, int *grant);

/* Returns true if this context is charged. Cheap for the context that the thread used last. */
bool penstock_context_is_known(CUcontext context);

/* Charges the grant's context reserve; call before the driver creates a context. Returns
 * CUDA_ERROR_INVALID_DEVICE if the device was not granted. */
CUresult penstock_context_admit(CUdevice device, int *grant, uint64_t *bytes);

/* Records the charge; call after the driver has created the context. */
void penstock_context_made(CUcontext context, int grant, uint64_t bytes);

/* Does the same as penstock_context_made, but returns false if the context already has a record. */
bool penstock_context_try_made(CUcontext context, int grant, uint64_t bytes);

/* Call `leave` before and `left` after a driver call that destroys a context and everything in it.
 * The context's objects are taken out of the table beforehand because the driver may reuse its
 * handle at once. `left` uncharges them, or puts them back if the driver refused, and returns
 * `result`. */
typedef struct penstock_departure {
  penstock_object *all;
  size_t count;
} penstock_departure;
penstock_departure penstock_context_leave(CUcontext context);
CUresult penstock_context_left(penstock_departure *departure, CUresult result);
