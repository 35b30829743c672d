#include "mechanism/starved.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* The scheduler's own count, the second word (Documentation/scheduler/sched-stats.rst). */
static uint64_t waited_to_run_ns(void) {
  char line[80], *end;
  int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return 0;
  ssize_t got = read(fd, line, sizeof line - 1);
  close(fd);
  if (got <= 0) return 0;
  line[got] = 0;
  strtoull(line, &end, 10);
  return strtoull(end, NULL, 10);
}

uint64_t penstock_starved_ns(void) {
  static __thread uint64_t told_ns;
  int saved_errno = errno;
  uint64_t ns = waited_to_run_ns(), before = told_ns;
  errno = saved_errno;
  told_ns = ns;
  return ns >= before ? ns - before : ns; /* a fork's child begins anew */
}
