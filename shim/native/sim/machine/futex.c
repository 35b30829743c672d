/* Shared futexes, which are words in the machine's file. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim/machine/model.h"

void sim_futex_wait(uint32_t *word, uint32_t seen, uint64_t at_most_ns) {
  struct timespec limit = {(time_t)(at_most_ns / 1000000000u), (long)(at_most_ns % 1000000000u)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

/* Sleeps until `when_ns` (CLOCK_MONOTONIC). Returns true if woken or interrupted by a signal before
 * then, false on timeout.
 */
bool sim_futex_sleep(uint32_t *word, uint32_t seen, uint64_t when_ns) {
  struct timespec at = {(time_t)(when_ns / 1000000000u), (long)(when_ns % 1000000000u)};
  long answer = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, seen, &at, NULL, ~0u);
  return answer == 0 || errno != ETIMEDOUT;
}

void sim_futex_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 64, NULL, NULL, 0); }
