/* Names that the shim does not answer itself: a newer driver's, those that the driver lacks, and,
 * while the tenant's owner wants to know, those that are only forwarded. Counted in the usage page.
 */
#pragma once

#include <stdbool.h>

#include "mechanism/asked.h"

/* Decides about a name that the headers of this build do not have, and counts it. What allocates,
 * launches or makes graphs would escape the quota and is kept back, unless the tenant's policy says
 * `allowUnknown`. */
bool penstock_unknown_is_let_through(const char *symbol);

/* True while names that are only forwarded are counted too (PENSTOCK_TENANT_RECORD). */
bool penstock_names_are_recorded(void);

/* Counts one request or call; nothing without a tenant. */
void penstock_name_count(unsigned kind, const char *symbol, penstock_asked_how how);
