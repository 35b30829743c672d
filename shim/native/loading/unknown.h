/* Counts, in the usage page, of driver functions that the shim does not hook: functions of a newer
 * driver that are unknown to the shim, functions that the driver lacks, and, if the tenant's owner
 * wants that, functions that are only forwarded. */
#pragma once

#include <stdbool.h>

#include "mechanism/asked.h"

/* Returns true if a name that this build's headers do not contain may be forwarded, and counts it.
 * Functions that may allocate, launch or build graphs would escape the quota, so their names are
 * refused unless the tenant's policy says `allowUnknown`. */
bool penstock_unknown_is_let_through(const char *symbol);

/* Returns true while functions that are only forwarded are counted too (PENSTOCK_TENANT_RECORD). */
bool penstock_names_are_recorded(void);

/* Counts one request or call. Does nothing without a tenant. */
void penstock_name_count(unsigned kind, const char *symbol, penstock_asked_how how);
