/* Local memory of a context's threads, which its stack limit and its kernels determine
 * (limit.c). */
#pragma once

#include <cuda.h>
#include <stdint.h>

/* A raise of the context's charge for a kernel, which is undone if the driver refuses the
 * launch. */
typedef struct penstock_local_raise {
  CUcontext context;
  uint64_t from, to; /* bytes per thread; `to` is 0 if nothing was raised */
  uint64_t relied;   /* number of launches that relied on the former need */
} penstock_local_raise;

/* Charges the local memory that the driver will allocate for a kernel and then keep; call before a
 * kernel that needs `bytes` of local memory per thread runs in the context. */
CUresult penstock_local_memory_admit(CUcontext context, int grant, uint64_t bytes,
                                     penstock_local_raise *raise);

/* Undoes the raise after the driver refused the launch, unless other launches rely on the raised
 * need by now. */
void penstock_local_memory_undo(const penstock_local_raise *raise);
