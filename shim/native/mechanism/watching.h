/* What is done with a watch (watch.h). */
#pragma once

#include "mechanism/slots.h"
#include "mechanism/watch.h"

/* A bit for each watched slot whose process has ended. */
uint64_t penstock_watch_ended(const penstock_watch *watch);

/* Whether the slot's owner is watched, from now on if `may_open`. One that cannot be is not: it
 * lies in another pid namespace, is ourselves, has ended already, or the kernel is older than 5.3.
 */
bool penstock_watch_slot(penstock_watch *watch, const penstock_usage_page *usage,
                         const penstock_identity *self, uint32_t slot, uint64_t owner,
                         bool may_open);

/* Lets go of all slots from `from` on. */
void penstock_watch_forget(penstock_watch *watch, uint32_t from);
