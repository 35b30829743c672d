/* What a tenant's usage page says of its work on one device. The page is the tenant's to scribble
 * over or truncate: it is read by pread, never mapped, and what it says is kept within bounds. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct penstock_look {
  bool lost;          /* the page cannot be read: truncated */
  uint64_t spent_ns;  /* device time charged, ever */
  uint64_t launches;  /* settled, ever */
  uint64_t waited_ns; /* CLOCK_MONOTONIC when a thread last waited at the gate; 0: never */
  uint64_t until_ns;  /* CLOCK_MONOTONIC until which it is busy by experience; 0: it is not */
} penstock_look;

/* One read. */
penstock_look penstock_look_device(int usage_fd, unsigned device, uint64_t now_ns);

typedef struct penstock_work {
  uint64_t submitted; /* brackets ever opened, all processes */
  bool unsettled;     /* some of them are not settled … */
  bool attended;      /* … and a thread of their process waits for them, so it would know */
} penstock_work;

/* One read a process that ever was. */
penstock_work penstock_look_work(int usage_fd, unsigned device, uint64_t now_ns);
