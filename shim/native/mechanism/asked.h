/* Lock-free counts of requested driver functions in the usage page. The table has a fixed size and
 * stays consistent if a process is killed at any instruction.
 *
 * Each entry belongs to the hash of a kind and a name. The process that claims an entry writes the
 * name and then the kind. If the process is killed in between, the next process that requests the
 * name writes the same bytes again. When the table is full, `asked_overflow` counts all requests
 * for names that have no entry.
 */
#pragma once

#include <stdint.h>

#include "mechanism/region.h"

typedef enum penstock_asked_how { PENSTOCK_ASKED_REQUEST, PENSTOCK_ASKED_CALL } penstock_asked_how;

/* Counts one more request or call of a driver function. `kind` is PENSTOCK_ASKED_*. */
void penstock_asked_count(penstock_usage_page *usage, unsigned kind, const char *name,
                          penstock_asked_how how);
