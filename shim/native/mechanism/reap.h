/* Reaping: taking back the charges of a dead process.
 *
 * A compare-and-swap of the slot's owner word makes the reaper its owner. From then on the reaper
 * continues the slot's own stream of ledger operations: it decides the open operation, takes the
 * charge back by an ordinary one, charges unsettled device time, clears the slot's other words and
 * frees it. A reaper that is killed leaves a slot whose owner is dead, and the next reaper
 * continues from there. No process waits for another.
 */
#pragma once

#include "mechanism/ledger.h"

typedef enum penstock_reap_state {
  PENSTOCK_REAP_TAKE,
  PENSTOCK_REAP_READ_HOLDERS, /* puts back a share that was joined just now */
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
  PENSTOCK_REAP_LOST, /* another process took the slot, or holds it after all */
} penstock_reap_state;

typedef struct penstock_reap_op {
  penstock_usage_page *usage;
  uint32_t slot;
  uint32_t device;
  uint64_t victim; /* owner word to take over */
  uint64_t owner;  /* owner word of the reaper */
  penstock_reap_state state;
  uint64_t intent;
  uint64_t charged;
  uint64_t noticed_ns; /* CLOCK_MONOTONIC: work in flight is charged until then; 0: by estimate */
  penstock_ledger_op take_back;
} penstock_reap_op;

void penstock_reap_begin(penstock_reap_op *op, penstock_usage_page *usage,
                         const penstock_identity *self, uint32_t slot, uint64_t victim);
penstock_reap_state penstock_reap_step(penstock_reap_op *op);

/* Reaps a slot whose owner, of owner word `victim`, is known to be dead. True if this call freed
 * it. */
bool penstock_reap_slot(penstock_usage_page *usage, const penstock_identity *self, uint32_t slot,
                        uint64_t victim);

/* Checks every slot and reaps the dead ones; returns how many. `quota` may be NULL. Keeps errno. */
unsigned penstock_reap_all(penstock_usage_page *usage, const penstock_quota_page *quota);

/* For a refusal that is about to become final, or a wait that lasts: reaps dead processes that hold
 * memory or admitted device time on `device`. True if something came back. For processes that own a
 * slot. Cheap when called in a loop: it checks pids at most every 20 us, and reads /proc at most
 * every 10 ms. */
bool penstock_reap_for_refusal(penstock_region *region, unsigned device);
