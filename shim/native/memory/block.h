/* A block: one allocation of linear memory, charged before and after the driver call.
 *
 * A block of more than 1 MiB has slabs of its own. A smaller block shares a slab: 2 MiB are
 * reserved first, and are uncharged if the driver places the block in a slab that is charged
 * already (slabs.h). If the quota has no room for 2 MiB, the driver is called only if a charged
 * slab has room. If the driver opens a new slab after all, the block is freed at once. */
#pragma once

#include "memory/charge.h"

typedef struct penstock_block {
  uint64_t reserved;    /* bytes charged for this block and not yet assigned to a slab */
  uint64_t hidden_made; /* value of penstock_slab_hidden_made() before the driver call */
  int grant;
  bool is_managed;
  bool is_unreserved; /* allocated without a reservation because an open slab has room */
  uint8_t phase;      /* phase from penstock_slab_begin_unreserved */
} penstock_block;

/* Charges or reserves memory for a block; call before the driver call. If it succeeds, `keep` or
 * `drop` must follow. */
CUresult penstock_block_admit(penstock_block *block, int grant, uint64_t bytes, bool is_managed);

/* Charges the slabs that an allocated block lies in, and records the block. `bytes` and `address`
 * are what the driver allocated. If the charge is refused, free the memory, then call `drop`. */
CUresult penstock_block_keep(penstock_block *block, CUdeviceptr address, uint64_t bytes,
                             CUcontext context);

/* Uncharges the reservation after the driver has not allocated the block or has freed it. */
void penstock_block_drop(penstock_block *block);
