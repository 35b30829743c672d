/* This process as a member of its tenant: its pages and its slot.
 *
 * There is no constructor, signal handler or thread, so nothing happens before the first driver
 * call. The child of a fork inherits no slot but claims its own. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "mechanism/region.h"

typedef struct penstock_process {
  penstock_region
      region; /* the quota page (read-only), the usage page (shared) and this process's slot */
  char directory[]; /* the tenant's directory when the process attached */
} penstock_process;

/* Attaches the process to its tenant at the first call. Returns NULL if no valid quota page can be
 * read; the caller must then return CUDA_ERROR_SYSTEM_NOT_READY, because enforcement never fails
 * open. Cheap once attached. */
penstock_process *penstock_process_get(void);
