/* A lock between the threads of one process. Its word is 0 if free, 1 if held, and 2 if held while
 * a thread sleeps on it.
 *
 * The word lies in memory that is wiped on fork, so that a child never inherits a held lock. The
 * lock is held for a few dozen instructions, and never across a driver call.
 */
#pragma once

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Not inlined, because threads rarely have to wait for the lock. */
static __attribute__((cold, noinline, unused)) void penstock_lock_wait(uint32_t *lock) {
  for (int i = 0; i < 64; i++) {
    uint32_t seen = __atomic_load_n(lock, __ATOMIC_RELAXED);
    if (seen == 0 &&
        __atomic_compare_exchange_n(lock, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      return;
    }
  }
  while (__atomic_exchange_n(lock, 2, __ATOMIC_ACQUIRE) != 0) {
    syscall(SYS_futex, lock, FUTEX_WAIT_PRIVATE, 2, (void *)0, (void *)0, 0);
  }
}

static __attribute__((cold, noinline, unused)) void penstock_lock_wake(uint32_t *lock) {
  syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, 1, (void *)0, (void *)0, 0);
}

static inline void penstock_lock_acquire(uint32_t *lock) {
  uint32_t seen = 0;
  if (!__atomic_compare_exchange_n(lock, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
    penstock_lock_wait(lock);
  }
}

static inline void penstock_lock_release(uint32_t *lock) {
  if (__builtin_expect(__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) == 2, 0)) {
    penstock_lock_wake(lock);
  }
}
