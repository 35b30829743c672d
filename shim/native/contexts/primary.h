/* Primary contexts. Each is charged once for all its users, in whatever order threads retain,
 * release and reset it. No lock is held across the driver's calls, so what counts is the state
 * after a call. A context's id distinguishes it from an earlier one at the same address. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct penstock_primary_retain {
  CUdevice device;
  int grant;
  bool reserved;     /* this thread has charged a context that the retain may create */
  bool refused_late; /* the context was created without a charge, does not fit, and must be released
                      */
} penstock_primary_retain;

/* Charges the primary context if it is not charged yet; call before a retain. */
CUresult penstock_primary_admit(CUdevice device, penstock_primary_retain *retain);

/* Accounts for a finished retain; `result` is the driver's result. */
CUresult penstock_primary_retained(penstock_primary_retain *retain, CUcontext context,
                                   CUresult result);

/* Returns the charged primary context of the device, or NULL if there is none. `id` (may be NULL)
 * receives its id. */
CUcontext penstock_primary_context(CUdevice device, unsigned long long *id);

/* Returns the context's id, which no other context has, or 0 with drivers before CUDA 12. */
unsigned long long penstock_primary_id_of(CUcontext context);

/* Returns the number of primary contexts that the device has had. */
uint64_t penstock_primary_generation(CUdevice device);

/* Call when the driver has no primary context on this device. Uncharges the context that is still
 * charged, unless it is of a newer generation. */
void penstock_primary_gone(CUdevice device, uint64_t generation);

/* Records the device's primary context if it is this context, which was charged late. */
void penstock_primary_adopt(CUdevice device, CUcontext context);
