/* The clock that all times in the pages are read from. */
#pragma once

#include <stdint.h>
#include <time.h>

/* Returns the CLOCK_MONOTONIC time in nanoseconds. */
static inline uint64_t penstock_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
