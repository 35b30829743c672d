#include "process/release.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LONGEST_SLEEP_NS 100000000

void penstock_release_wait(const penstock_process *process) {
  const penstock_quota_page *quota = process->region.quota;
  int saved_errno = errno;
  for (;;) {
    uint32_t seen = __atomic_load_n(&quota->change_futex, __ATOMIC_ACQUIRE);
    uint32_t flags =
        __atomic_load_n(&penstock_region_limits(&process->region)->flags, __ATOMIC_RELAXED);
    if (__builtin_expect(!(flags & PENSTOCK_TENANT_RELEASED), 1)) break;
    struct timespec timeout = {0, LONGEST_SLEEP_NS};
    syscall(SYS_futex, &quota->change_futex, FUTEX_WAIT, seen, &timeout, NULL, 0);
  }
  errno = saved_errno;
}
