#define _GNU_SOURCE
#include "mechanism/watching.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* the number is the same on all architectures */
#endif

uint64_t penstock_watch_ended(const penstock_watch *watch) {
  struct pollfd polled[PENSTOCK_WATCHED];
  uint32_t slots[PENSTOCK_WATCHED], count = 0;
  for (uint32_t slot = 0; count < watch->open && slot < PENSTOCK_WATCHED; slot++) {
    if (!watch->owners[slot]) continue;
    polled[count] = (struct pollfd){watch->pidfds[slot], POLLIN, 0};
    slots[count++] = slot;
  }
  if (!count || poll(polled, count, 0) <= 0) return 0;
  uint64_t ended = 0;
  for (uint32_t i = 0; i < count; i++)
    if (polled[i].revents) ended |= (uint64_t)1 << slots[i];
  return ended;
}

static void stop_watching(penstock_watch *watch, uint32_t slot) {
  if (!watch->owners[slot]) return;
  close(watch->pidfds[slot]);
  watch->owners[slot] = 0;
  watch->open--;
}

static bool can_be_watched(const penstock_identity *self, uint64_t owner) {
  uint32_t state = penstock_owner_state(owner);
  return (state == PENSTOCK_SLOT_LIVE || state == PENSTOCK_SLOT_REAPING) && self->proc_is_ours &&
         penstock_owner_namespace(owner) != PENSTOCK_NAMESPACE_UNKNOWN &&
         penstock_owner_namespace(owner) == self->pid_namespace && penstock_owner_pid(owner) != 0 &&
         penstock_owner_pid(owner) != self->pid;
}

bool penstock_watch_slot(penstock_watch *watch, const penstock_usage_page *usage,
                         const penstock_identity *self, uint32_t slot, uint64_t owner,
                         bool may_open) {
  if (slot >= PENSTOCK_WATCHED) return false;
  if (owner && watch->owners[slot] == owner) return true;
  stop_watching(watch, slot);
  if (!may_open || !can_be_watched(self, owner)) return false;
  int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)penstock_owner_pid(owner), 0);
  if (pidfd < 0) return false;
  /* Checked after opening, because the descriptor refers to the process that has the pid now. */
  if (penstock_slot_is_dead(usage, NULL, self, slot, owner, true)) {
    close(pidfd);
    return false;
  }
  watch->owners[slot] = owner;
  watch->pidfds[slot] = pidfd;
  watch->open++;
  return true;
}

void penstock_watch_forget(penstock_watch *watch, uint32_t from) {
  for (uint32_t slot = from; watch->open && slot < PENSTOCK_WATCHED; slot++)
    stop_watching(watch, slot);
}
