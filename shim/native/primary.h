/* Primary contexts: charged once for all who retain one, in whatever order threads retain, release
 * and reset it. No lock is held across the driver's call, so what a thread finds afterwards
 * decides: a context is told from an earlier one at the same address by its id. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct penstock_primary_retain {
  CUdevice device;
  int grant;
  bool reserved;     /* this thread charged the context that may come to be */
  bool refused_late; /* it came to be meanwhile and does not fit: to be released */
} penstock_primary_retain;

/* Before a retain: charges the context if there is none yet. */
CUresult penstock_primary_admit(CUdevice device, penstock_primary_retain *retain);

/* After it; `result` is the driver's answer. */
CUresult penstock_primary_retained(penstock_primary_retain *retain, CUcontext context,
                                   CUresult result);

/* The device's primary context as the ledger knows it; NULL: none. `id` (may be NULL): its own. */
CUcontext penstock_primary_context(CUdevice device, unsigned long long *id);

/* What tells a context from an earlier one at the same address; 0 from drivers before CUDA 12. */
unsigned long long penstock_primary_id_of(CUcontext context);

/* Counts the primary contexts that the device has had. */
uint64_t penstock_primary_generation(CUdevice device);

/* The driver has no primary context on this device, and the ledger's is of that generation still:
 * it is given back. */
void penstock_primary_gone(CUdevice device, uint64_t generation);

/* A charged context that came about unseen: it may be the device's primary one. */
void penstock_primary_adopt(CUdevice device, CUcontext context);
