/* Thin wrappers for the cffi module. Compiling this file checks the prototypes in binding.h against
 * those in the other headers. */
#include <stdlib.h>

#include "mechanism/publish.h"
#include "mechanism/reap.h"
/* included last, because it uses the types of the headers above */
#include "mechanism/binding.h"

int penstock_binding_page_check(int fd, int is_quota) {
  return is_quota ? penstock_page_check(fd, PENSTOCK_QUOTA_MAGIC, sizeof(penstock_quota_page))
                  : penstock_page_check(fd, PENSTOCK_USAGE_MAGIC, sizeof(penstock_usage_page));
}

const char *penstock_binding_error_text(int error) {
  return penstock_error_text((penstock_error)error);
}

struct penstock_steps {
  int reaping;
  penstock_ledger_op ledger;
  penstock_reap_op reap;
};

penstock_steps *penstock_steps_ledger(penstock_usage_page *usage, unsigned device, uint32_t slot,
                                      int64_t delta_units, uint64_t limit_units) {
  if (device >= PENSTOCK_MAX_DEVICES || slot >= PENSTOCK_MAX_SLOTS) return NULL;
  penstock_steps *steps = calloc(1, sizeof *steps);
  if (!steps) return NULL;
  penstock_ledger_begin(&steps->ledger, usage, device, slot, delta_units, limit_units);
  return steps;
}

penstock_steps *penstock_steps_reap(penstock_usage_page *usage, uint32_t slot, uint64_t victim,
                                    uint64_t reaper) {
  if (slot >= PENSTOCK_MAX_SLOTS) return NULL;
  penstock_steps *steps = calloc(1, sizeof *steps);
  if (!steps) return NULL;
  penstock_identity self = {0};
  penstock_reap_begin(&steps->reap, usage, &self, slot, victim);
  steps->reap.owner = reaper;
  steps->reaping = 1;
  return steps;
}

int penstock_steps_next(penstock_steps *steps) {
  if (steps->reaping) {
    penstock_reap_state state = penstock_reap_step(&steps->reap);
    return state < PENSTOCK_REAP_DONE ? 0 : state == PENSTOCK_REAP_DONE ? 1 : 2;
  }
  penstock_ledger_state state = penstock_ledger_step(&steps->ledger);
  return state < PENSTOCK_LEDGER_DONE ? 0 : state == PENSTOCK_LEDGER_DONE ? 1 : 2;
}

static const char *ledger_name(penstock_ledger_state state) {
  static const char *const names[] = {"read charged", "write intent", "read total", "read ack",
                                      "check total",  "write ack",    "apply",      "fold",
                                      "raise peak",   "roll back",    "done",       "refused"};
  return names[state];
}

const char *penstock_steps_name(const penstock_steps *steps) {
  static const char *const names[] = {"take",     "read intent", "read charged", "read total",
                                      "read ack", "fold",        "roll back",    "take back",
                                      "clear",    "free",        "done",         "lost"};
  if (!steps->reaping) return ledger_name(steps->ledger.state);
  if (steps->reap.state == PENSTOCK_REAP_TAKE_BACK) return ledger_name(steps->reap.take_back.state);
  return names[steps->reap.state];
}

void penstock_steps_free(penstock_steps *steps) { free(steps); }
