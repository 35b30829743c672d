/* How long the calling thread was kept from running by a host that is short of processors. */
#pragma once

#include <stdint.h>

/* How long this thread wanted to run and was not let, since it asked here last (the first time:
 * since it began), nanoseconds: others ran in its place, or its control group had used up its
 * limit. 0 where the kernel does not tell. Time in which it was stopped, or asleep, does not count.
 */
uint64_t penstock_starved_ns(void);
