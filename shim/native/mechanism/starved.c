#include "mechanism/starved.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A look takes some microseconds: none at each of many waits. */
#define LOOK_EVERY_NS 100000000
#define TICK_NS 10000000 /* clocks that are read cheaply are behind by up to this */

static __thread uint64_t looked_at_ns, kept_ns;

/* The scheduler's own count, the second word (Documentation/scheduler/sched-stats.rst). By bare
 * system calls: a thread must not be cancelled here. */
static bool look(uint64_t *ns) {
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
  if (now_ns < looked_at_ns + LOOK_EVERY_NS) return;
  if (!look(&kept_ns)) kept_ns = UINT64_MAX; /* nothing is beyond what nobody knows */
  looked_at_ns = now_ns;
}

uint64_t penstock_starved_ns(uint64_t since_ns) {
  uint64_t before = kept_ns;
  if (!looked_at_ns || looked_at_ns + LOOK_EVERY_NS + TICK_NS < since_ns) return 0;
  /* A fork's child begins anew. */
  return look(&kept_ns) && kept_ns > before ? kept_ns - before : 0;
}
