/* Hidden blocks: small allocations whose addresses the driver does not report (arrays, and the code
 * and variables of modules).
 *
 * Hidden blocks share slabs with each other and with blocks whose addresses are known (slabs.h).
 * The charge is an upper bound of the slabs that are open for hidden blocks alone. The blocks are
 * packed as the driver packs them, into room that earlier blocks left or freed. When all known
 * blocks have left a slab that may contain a hidden block, that slab stays charged. There are never
 * more slabs than blocks. This file only calculates: the caller locks, charges and uncharges. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PENSTOCK_HOLES 16

typedef struct penstock_hidden {
  uint64_t blocks;
  uint64_t slabs;                 /* number of slabs charged for hidden blocks */
  uint64_t made;                  /* number of blocks ever allocated */
  uint64_t holes[PENSTOCK_HOLES]; /* contiguous free bytes in those slabs */
} penstock_hidden;

/* Places `count` blocks of `bytes` in total into the charged slabs. Returns false if they have no
 * room. */
bool penstock_hidden_place(penstock_hidden *hidden, uint64_t bytes, unsigned count);

/* Places the blocks into one more slab, which the caller has charged. */
void penstock_hidden_open(penstock_hidden *hidden, uint64_t bytes, unsigned count);

/* Removes blocks. Returns how many slabs to uncharge. */
uint64_t penstock_hidden_leave(penstock_hidden *hidden, uint64_t bytes, unsigned count);

/* Call when the last known block leaves a slab that was opened when `made` had this value. Returns
 * true if a hidden block may lie in that slab, which then stays charged. */
bool penstock_hidden_keep_slab(penstock_hidden *hidden, uint64_t made);
