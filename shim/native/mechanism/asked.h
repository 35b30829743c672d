/* Counting names in the usage page: lock-free, bounded, and whole after a kill at any instruction.
 *
 * An entry belongs to the hash of its kind and name. The process that claims it writes the name,
 * then the kind; if it is killed in between, the next process that requests the name writes the
 * same bytes again. When the table is full, `asked_overflow` counts all names that are not in it.
 */
#pragma once

#include <stdint.h>

#include "mechanism/region.h"

typedef enum penstock_asked_how { PENSTOCK_ASKED_REQUEST, PENSTOCK_ASKED_CALL } penstock_asked_how;

/* Counts one more. `kind` is PENSTOCK_ASKED_*. */
void penstock_asked_count(penstock_usage_page *usage, unsigned kind, const char *name,
                          penstock_asked_how how);
