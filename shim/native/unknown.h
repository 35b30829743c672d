/* Driver functions that the headers of this build do not have: a newer driver's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Decides about an unknown name, and counts it. What allocates, launches or makes graphs would
 * escape the quota and is kept back, unless the tenant's policy says `allowUnknown`. */
bool penstock_unknown_is_let_through(const char *symbol);

/* How often a name was passed on, and kept back, in this process. */
typedef struct penstock_unknown_counts {
  uint64_t forwarded;
  uint64_t refused;
} penstock_unknown_counts;
penstock_unknown_counts penstock_unknown_counted(void);
