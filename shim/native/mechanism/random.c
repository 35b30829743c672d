#define _GNU_SOURCE
#include "mechanism/random.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t penstock_mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/* Uses the system call directly, because older C libraries lack the function. */
uint64_t penstock_random(void) {
  static uint64_t drawn;
  uint64_t random = 0;
  struct timespec now;
  int saved_errno = errno;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (syscall(SYS_getrandom, &random, sizeof random, 1 /* do not wait */) != sizeof random) {
    random = penstock_mix((uint64_t)getpid() << 32 ^ (uint64_t)now.tv_nsec ^ (uintptr_t)&now);
  }
  errno = saved_errno;
  return penstock_mix(random + __atomic_add_fetch(&drawn, 1, __ATOMIC_RELAXED));
}
