/* The slabs that this process's small allocations lie in.
 *
 * A driver serves allocations of up to 1 MiB from slabs of 2 MiB, takes a slab of the device when
 * none has room, and returns it when its last block is freed. So a slab is charged from the first
 * block that is seen in it to the last, by its address; who charges and gives back is the caller
 * (block.h). The table is updated after the driver has allocated, and after it has freed: what a
 * block lies in is never given back before the block.
 *
 * A block may also be asked for without 2 MiB in hand, when an open slab has room: a seek. It is
 * sure to find its slab charged, because a slab that empties meanwhile stays until all the seeks
 * end that were under way then (two phases take turns). Room is known from a bitmap of the blocks,
 * which may lack one for an instant, and never shows one too many.
 *
 * The table of a fork's child is empty: what the parent holds is not the child's to give back.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PENSTOCK_SLAB_BYTES ((uint64_t)2 << 20)        /* of all drivers and devices so far */
#define PENSTOCK_SMALL_BYTES (PENSTOCK_SLAB_BYTES / 2) /* more has slabs of its own */

typedef enum penstock_slab_entry {
  PENSTOCK_SLAB_JOINED,  /* the slab was open, and is charged */
  PENSTOCK_SLAB_OPENED,  /* it is now; what was paid for it is the slab's */
  PENSTOCK_SLAB_UNPAID,  /* not open, and nothing was paid: not entered */
  PENSTOCK_SLAB_UNKNOWN, /* no memory to remember it: not entered */
} penstock_slab_entry;

/* The driver made a block of `bytes` at `address`. `is_paid`: 2 MiB are in hand for a new slab;
 * `hidden_made`: as penstock_slab_hidden_made said before the driver was asked. */
penstock_slab_entry penstock_slab_enter(int grant, uint64_t address, uint64_t bytes,
                                        bool is_managed, bool is_paid, uint64_t hidden_made);

/* The driver freed it. Returns how many slabs are to be given back. */
uint64_t penstock_slab_leave(int grant, uint64_t address, uint64_t bytes);

/* True when an open slab has room for `bytes`: the driver may be asked without 2 MiB in hand, and
 * the seek is to be ended. Managed memory has slabs of its own, or, with drivers that do not share
 * them, never room. */
bool penstock_slab_seek(int grant, uint64_t bytes, bool is_managed, uint8_t *phase);

/* The block was entered, or freed. Returns how many slabs are to be given back. */
uint64_t penstock_slab_sought(int grant, uint8_t phase);

/* Counts the hidden blocks (hidden.h) that were made. */
uint64_t penstock_slab_hidden_made(int grant);

/* Before the driver makes hidden blocks. False: nothing was paid and no slab has room. `is_used`:
 * what was paid for another slab is that slab's. */
bool penstock_slab_hide(int grant, uint64_t bytes, unsigned count, bool is_paid, bool *is_used);

/* After it freed them, or did not make them. Returns how many slabs are to be given back. */
uint64_t penstock_slab_unhide(int grant, uint64_t bytes, unsigned count);
