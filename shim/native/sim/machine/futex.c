/* Shared futexes: words in the machine's file. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim/machine/model.h"

void sim_futex_wait(uint32_t *word, uint32_t seen, uint64_t at_most_ns) {
  struct timespec limit = {(time_t)(at_most_ns / 1000000000u), (long)(at_most_ns % 1000000000u)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

void sim_futex_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 64, NULL, NULL, 0); }
