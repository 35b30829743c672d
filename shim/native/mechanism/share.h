/* Shares: memory that several processes of a tenant hold, charged once and for as long as any of
 * them lives and holds it.
 *
 * A share is a slot that belongs to no process (PENSTOCK_SLOT_SHARED). Its charge is moved there
 * from the process that hands the memory out, and each process that holds the memory has a bit in
 * it. Whoever takes the last bit out, be it a release, a close, or a reaper on behalf of a dead
 * process, reaps the share like any dead slot. So it does not matter who ends first, or how.
 *
 * Moving is one operation of the process's own slot that changes no total:
 *   1. a free slot z is taken, as by a reaper: it goes back if this process dies
 *   2. intent[s] = (-d, to z, k)
 *   3. charged[z] = d               not valid yet: a reaper of s empties z before it goes on, and
 *                                   a reaper of z leaves it alone as long as intent[s] is open
 *   4. charged[s] = (charged - d, k)                               moved
 *   5. the maker's bit in z, then z's state: others can join
 *
 * Joining sets the bit, then looks whether the share is still one; reaping a share makes it none,
 * then looks at the bits. One of the two sees the other.
 *
 * Memory that was handed out as a descriptor is held by the descriptor as well, in whatever process
 * or socket that is. The share has a mark (mark.h) then, which all descriptors of its memory bear.
 * While it is there the share is held; whoever finds all of them closed, and no process's bit,
 * takes it away and reaps the share. A closed descriptor is not opened again: who joined by it did
 * so before, and its bit is seen.
 */
#pragma once

#include "mechanism/ledger.h"
#include "mechanism/mark.h"

/* A share as its holders know it: slot and generation; 0: none. */
typedef uint64_t penstock_share;

/* Shares take slots below this: processes always find one. */
#define PENSTOCK_SHARE_SLOTS (PENSTOCK_MAX_SLOTS / 4 * 3)

/* Moves `bytes` of what this process is charged on `device` into a new share that it holds, known
 * as `key` (not 0; older shares of that name can no longer be joined). 0 when there is no slot for
 * it or this process is not charged that much: nothing has changed then. Keeps errno. */
penstock_share penstock_share_make(penstock_region *region, unsigned device, uint64_t bytes,
                                   uint64_t key);

/* From now on a share that this process made is known as `key` (not 0), and no other is. */
void penstock_share_rename(penstock_region *region, penstock_share share, uint64_t key);

/* From now on whoever has the file behind `descriptor` open holds the share, which this process
 * holds, and can join it by the file's mark. False: the kernel bears no marks, and nothing has
 * changed. Keeps errno. */
bool penstock_share_mark(penstock_region *region, penstock_share share, int descriptor);

/* What the share is charged on `device`. */
uint64_t penstock_share_bytes(const penstock_region *region, penstock_share share, unsigned device);

/* Whether another process holds the share; whether that or an open descriptor does. */
bool penstock_share_has_other_holder(const penstock_region *region, penstock_share share);
bool penstock_share_is_held_elsewhere(const penstock_region *region, penstock_share share);

/* Holds the share known as `key`, or of that mark. 0 when there is none. */
penstock_share penstock_share_join(penstock_region *region, uint64_t key);

/* This process holds it no more. Once for each share, however often it was joined. Keeps errno. */
void penstock_share_leave(penstock_region *region, penstock_share share);

/* The operations of the ledger on a share that this process made, for memory that grows and
 * shrinks while it is shared. Refusals are not counted. */
penstock_error penstock_share_attempt(penstock_region *region, penstock_share share,
                                      unsigned device, uint64_t bytes);
void penstock_share_release(penstock_region *region, penstock_share share, unsigned device,
                            uint64_t bytes);

/* Reaps shares whose memory descriptors alone held until these were closed; how many. Keeps errno.
 */
unsigned penstock_shares_look(penstock_usage_page *usage, const penstock_identity *self);

/* For reapers. Whether anybody holds the slot's memory, or may. */
bool penstock_share_is_held(const penstock_slot *slot);

/* The process of `slot` is dead: its bits go. */
void penstock_share_forget(penstock_usage_page *usage, uint32_t slot);

/* Whether the bytes in `slot` are still on their way there. */
bool penstock_share_is_arriving(const penstock_usage_page *usage, uint32_t slot);

static inline uint32_t penstock_share_slot(penstock_share share) { return (uint32_t)share; }
