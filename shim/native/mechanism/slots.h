/* Slots record which process owns which part of the usage page.
 *
 * A process claims a slot by one compare-and-swap of its owner word (abi/usage.h) and does not
 * return it at exit. A process may be killed at any instruction, so a slot becomes free only when
 * another process finds that its owner is dead and reaps it (reap.h). A process may own several
 * slots if it has loaded the library several times (dlmopen).
 *
 * A SHARED slot belongs to no process, and is dead when it has no holder (share.h).
 *
 * A process is dead if the writer of the quota page has marked it so. A process in the same pid
 * namespace is also dead if there is no such pid, or if the pid has another start time, is a zombie
 * without threads, or runs another program image (exec keeps pid and start time, but the driver has
 * freed everything). In case of doubt, a process counts as alive.
 */
#pragma once

#include <sys/types.h>

#include "mechanism/region.h"

#define PENSTOCK_NAMESPACE_UNKNOWN PENSTOCK_MAX_PID_NAMESPACES

/* Identity of this process, in the form that owner words encode. */
typedef struct penstock_identity {
  uint64_t start_ticks; /* field 22 of /proc/self/stat, 0 without /proc */
  uint64_t image;       /* field 28 of /proc/self/stat: start of the stack, 0 if unknown */
  /* key of the process's namespaces in the usage page's table, 0 if unknown */
  uint64_t namespaces;
  uint32_t pid;
  uint32_t pid_namespace; /* index in the usage page's table, or PENSTOCK_NAMESPACE_UNKNOWN */
  /* /proc shows this pid namespace, so that other pids can be looked up there */
  bool proc_is_ours;
} penstock_identity;

/* This process's slot and the locks around it. Wiped on fork, because the child owns nothing. */
struct penstock_claim {
  uint32_t lock;  /* guards claiming */
  uint32_t owned; /* nonzero if `slot` and `owner` are valid */
  uint32_t slot;
  /* nonzero if the kernel cannot wipe the claim on fork, so that `identity.pid` must be compared
   * with getpid() */
  uint32_t compare_pid;
  uint64_t owner; /* the owner word that this process stored */
  /* CLOCK_MONOTONIC time before which penstock_reap_for_refusal makes no quick check */
  uint64_t next_quick_reap_ns;
  uint64_t next_thorough_reap_ns;
  penstock_identity identity;
  /* serialise this slot's ledger operations on each device */
  uint32_t device_locks[PENSTOCK_MAX_DEVICES];
};

/* Returns the index of this process's slot, and claims one if it has none (at first use, or in the
 * child of a fork). On failure returns -PENSTOCK_E_NO_SLOT, -PENSTOCK_E_READ_ONLY or
 * -PENSTOCK_E_NO_MEMORY. Takes a few nanoseconds once a slot is claimed. */
int penstock_slot_own(penstock_region *region);

/* Returns the index of this process's slot without claiming one, or a negative value if it owns
 * none. */
int penstock_slot_owned(const penstock_region *region);

/* Releases the slot with all its charges. For tools and tests; a tenant's process never calls
 * it. */
void penstock_slot_release(penstock_region *region);

/* Takes a free slot in [from, to) as a reaper would (state REAPING, this process's identity).
 * Returns its index and sets `owner` to its owner word, or returns a negative value if there is
 * none. For processes that own a slot. */
int penstock_slot_take_free(penstock_region *region, uint32_t from, uint32_t to, uint64_t *owner);

/* Fills in this process's identity and adds its namespace to the usage page's table. */
void penstock_identity_read(penstock_usage_page *usage, penstock_identity *out);

/* Sets `pid_namespace` of an identity that was read earlier, from this page's table. */
void penstock_identity_find(const penstock_usage_page *usage, penstock_identity *identity);

/* Returns true if the owner `owner` of slot `slot` is certainly dead. `thorough` also reads /proc
 * (about 10 us), which finds reused pids, zombies and replaced images. `quota` may be NULL. */
bool penstock_slot_is_dead(const penstock_usage_page *usage, const penstock_quota_page *quota,
                           const penstock_identity *self, uint32_t slot, uint64_t owner,
                           bool thorough);

/* Returns the number of slots that were ever claimed: no slot at or above this index was. */
static inline uint32_t penstock_slots_high(const penstock_usage_page *usage) {
  uint64_t high = __atomic_load_n(&usage->slots_high, __ATOMIC_ACQUIRE);
  return high < PENSTOCK_MAX_SLOTS ? (uint32_t)high : PENSTOCK_MAX_SLOTS;
}

/* Functions that pack and unpack owner words. */
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
