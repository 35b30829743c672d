/* This process as a member of its tenant: pages mapped, slot claimed, devices matched to grants.
 *
 * Nothing happens before the first driver call; no constructor, no signal handler, no thread. The
 * child of a fork owns no slot: the state lies in a page that the kernel wipes on fork.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "mechanism/region.h"

typedef struct penstock_process {
  penstock_region region; /* quota (read-only) and usage (shared) pages, and this process's slot */
  /* Grant index of each CUDA ordinal; -1: a device that the tenant was not granted. */
  int grant_of_ordinal[PENSTOCK_MAX_DEVICES * 4];
  int ordinals;
  char directory[]; /* the tenant's, as it was when this process attached */
} penstock_process;

/* Attaches on first use; NULL when no valid quota page can be read: the caller then refuses with
 * CUDA_ERROR_SYSTEM_NOT_READY, for enforcement never fails open. Cheap once attached. */
penstock_process *penstock_process_get(void);

/* Grant index of the current context's device; -1 without a context or without a grant. */
int penstock_current_grant(void);

/* Grant index of a CUDA device ordinal; -1 when it was not granted. */
int penstock_grant_of(CUdevice device);
