/* One allocation of linear memory: what it is charged before the driver is asked, and what stays
 * charged.
 *
 * More than 1 MiB has slabs of its own. Less lies in a slab with others: 2 MiB are reserved first,
 * and given back when the block falls into a slab that is charged already (slabs.h). Where 2 MiB
 * do not fit, the driver is asked only if such a slab has room; should it open another one after
 * all, the block is freed at once.
 */
#pragma once

#include "charge.h"

typedef struct penstock_block {
  uint64_t reserved;    /* bytes in hand */
  uint64_t hidden_made; /* before the driver was asked */
  int grant;
  bool is_managed;
  bool is_sought; /* without reserve: in a slab that is open */
  uint8_t phase;  /* of the seek */
} penstock_block;

/* Before the driver is asked. Success: to be kept, or dropped. */
CUresult penstock_block_admit(penstock_block *block, int grant, uint64_t bytes, bool is_managed);

/* The driver allocated `bytes` at `address`: charges them as they lie, and remembers that. Refused:
 * to be freed, then dropped. */
CUresult penstock_block_keep(penstock_block *block, CUdeviceptr address, uint64_t bytes,
                             CUcontext context);

/* The driver has nothing (any more). Gives back what was reserved. */
void penstock_block_drop(penstock_block *block);
