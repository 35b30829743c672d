/* How long the calling thread could not run because the host is short of processors. */
#pragma once

#include <stdint.h>

/* A wait, or a run of launches, begins at `now_ns` (CLOCK_MONOTONIC): time lost more than a tenth
 * of a second before no longer counts. */
void penstock_starved_begin(uint64_t now_ns);

/* How long this thread was runnable but did not run, since that beginning or the last call of this
 * function, in nanoseconds: other threads ran in its place, or its control group had used up its
 * limit. 0 where the kernel does not report it, or where nothing began in this thread shortly
 * before `since_ns` or after it. Time in which it was stopped, or asleep, does not count. */
uint64_t penstock_starved_ns(uint64_t since_ns);
