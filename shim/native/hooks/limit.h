/* Local memory of a context's threads, which its stack limit and its kernels share (limit.c). */
#pragma once

#include <cuda.h>
#include <stdint.h>

/* What a kernel raised the context's charge by, to be taken back if the driver refuses it. */
typedef struct penstock_local_raise {
  CUcontext context;
  uint64_t from, to; /* bytes a thread; `to` 0: nothing was raised */
  uint64_t relied;   /* how many others relied on what it was before */
} penstock_local_raise;

/* Before a kernel that needs `bytes` of it a thread runs in the context: charges what the driver
 * will take for that, and keep. */
CUresult penstock_local_memory_admit(CUcontext context, int grant, uint64_t bytes,
                                     penstock_local_raise *raise);

/* The driver refused, and nobody has relied on it since. */
void penstock_local_memory_undo(const penstock_local_raise *raise);
