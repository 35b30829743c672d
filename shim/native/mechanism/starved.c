#include "mechanism/starved.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* minimum time between two reads, which take some microseconds each */
#define READ_PERIOD_NS 100000000
#define TICK_NS 10000000 /* maximum delay of clocks that are cheap to read */

static __thread uint64_t read_at_ns, delay_ns;

/* Reads the scheduler's run delay, the second word of schedstat
 * (Documentation/scheduler/sched-stats.rst). Uses system calls, because the functions of libc are
 * cancellation points. */
static bool read_run_delay(uint64_t *ns) {
  char line[80], *end;
  int saved_errno = errno;
  long fd = syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  long got = fd < 0 ? -1 : syscall(SYS_read, fd, line, sizeof line - 1);
  if (fd >= 0) syscall(SYS_close, fd);
  errno = saved_errno;
  if (got <= 0) return false;
  line[got] = 0;
  strtoull(line, &end, 10);
  *ns = strtoull(end, NULL, 10);
  return true;
}

void penstock_starved_begin(uint64_t now_ns) {
  if (now_ns < read_at_ns + READ_PERIOD_NS) return;
  if (!read_run_delay(&delay_ns)) delay_ns = UINT64_MAX; /* unknown; no later value is larger */
  read_at_ns = now_ns;
}

uint64_t penstock_starved_ns(uint64_t since_ns) {
  uint64_t before = delay_ns;
  if (!read_at_ns || read_at_ns + READ_PERIOD_NS + TICK_NS < since_ns) return 0;
  /* The value is smaller in the child of a fork, where the count starts at 0. */
  return read_run_delay(&delay_ns) && delay_ns > before ? delay_ns - before : 0;
}
