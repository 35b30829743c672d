#include "mechanism/slots.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/files.h"
#include "mechanism/clock.h"
#include "mechanism/lock.h"
#include "mechanism/reap.h"
#include "mechanism/share.h"

/* Number of slots that a claim checks for dead owners. It is small, so that the cost of a process's
 * first call does not depend on the number of processes, and large enough to keep up with processes
 * that end. */
#define PROBES_PER_CLAIM 8

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

typedef struct stat_line {
  uint64_t start_ticks;
  uint64_t image;
  uint64_t threads;
  uint32_t pid;
  char state;
} stat_line;

static ssize_t read_small(const char *path, char *buffer, size_t size) {
  int fd = penstock_file_open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return -1;
  ssize_t got = penstock_file_read(fd, buffer, size - 1);
  penstock_file_close(fd);
  if (got >= 0) buffer[got] = 0;
  return got;
}

/* Reads /proc/<who>/stat. The command may contain any characters, so fields are counted from the
 * last parenthesis. */
static bool read_stat(const char *who, stat_line *out) {
  char path[40], line[1024];
  snprintf(path, sizeof path, "/proc/%s/stat", who);
  if (read_small(path, line, sizeof line) <= 0) return false;
  const char *at = strrchr(line, ')');
  if (!at || at[1] != ' ') return false;
  memset(out, 0, sizeof *out);
  out->pid = (uint32_t)strtoul(line, NULL, 10);
  out->state = at[2];
  at += 2;
  for (int field = 4; field <= 28; field++) {
    at = strchr(at, ' ');
    if (!at) return false;
    at++;
    if (field == 20) out->threads = strtoull(at, NULL, 10);
    if (field == 22) out->start_ticks = strtoull(at, NULL, 10);
    if (field == 28) out->image = strtoull(at, NULL, 10);
  }
  return true;
}

static uint64_t inode_of(const char *path) {
  struct stat stat_;
  return stat(path, &stat_) == 0 ? (uint64_t)stat_.st_ino : 0;
}

static uint64_t own_namespaces(void) {
  uint64_t pid_inode = inode_of("/proc/self/ns/pid");
  return pid_inode ? (pid_inode & 0xffffffff) | inode_of("/proc/self/ns/time") << 32 : 0;
}

void penstock_identity_find(const penstock_usage_page *usage, penstock_identity *identity) {
  identity->pid_namespace = PENSTOCK_NAMESPACE_UNKNOWN;
  for (uint32_t i = 0; identity->namespaces && i < PENSTOCK_MAX_PID_NAMESPACES; i++) {
    uint64_t seen = __atomic_load_n(&usage->pid_namespaces[i], __ATOMIC_ACQUIRE);
    if (seen == identity->namespaces) identity->pid_namespace = i;
    if (seen == identity->namespaces || seen == 0) return;
  }
}

/* Adds `key` to the table if it is not there, by one compare-and-swap. */
static void enter_namespaces(penstock_usage_page *usage, uint64_t key) {
  for (uint32_t i = 0; key && i < PENSTOCK_MAX_PID_NAMESPACES; i++) {
    uint64_t seen = __atomic_load_n(&usage->pid_namespaces[i], __ATOMIC_ACQUIRE);
    if (seen == key ||
        (seen == 0 && __atomic_compare_exchange_n(&usage->pid_namespaces[i], &seen, key, 0,
                                                  __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)))
      return;
    if (seen == key) return;
  }
}

void penstock_identity_read(penstock_usage_page *usage, penstock_identity *out) {
  stat_line line;
  memset(out, 0, sizeof *out);
  out->pid = (uint32_t)getpid();
  out->pid_namespace = PENSTOCK_NAMESPACE_UNKNOWN;
  if (!read_stat("self", &line)) return;
  out->start_ticks = line.start_ticks;
  out->image = line.image;
  /* After unshare(CLONE_NEWPID) without a new /proc mount, /proc shows process IDs of another
   * namespace. */
  out->proc_is_ours = line.pid == out->pid;
  out->namespaces = own_namespaces();
  enter_namespaces(usage, out->namespaces);
  penstock_identity_find(usage, out);
}

static bool differs(uint64_t a, uint64_t b) { return a != 0 && b != 0 && a != b; }

/* Returns true if the process has called exec, which keeps its pid and start time. Only for LIVE
 * slots, because the image of a reaper is not recorded. */
static bool image_replaced(const penstock_usage_page *usage, uint32_t slot, uint64_t owner,
                           uint64_t image) {
  if (penstock_owner_state(owner) != PENSTOCK_SLOT_LIVE) return false;
  return differs(__atomic_load_n(&usage->slots[slot].image, __ATOMIC_ACQUIRE), image);
}

static bool start_differs(uint64_t owner, uint64_t start_ticks) {
  return differs(penstock_owner_start(owner), start_ticks & 0xfffffff);
}

bool penstock_slot_is_dead(const penstock_usage_page *usage, const penstock_quota_page *quota,
                           const penstock_identity *self, uint32_t slot, uint64_t owner,
                           bool thorough) {
  if (penstock_owner_state(owner) == PENSTOCK_SLOT_FREE) return false;
  if (penstock_owner_state(owner) == PENSTOCK_SLOT_SHARED) {
    return !penstock_share_is_held(&usage->slots[slot]);
  }
  if (quota && __atomic_load_n(&quota->dead_owners[slot], __ATOMIC_ACQUIRE) == owner) return true;
  uint32_t space = penstock_owner_namespace(owner);
  if (space == PENSTOCK_NAMESPACE_UNKNOWN || space != self->pid_namespace) return false;
  uint32_t pid = penstock_owner_pid(owner);
  if (pid == 0) return false;
  if (pid == self->pid) {
    return start_differs(owner, self->start_ticks) ||
           image_replaced(usage, slot, owner, self->image);
  }
  if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) return true;
  if (!thorough || !self->proc_is_ours) return false;
  char who[16];
  stat_line line;
  snprintf(who, sizeof who, "%u", pid);
  if (!read_stat(who, &line)) return false;
  if (start_differs(owner, line.start_ticks)) return true;
  /* A zombie's memory and files are gone, unless only its main thread has ended and others live
   * on. */
  if ((line.state == 'Z' || line.state == 'X') && line.threads <= 1) return true;
  return image_replaced(usage, slot, owner, line.image);
}

/* Allocates the memory behind a slot. If the page's file system is full, the failure occurs here
 * instead of as SIGBUS later. Returns true on old kernels, which lack the system call. */
static bool slot_has_memory(penstock_usage_page *usage, uint32_t slot) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
  uintptr_t begin = (uintptr_t)&usage->slots[slot] & ~page;
  uintptr_t end = ((uintptr_t)(&usage->slots[slot] + 1) + page) & ~page;
  if (madvise((void *)begin, end - begin, MADV_POPULATE_WRITE) == 0) return true;
  return errno != EFAULT && errno != ENOMEM;
}

static bool try_claim(penstock_region *region, uint32_t slot, uint64_t free_word) {
  penstock_claim *claim = region->claim;
  const penstock_identity *self = &claim->identity;
  penstock_slot *mine = &region->usage->slots[slot];
  uint64_t owner = penstock_owner_pack(PENSTOCK_SLOT_LIVE, self->pid_namespace, self->pid,
                                       penstock_owner_generation(free_word) + 1, self->start_ticks);
  if (!__atomic_compare_exchange_n(&mine->owner, &free_word, owner, 0, __ATOMIC_ACQ_REL,
                                   __ATOMIC_RELAXED)) {
    return false;
  }
  /* The fields from here on are informational, and are cleared again before the slot is freed. */
  __atomic_store_n(&mine->image, self->image, __ATOMIC_RELEASE);
  __atomic_store_n(&mine->claimed_ns, penstock_now_ns(), __ATOMIC_RELAXED);
  char command[sizeof mine->command + 1] = {0};
  ssize_t length = read_small("/proc/self/comm", command, sizeof command);
  if (length > 0 && command[length - 1] == '\n') command[length - 1] = 0;
  memcpy(mine->command, command, sizeof mine->command - 1);
  claim->slot = slot;
  claim->owner = owner;
  __atomic_store_n(&claim->owned, 1, __ATOMIC_RELEASE);
  return true;
}

/* Reaps dead owners among the first `probes` owned slots from `start` on. */
static void reap_some(penstock_region *region, uint32_t start, uint32_t probes) {
  penstock_usage_page *usage = region->usage;
  const penstock_identity *self = &region->claim->identity;
  uint32_t high = penstock_slots_high(usage);
  for (uint32_t i = 0; i < high && probes > 0; i++) {
    uint32_t slot = (start + i) % high;
    uint64_t owner = __atomic_load_n(&usage->slots[slot].owner, __ATOMIC_ACQUIRE);
    if (penstock_owner_state(owner) == PENSTOCK_SLOT_FREE) continue;
    probes--;
    if (penstock_slot_is_dead(usage, region->quota, self, slot, owner, true)) {
      penstock_reap_slot(usage, self, slot, owner);
    }
  }
}

/* Takes back what this process held before an exec, and claims the first free slot. */
static bool claim_used_before(penstock_region *region) {
  penstock_usage_page *usage = region->usage;
  const penstock_identity *self = &region->claim->identity;
  uint32_t high = penstock_slots_high(usage);
  for (uint32_t slot = 0; slot < high; slot++) {
    uint64_t owner = __atomic_load_n(&usage->slots[slot].owner, __ATOMIC_ACQUIRE);
    if (penstock_owner_state(owner) != PENSTOCK_SLOT_FREE &&
        penstock_owner_state(owner) != PENSTOCK_SLOT_SHARED &&
        penstock_owner_pid(owner) == self->pid &&
        penstock_slot_is_dead(usage, region->quota, self, slot, owner, false)) {
      penstock_reap_slot(usage, self, slot, owner);
    }
  }
  for (uint32_t slot = 0; slot < high; slot++) {
    uint64_t owner = __atomic_load_n(&usage->slots[slot].owner, __ATOMIC_ACQUIRE);
    if (penstock_owner_state(owner) == PENSTOCK_SLOT_FREE && try_claim(region, slot, owner)) {
      return true;
    }
  }
  return false;
}

/* Raises the high mark before the slot is claimed, because reapers do not see slots above it.
 * Returns false if there is no memory for the slot. */
static bool raise_high(penstock_usage_page *usage, uint32_t slot) {
  if (!slot_has_memory(usage, slot)) return false;
  uint64_t high = __atomic_load_n(&usage->slots_high, __ATOMIC_ACQUIRE);
  while (high < slot + 1 && !__atomic_compare_exchange_n(&usage->slots_high, &high, slot + 1, 0,
                                                         __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
  }
  return true;
}

static penstock_error claim_next(penstock_region *region) {
  penstock_usage_page *usage = region->usage;
  for (uint32_t slot = penstock_slots_high(usage); slot < PENSTOCK_MAX_SLOTS; slot++) {
    if (!raise_high(usage, slot)) return PENSTOCK_E_NO_MEMORY;
    uint64_t owner = __atomic_load_n(&usage->slots[slot].owner, __ATOMIC_ACQUIRE);
    if (penstock_owner_state(owner) == PENSTOCK_SLOT_FREE && try_claim(region, slot, owner)) {
      return PENSTOCK_OK;
    }
  }
  return PENSTOCK_E_NO_SLOT;
}

int penstock_slot_take_free(penstock_region *region, uint32_t from, uint32_t to, uint64_t *owner) {
  penstock_usage_page *usage = region->usage;
  const penstock_identity *self = &region->claim->identity;
  for (uint32_t slot = from; slot < to; slot++) {
    uint64_t seen = __atomic_load_n(&usage->slots[slot].owner, __ATOMIC_ACQUIRE);
    if (penstock_owner_state(seen) != PENSTOCK_SLOT_FREE) continue;
    if (slot >= penstock_slots_high(usage) && !raise_high(usage, slot))
      return -PENSTOCK_E_NO_MEMORY;
    *owner = penstock_owner_pack(PENSTOCK_SLOT_REAPING, self->pid_namespace, self->pid,
                                 penstock_owner_generation(seen) + 1, self->start_ticks);
    if (__atomic_compare_exchange_n(&usage->slots[slot].owner, &seen, *owner, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED)) {
      return (int)slot;
    }
  }
  return -PENSTOCK_E_NO_SLOT;
}

static penstock_error claim_slot(penstock_region *region) {
  penstock_identity_read(region->usage, &region->claim->identity);
  uint32_t high = penstock_slots_high(region->usage);
  if (high > 0) reap_some(region, (uint32_t)(penstock_now_ns() / 1000 % high), PROBES_PER_CLAIM);
  if (claim_used_before(region)) return PENSTOCK_OK;
  penstock_error error = claim_next(region);
  if (error == PENSTOCK_OK) return PENSTOCK_OK;
  reap_some(region, 0, PENSTOCK_MAX_SLOTS);
  return claim_used_before(region) ? PENSTOCK_OK : error;
}

/* Clears the parent's claim on kernels that cannot wipe it on fork. */
static void forget_if_forked(penstock_claim *claim) {
  if (claim->compare_pid && claim->owned && claim->identity.pid != (uint32_t)getpid()) {
    memset(claim, 0, sizeof *claim);
    claim->compare_pid = 1;
  }
}

/* Returns whether this process still owns its slot. Compares the owner word too, so that a slot
 * that was reaped, even by mistake, is no longer used. */
static bool holds(const penstock_region *region) {
  const penstock_claim *claim = region->claim;
  if (!__atomic_load_n(&claim->owned, __ATOMIC_ACQUIRE)) return false;
  const penstock_slot *slot = &region->usage->slots[claim->slot];
  return __atomic_load_n(&slot->owner, __ATOMIC_RELAXED) == claim->owner;
}

int penstock_slot_owned(const penstock_region *region) {
  penstock_claim *claim = region->claim;
  if (!claim) return -PENSTOCK_E_READ_ONLY;
  forget_if_forked(claim);
  return holds(region) ? (int)claim->slot : -PENSTOCK_E_NO_SLOT;
}

static __attribute__((noinline)) int own_fresh(penstock_region *region) {
  int saved_errno = errno;
  penstock_claim *claim = region->claim;
  penstock_lock_acquire(&claim->lock);
  bool fresh = !holds(region);
  penstock_error error = fresh ? claim_slot(region) : PENSTOCK_OK;
  int slot = error == PENSTOCK_OK ? (int)claim->slot : -(int)error;
  penstock_lock_release(&claim->lock);
  if (fresh && slot >= 0 && region->claimed) region->claimed(region);
  errno = saved_errno;
  return slot;
}

int penstock_slot_own(penstock_region *region) {
  int slot = penstock_slot_owned(region);
  return slot >= 0 || slot == -PENSTOCK_E_READ_ONLY ? slot : own_fresh(region);
}

void penstock_slot_release(penstock_region *region) {
  int slot = penstock_slot_owned(region);
  if (slot < 0) return;
  penstock_claim *claim = region->claim;
  penstock_lock_acquire(&claim->lock);
  __atomic_store_n(&claim->owned, 0, __ATOMIC_RELEASE);
  penstock_reap_slot(region->usage, &claim->identity, (uint32_t)slot, claim->owner);
  penstock_lock_release(&claim->lock);
}
