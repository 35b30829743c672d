/* Kills a process after a chosen one of its stores into shared memory.
 *
 * The child runs under ptrace instruction by instruction while its parent compares the words.
 * Between two stores nothing changes that others can see, so these are all the moments there are.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct killing_range {
  const void *at; /* shared memory, mapped in this process */
  size_t bytes;
  void *seen; /* as many bytes: what was there at the last look */
} killing_range;

/* Forks a child that runs `act(data)` and is killed after its store number `wanted`, from 1, into
 * any of the ranges. False: it made fewer, not less than `least`, and ended well. Skips the test
 * where ptrace is not allowed. */
bool killed_after_store(unsigned wanted, unsigned least, void (*act)(void *), void *data,
                        const killing_range *ranges, unsigned count);
