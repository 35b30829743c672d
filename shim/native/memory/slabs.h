/* The slabs in which this process's small allocations lie.
 *
 * A driver serves allocations of up to 1 MiB from slabs of 2 MiB. It takes a slab from the device
 * when none has room, and returns the slab when its last block is freed. So a slab is charged from
 * its first block until its last, by address; the caller charges and uncharges (block.h). The table
 * is updated after the driver has allocated and after it has freed, so a slab is never uncharged
 * before its blocks are gone.
 *
 * A block may also be allocated without reserving 2 MiB when an open slab has room. To keep that
 * slab charged, a slab that becomes empty stays in the table until all unreserved allocations that
 * were in flight at that time have ended. Two alternating phases identify these allocations, as in
 * RCU. Room is found in a bitmap of blocks, which may lack a block for an instant but never has one
 * too many.
 *
 * The child of a fork has an empty table, because it must not uncharge what its parent was
 * charged. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The size with all drivers and devices so far. */
#define PENSTOCK_SLAB_BYTES ((uint64_t)2 << 20)
#define PENSTOCK_SMALL_BYTES (PENSTOCK_SLAB_BYTES / 2) /* larger blocks have slabs of their own */

typedef enum penstock_slab_entry {
  PENSTOCK_SLAB_JOINED,  /* the slab was open and is charged */
  PENSTOCK_SLAB_OPENED,  /* the slab is new, and the caller's 2 MiB are its charge */
  PENSTOCK_SLAB_UNPAID,  /* the slab is new and not reserved for, so the block was not entered */
  PENSTOCK_SLAB_UNKNOWN, /* there was no memory to record the slab, so the block was not entered */
} penstock_slab_entry;

/* Enters a block that the driver allocated. `is_paid` is true if 2 MiB are reserved for a new slab.
 * `hidden_made` is the value of penstock_slab_hidden_made before the driver call. */
penstock_slab_entry penstock_slab_enter(int grant, uint64_t address, uint64_t bytes,
                                        bool is_managed, bool is_paid, uint64_t hidden_made);

/* Removes a block that the driver has freed. Returns how many slabs to uncharge. */
uint64_t penstock_slab_leave(int grant, uint64_t address, uint64_t bytes);

/* Returns true if an open slab has room for `bytes`. The driver may then be called without a
 * reservation, and `end_unreserved` must follow. Managed memory has slabs of its own; with drivers
 * that put each managed block into a slab of its own, it never has room. */
bool penstock_slab_begin_unreserved(int grant, uint64_t bytes, bool is_managed, uint8_t *phase);

/* Ends an unreserved allocation; call after the block was entered or freed. Returns how many slabs
 * to uncharge. */
uint64_t penstock_slab_end_unreserved(int grant, uint8_t phase);

/* Returns how many hidden blocks (hidden.h) were ever allocated. */
uint64_t penstock_slab_hidden_made(int grant);

/* Enters hidden blocks; call before the driver allocates them. Returns false if no slab has room
 * and no new slab was paid for. `is_used` receives whether the slab that was paid for is needed. */
bool penstock_slab_add_hidden(int grant, uint64_t bytes, unsigned count, bool is_paid,
                              bool *is_used);

/* Removes hidden blocks after the driver freed them or did not allocate them. Returns how many
 * slabs to uncharge. */
uint64_t penstock_slab_remove_hidden(int grant, uint64_t bytes, unsigned count);
