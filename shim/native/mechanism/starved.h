/* How long the calling thread was kept from running by a host that is short of processors. */
#pragma once

#include <stdint.h>

/* A wait, or a run of launches, begins at `now_ns` (CLOCK_MONOTONIC): what this thread was kept
 * from more than a tenth of a second before is not asked for any more. */
void penstock_starved_begin(uint64_t now_ns);

/* How long this thread wanted to run and was not let, since that began or it was asked here
 * last, nanoseconds: others ran in its place, or its control group had used up its limit. 0 where
 * the kernel does not tell, or nothing began in this thread shortly before `since_ns` or after it.
 * Time in which it was stopped, or asleep, does not count. */
uint64_t penstock_starved_ns(uint64_t since_ns);
