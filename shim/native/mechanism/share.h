/* Shares: memory that several processes of a tenant hold, charged once and for as long as any of
 * them lives and holds it.
 *
 * A share is a slot that belongs to no process (PENSTOCK_SLOT_SHARED). The charge moves there
 * from the process that exports the memory, and each process that holds the memory has a bit in the
 * share. The process that clears the last bit, by a release, a close, or as a reaper of a dead
 * process, reaps the share like any dead slot. So it does not matter which process ends first, or
 * how.
 *
 * Moving is one operation of the process's own slot that changes no total:
 *   1. a free slot z is taken, as by a reaper: it goes back if this process dies
 *   2. intent[s] = (-d, to z, k)
 *   3. charged[z] = d               not valid yet: a reaper of s empties z before it goes on, and
 *                                   a reaper of z leaves it alone as long as intent[s] is open
 *   4. charged[s] = (charged - d, k)                               moved
 *   5. the maker's bit in z, then z's state: others can join
 *
 * Joining sets the bit, then checks that the slot is still a share. Reaping a share changes its
 * state, then checks the bits. One of the two sees the other.
 *
 * A descriptor of exported memory holds the memory as well, in whatever process or socket it is.
 * The share then has a mark (mark.h), which all descriptors of its memory bear. While the mark is
 * there the share is held. A process that finds all descriptors closed, and no process's bit,
 * removes the mark and reaps the share. A closed descriptor is not opened again: a process that
 * joined by it did so before, and its bit is seen.
 */
#pragma once

#include "mechanism/ledger.h"
#include "mechanism/mark.h"

/* A holder's reference to a share: slot and generation; 0: none. */
typedef uint64_t penstock_share;

/* Shares use only slots below this, so that processes always find one. */
#define PENSTOCK_SHARE_SLOTS (PENSTOCK_MAX_SLOTS / 4 * 3)

/* Moves `bytes` of this process's charge on `device` into a new share that it holds, known as `key`
 * (not 0; older shares of that name can no longer be joined). 0 when there is no slot for it or the
 * process is charged less than that: nothing has changed then. Keeps errno. */
penstock_share penstock_share_make(penstock_region *region, unsigned device, uint64_t bytes,
                                   uint64_t key);

/* From now on a share that this process made is known as `key` (not 0), and no other share is. */
void penstock_share_rename(penstock_region *region, penstock_share share, uint64_t key);

/* From now on every process that has the file behind `descriptor` open holds the share, as this
 * process does, and can join it by the file's mark. False: the kernel does not support marks, and
 * nothing has changed. Keeps errno. */
bool penstock_share_mark(penstock_region *region, penstock_share share, int descriptor);

/* Bytes charged to the share on `device`. */
uint64_t penstock_share_bytes(const penstock_region *region, penstock_share share, unsigned device);

/* Whether another process holds the share; whether another process or an open descriptor does. */
bool penstock_share_has_other_holder(const penstock_region *region, penstock_share share);
bool penstock_share_is_held_elsewhere(const penstock_region *region, penstock_share share);

/* Joins the share known as `key`, or with that mark. 0 when there is none. */
penstock_share penstock_share_join(penstock_region *region, uint64_t key);

/* Ends this process's hold. Once for each share, however often it was joined. Keeps errno. */
void penstock_share_leave(penstock_region *region, penstock_share share);

/* Ledger operations on a share that this process made, for memory that grows and shrinks while it
 * is shared. Refusals are not counted. */
penstock_error penstock_share_attempt(penstock_region *region, penstock_share share,
                                      unsigned device, uint64_t bytes);
void penstock_share_release(penstock_region *region, penstock_share share, unsigned device,
                            uint64_t bytes);

/* Reaps shares that only descriptors held, now closed; returns how many. Keeps errno. */
unsigned penstock_shares_look(penstock_usage_page *usage, const penstock_identity *self);

/* For reapers: whether any process or descriptor holds the slot's memory, or may. */
bool penstock_share_is_held(const penstock_slot *slot);

/* The process of `slot` is dead: clears its bits. */
void penstock_share_forget(penstock_usage_page *usage, uint32_t slot);

/* Whether the move of bytes into `slot` is still open. */
bool penstock_share_is_arriving(const penstock_usage_page *usage, uint32_t slot);

static inline uint32_t penstock_share_slot(penstock_share share) { return (uint32_t)share; }
