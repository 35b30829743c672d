/* Samples of a tenant's work on one device, from its usage page. The tenant can overwrite or
 * truncate the page: it is read by pread, never mapped, and its values are kept within bounds. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct penstock_look {
  bool lost;          /* the page cannot be read: truncated */
  uint64_t spent_ns;  /* device time charged, ever */
  uint64_t launches;  /* settled, ever */
  uint64_t waited_ns; /* CLOCK_MONOTONIC when a thread last waited at the gate; 0: never */
  uint64_t until_ns;  /* CLOCK_MONOTONIC until which it is busy by learned cost; 0: it is not */
} penstock_look;

/* One read. */
penstock_look penstock_look_device(int usage_fd, unsigned device, uint64_t now_ns);

typedef struct penstock_work {
  uint64_t submitted; /* timing windows ever opened, all processes */
  bool unsettled;     /* some of them are not settled … */
  bool attended; /* … and a thread of their process waits for them, so it would notice their end */
} penstock_work;

/* One read for each process that ever claimed a slot. */
penstock_work penstock_look_work(int usage_fd, unsigned device, uint64_t now_ns);
