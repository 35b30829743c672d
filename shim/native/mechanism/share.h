/* A share is memory that several processes of a tenant hold. It is charged once, until the last
 * process that holds it has released it or ended.
 *
 * A share is a slot that belongs to no process (PENSTOCK_SLOT_SHARED). The charge moves there from
 * the process that exports the memory, and each process that holds the memory has a bit in the
 * share. The process that clears the last bit reaps the share like any dead slot, whether it does
 * so by a release, by a close, or as the reaper of a dead process. It therefore does not matter
 * which process ends first, or how.
 *
 * A move is one operation of the process's own slot that changes no total:
 *   1. a free slot z is taken as by a reaper, so that it is freed again if this process dies
 *   2. intent[s] = (-d, to z, k)
 *   3. charged[z] = d               not valid yet: a reaper of s empties z before it continues, and
 *                                   a reaper of z leaves z alone while intent[s] is open
 *   4. charged[s] = (charged - d, k)                               the bytes have moved
 *   5. the maker's bit in z is set, then z's state, so that others can join
 *
 * A process that joins sets its bit and then checks that the slot is still a share. A process that
 * reaps a share changes its state and then checks the bits. At least one of the two sees the other.
 *
 * A descriptor of exported memory also holds the memory, in any process or socket. The share then
 * has a mark (mark.h), which all descriptors of its memory carry. The share is held while the mark
 * exists. A process that finds all descriptors closed and no bit set removes the mark and reaps the
 * share. This is safe because a closed descriptor is never opened again: a process that joined
 * through it did so earlier, and its bit is seen.
 */
#pragma once

#include "mechanism/ledger.h"
#include "mechanism/mark.h"

/* A holder's reference to a share: slot and generation, 0 if none. */
typedef uint64_t penstock_share;

/* Shares use only slots below this index, so that some slots are always left for processes. */
#define PENSTOCK_SHARE_SLOTS (PENSTOCK_MAX_SLOTS / 4 * 3)

/* Moves `bytes` of this process's charge on `device` into a new share that this process holds and
 * that is known as `key`, which must not be 0. Older shares with this key can no longer be joined.
 * Returns 0, and changes nothing, if there is no free slot or the process is charged less than
 * `bytes`. Preserves errno. */
penstock_share penstock_share_make(penstock_region *region, unsigned device, uint64_t bytes,
                                   uint64_t key);

/* Renames a share that this process made to `key`, which must not be 0. Other shares lose this
 * key. */
void penstock_share_rename(penstock_region *region, penstock_share share, uint64_t key);

/* Marks a share as held by every process that has the file of `descriptor` open; each of them can
 * join it by the file's mark. Returns false, and changes nothing, if the kernel does not support
 * marks. Preserves errno. */
bool penstock_share_mark(penstock_region *region, penstock_share share, int descriptor);

/* Returns the bytes charged to the share on `device`. */
uint64_t penstock_share_bytes(const penstock_region *region, penstock_share share, unsigned device);

/* The first returns whether another process holds the share; the second, whether another process or
 * an open descriptor does. */
bool penstock_share_has_other_holder(const penstock_region *region, penstock_share share);
bool penstock_share_is_held_elsewhere(const penstock_region *region, penstock_share share);

/* Joins the share whose key or mark is `key`. Returns 0 if there is none. */
penstock_share penstock_share_join(penstock_region *region, uint64_t key);

/* Ends this process's hold on the share. One call is enough, however often the process joined.
 * Preserves errno. */
void penstock_share_leave(penstock_region *region, penstock_share share);

/* Reserve and release memory in a share that this process made, for memory that grows and shrinks
 * while it is shared. Refusals are not counted. */
penstock_error penstock_share_attempt(penstock_region *region, penstock_share share,
                                      unsigned device, uint64_t bytes);
void penstock_share_release(penstock_region *region, penstock_share share, unsigned device,
                            uint64_t bytes);

/* Reaps the shares that were held only by descriptors that are now closed, and returns how many.
 * Preserves errno. */
unsigned penstock_shares_look(penstock_usage_page *usage, const penstock_identity *self);

/* Returns whether a process or descriptor holds the slot's memory, or may hold it. For reapers. */
bool penstock_share_is_held(const penstock_slot *slot);

/* Clears the bits of a dead process, which owned `slot`, in all shares. */
void penstock_share_forget(penstock_usage_page *usage, uint32_t slot);

/* Returns whether a move of bytes into `slot` is still open. */
bool penstock_share_is_arriving(const penstock_usage_page *usage, uint32_t slot);

static inline uint32_t penstock_share_slot(penstock_share share) { return (uint32_t)share; }
