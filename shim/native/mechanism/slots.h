/* Slots: which process owns which part of the usage page.
 *
 * A slot is claimed by one compare-and-swap of its owner word (abi/usage.h) and is never returned
 * at exit. A process may be killed at any instruction, so a slot becomes free only when another
 * process finds its owner dead and reaps it (reap.h). A process may own several slots (copies of
 * the library loaded by dlmopen).
 *
 * A SHARED slot belongs to no process: it is dead when it has no holder (share.h).
 *
 * A process is dead if the quota page's writer says so; or if, in the same pid namespace, there is
 * no such pid, or the pid has another start time, is a zombie without threads, or has another
 * program image (exec keeps pid and start time, but the driver has freed everything). In doubt a
 * process is alive.
 */
#pragma once

#include <sys/types.h>

#include "mechanism/region.h"

#define PENSTOCK_NAMESPACE_UNKNOWN PENSTOCK_MAX_PID_NAMESPACES

/* Identity of this process, as owner words encode it. */
typedef struct penstock_identity {
  uint64_t start_ticks; /* field 22 of /proc/self/stat; 0: no /proc */
  uint64_t image;       /* field 28 of /proc/self/stat: start of the stack; 0: unknown */
  uint64_t namespaces;  /* key of its namespaces in usage pages' tables; 0: not known */
  uint32_t pid;
  uint32_t pid_namespace; /* index in the usage page's table; PENSTOCK_NAMESPACE_UNKNOWN */
  bool proc_is_ours;      /* /proc shows this pid namespace: other pids can be looked up there */
} penstock_identity;

/* This process's slot and the locks around it. Zero after a fork: the child owns nothing. */
struct penstock_claim {
  uint32_t lock;  /* guards claiming */
  uint32_t owned; /* `slot` and `owner` are valid */
  uint32_t slot;
  uint32_t compare_pid; /* the kernel cannot wipe on fork: compare `identity.pid` with getpid() */
  uint64_t owner;       /* the owner word that this process stored */
  uint64_t next_quick_reap_ns; /* not before, CLOCK_MONOTONIC: see penstock_reap_for_refusal */
  uint64_t next_thorough_reap_ns;
  penstock_identity identity;
  uint32_t device_locks[PENSTOCK_MAX_DEVICES]; /* serialise this slot's ledger operations */
};

/* Index of this process's slot; claims one if it has none (first use, or the child of a fork).
 * Negative: -PENSTOCK_E_NO_SLOT, -PENSTOCK_E_READ_ONLY or -PENSTOCK_E_NO_MEMORY. A few
 * nanoseconds once claimed. */
int penstock_slot_own(penstock_region *region);

/* Index of this process's slot, without claiming one: negative when it owns none. */
int penstock_slot_owned(const penstock_region *region);

/* Returns the slot with all its charges. For tools and tests: a tenant's process just ends. */
void penstock_slot_release(penstock_region *region);

/* Takes a free slot in [from, to) as a reaper would (state REAPING, this process's identity).
 * Returns its index and owner word; negative when there is none. For processes that own a slot. */
int penstock_slot_take_free(penstock_region *region, uint32_t from, uint32_t to, uint64_t *owner);

/* Fills in this process's identity and enters its namespace into the usage page's table. */
void penstock_identity_read(penstock_usage_page *usage, penstock_identity *out);

/* Sets `pid_namespace` of an identity that was read before from this page's table. */
void penstock_identity_find(const penstock_usage_page *usage, penstock_identity *identity);

/* True when the owner `owner` of slot `slot` is certainly dead. `thorough` also reads /proc (about
 * 10 us), which finds reused pids, zombies and replaced images. `quota` may be NULL. */
bool penstock_slot_is_dead(const penstock_usage_page *usage, const penstock_quota_page *quota,
                           const penstock_identity *self, uint32_t slot, uint64_t owner,
                           bool thorough);

/* Packing of owner words. */
static inline uint64_t penstock_owner_pack(uint32_t state, uint32_t pid_namespace, uint32_t pid,
                                           uint32_t generation, uint64_t start_ticks) {
  return (uint64_t)(state & 3) << 62 | (uint64_t)(pid_namespace & 0xff) << 54 |
         (uint64_t)(pid & 0x3fffff) << 32 | (uint64_t)(generation & 0xf) << 28 |
         (start_ticks & 0xfffffff);
}
static inline uint64_t penstock_owner_with_state(uint64_t owner, uint32_t state) {
  return (owner & ~((uint64_t)3 << 62)) | (uint64_t)state << 62;
}
static inline uint32_t penstock_owner_state(uint64_t owner) { return owner >> 62; }
static inline uint32_t penstock_owner_namespace(uint64_t owner) { return owner >> 54 & 0xff; }
static inline uint32_t penstock_owner_pid(uint64_t owner) { return owner >> 32 & 0x3fffff; }
static inline uint32_t penstock_owner_generation(uint64_t owner) { return owner >> 28 & 0xf; }
static inline uint32_t penstock_owner_start(uint64_t owner) { return owner & 0xfffffff; }
