/* The one clock of the simulated machine. */
#include <time.h>

#include "sim/machine/binding.h"

uint64_t sim_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}
