/* The time-slice scheduler: a thread that gives time slices to the tenants of a device.
 *
 * While fewer than two tenants are at work, there are no slices, and each tenant's own gate
 * enforces its share. The thread waits only for time to pass, so what a tenant writes to its usage
 * page can waste its own slices but no other tenant's.
 *
 * This header is plain C without inline code because cffi reads it. Times are in nanoseconds, and
 * points in time are CLOCK_MONOTONIC. Functions that can fail return 0 or a negative errno. */
#pragma once

#include <stdint.h>

typedef struct penstock_scheduler penstock_scheduler; /* scheduler of one device */

typedef struct penstock_scheduler_figures {
  uint64_t slices;   /* total number of slices given */
  uint64_t overruns; /* slices at whose end the tenant's work continued */
  uint64_t overrun_ns;
  uint64_t held_ns; /* total length of all slices, including overruns */
  uint64_t used_ns; /* device time charged according to the tenants' own measurement since they were
                       added */
  uint64_t steps;   /* iterations of the thread */
  uint64_t thread_ns; /* processor time of the thread */
  uint32_t tenants;
  uint32_t handed_out; /* 1 while slices are being given */
} penstock_scheduler_figures;

/* Starts the thread. Returns NULL, with errno set, if there is no memory or no thread. */
penstock_scheduler *penstock_scheduler_start(void);

/* Adds the tenant that the caller identifies by `number`, with the device at index `device` of the
 * tenant's pages. The thread reads share, mode and suspension from the quota page and follows
 * changes. The scheduler keeps neither of the caller's descriptors. Returns -EEXIST if the number
 * is in use, and -EINVAL if the pages are invalid or have no such device. */
int penstock_scheduler_add(penstock_scheduler *scheduler, uint64_t number, int quota_fd,
                           int usage_fd, unsigned device);

/* Removes a tenant, which continues without time slices. Returns -ENOENT if there is no such
 * tenant. */
int penstock_scheduler_remove(penstock_scheduler *scheduler, uint64_t number);

/* Read the counters of all slices of the device, or of one tenant's slices (for which `steps` and
 * the fields after it stay 0). */
void penstock_scheduler_count(penstock_scheduler *scheduler, penstock_scheduler_figures *out);
int penstock_scheduler_count_of(penstock_scheduler *scheduler, uint64_t number,
                                penstock_scheduler_figures *out);

/* Ends the thread and removes all tenants. */
void penstock_scheduler_stop(penstock_scheduler *scheduler);
