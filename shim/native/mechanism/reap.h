/* Reaping takes back the charges of a dead process.
 *
 * A reaper becomes the owner of the dead process's slot by a compare-and-swap of the owner word. It
 * then continues the slot's own sequence of ledger operations: it decides the open operation, takes
 * the charge back by an ordinary operation, charges unsettled device time, clears the slot's other
 * words and frees the slot. If the reaper is killed, it leaves a slot with a dead owner, and the
 * next reaper continues from there. No process waits for another.
 */
#pragma once

#include "mechanism/ledger.h"

typedef enum penstock_reap_state {
  PENSTOCK_REAP_TAKE,
  PENSTOCK_REAP_READ_HOLDERS, /* restores a share that a process has just joined */
  PENSTOCK_REAP_READ_INTENT,
  PENSTOCK_REAP_READ_CHARGED,
  PENSTOCK_REAP_EMPTY_TARGET, /* undoes an open move of bytes into a share */
  PENSTOCK_REAP_READ_TOTAL,
  PENSTOCK_REAP_READ_ACK,
  PENSTOCK_REAP_FOLD,
  PENSTOCK_REAP_ROLL_BACK,
  PENSTOCK_REAP_TAKE_BACK, /* runs the steps of an inner ledger operation */
  PENSTOCK_REAP_CLEAR,
  PENSTOCK_REAP_FREE,
  PENSTOCK_REAP_DONE,
  PENSTOCK_REAP_LOST, /* another process took the slot, or still holds it */
} penstock_reap_state;

typedef struct penstock_reap_op {
  penstock_usage_page *usage;
  uint32_t slot;
  uint32_t device;
  uint64_t victim; /* owner word to replace */
  uint64_t owner;  /* the reaper's owner word */
  penstock_reap_state state;
  uint64_t intent;
  uint64_t charged;
  /* CLOCK_MONOTONIC time up to which work in flight is charged; 0 to charge its estimate */
  uint64_t noticed_ns;
  /* time of the tenant's last release of device memory, up to which earlier work ran at most */
  uint64_t released_ns;
  penstock_ledger_op take_back;
} penstock_reap_op;

void penstock_reap_begin(penstock_reap_op *op, penstock_usage_page *usage,
                         const penstock_identity *self, uint32_t slot, uint64_t victim);
penstock_reap_state penstock_reap_step(penstock_reap_op *op);

/* Reaps a slot whose owner word is `victim` and whose owner is known to be dead. Returns true if
 * this call freed the slot. */
bool penstock_reap_slot(penstock_usage_page *usage, const penstock_identity *self, uint32_t slot,
                        uint64_t victim);

/* Checks every slot, reaps the dead ones, and returns how many were reaped. `quota` may be NULL.
 * Preserves errno. */
unsigned penstock_reap_all(penstock_usage_page *usage, const penstock_quota_page *quota);

/* Reaps the dead processes that hold memory or admitted device time on `device`. Called before a
 * refusal becomes final, or during a long wait, by processes that own a slot. Returns true if
 * anything was taken back. Cheap in a loop, because it checks process IDs at most every 20 us and
 * reads /proc at most every 10 ms. */
bool penstock_reap_for_refusal(penstock_region *region, unsigned device);
