/* Samples of a tenant's work on one device, taken from its usage page. Because the tenant can
 * overwrite or truncate the page, it is read by pread and never mapped, and its values are kept
 * within bounds. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct penstock_sample {
  bool lost;          /* the page cannot be read because it was truncated */
  uint64_t spent_ns;  /* total device time charged */
  uint64_t launches;  /* total number of launches settled */
  uint64_t waited_ns; /* CLOCK_MONOTONIC when a thread last waited at the gate, 0 if never */
  uint64_t until_ns;  /* CLOCK_MONOTONIC until which the tenant is busy by learned cost, 0 if it is
                         idle */
} penstock_sample;

/* Samples a tenant's counters on one device. Costs one read. */
penstock_sample penstock_sample_device(int usage_fd, unsigned device, uint64_t now_ns);

typedef struct penstock_work {
  uint64_t submitted; /* number of timing windows ever opened by all processes */
  bool unsettled;     /* some of the opened windows are not settled */
  bool attended; /* a thread of a process with unsettled windows waits for them, so it would notice
                    their end */
} penstock_work;

/* Samples a tenant's timing windows on one device. Costs one read for each process that ever
 * claimed a slot. */
penstock_work penstock_sample_work(int usage_fd, unsigned device, uint64_t now_ns);
