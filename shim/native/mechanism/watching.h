/* Operations on a watch (watch.h). */
#pragma once

#include "mechanism/slots.h"
#include "mechanism/watch.h"

/* Returns a bit for each watched slot whose process has ended. */
uint64_t penstock_watch_ended(const penstock_watch *watch);

/* Returns whether the slot's owner is watched, and starts watching it if `may_open`. An owner
 * cannot be watched if it is in another pid namespace, is this process, or has already ended, nor
 * on kernels older than 5.3. */
bool penstock_watch_slot(penstock_watch *watch, const penstock_usage_page *usage,
                         const penstock_identity *self, uint32_t slot, uint64_t owner,
                         bool may_open);

/* Stops watching all slots from index `from` on. */
void penstock_watch_forget(penstock_watch *watch, uint32_t from);
