/* Small blocks whose addresses the driver does not tell: arrays, the code and variables of modules.
 *
 * They share slabs with each other and with what is seen (slabs.h). Charged is a bound of the slabs
 * that are open for them alone: packed as the driver packs, in room that earlier ones left or gave
 * back; one more for each slab that is left by all blocks that are seen and may hold a hidden one;
 * never more slabs than blocks. Plain numbers: the caller locks, charges and gives back.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PENSTOCK_HOLES 16

typedef struct penstock_hidden {
  uint64_t blocks;
  uint64_t slabs;                 /* charged for them */
  uint64_t made;                  /* counts blocks ever made */
  uint64_t holes[PENSTOCK_HOLES]; /* bytes in a row that are free in those slabs */
} penstock_hidden;

/* Makes `count` blocks of `bytes` together in the slabs that are charged. False: no room. */
bool penstock_hidden_place(penstock_hidden *hidden, uint64_t bytes, unsigned count);

/* The same in one more slab, which is paid for. */
void penstock_hidden_open(penstock_hidden *hidden, uint64_t bytes, unsigned count);

/* They are gone. Returns how many slabs are to be given back. */
uint64_t penstock_hidden_leave(penstock_hidden *hidden, uint64_t bytes, unsigned count);

/* The last block that is seen leaves a slab that was opened when `made` was so. True: a hidden one
 * may lie there, and the slab stays charged for it. */
bool penstock_hidden_inherit(penstock_hidden *hidden, uint64_t made);
