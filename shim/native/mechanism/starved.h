/* The time for which the calling thread could not run because the host is short of processors. */
#pragma once

#include <stdint.h>

/* Marks the start of a wait, or of a run of launches, at `now_ns` (CLOCK_MONOTONIC). Time lost more
 * than a tenth of a second earlier no longer counts. */
void penstock_starved_begin(uint64_t now_ns);

/* Returns for how many nanoseconds this thread was runnable but did not run, because other threads
 * ran in its place or its control group had used up its limit. Counts from the last
 * penstock_starved_begin or the last call of this function. Returns 0 if the kernel does not report
 * this time, or if the thread has not called penstock_starved_begin since shortly before
 * `since_ns`. Time in which the thread was stopped or asleep does not count. */
uint64_t penstock_starved_ns(uint64_t since_ns);
