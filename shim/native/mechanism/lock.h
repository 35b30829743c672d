/* A lock between the threads of one process: 0 free, 1 held, 2 held and a thread sleeps.
 *
 * It lies in memory that a fork wipes, so a child never inherits a held lock. It is held for a few
 * dozen instructions and never across a driver call.
 */
#pragma once

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Not inlined: a lock is rarely found held. */
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
