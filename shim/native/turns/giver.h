/* The time-slice scheduler: a thread that gives each tenant of a device time slices ("turns").
 *
 * While fewer than two tenants are at work there are no slices, and each tenant's own gate keeps
 * its share. The thread waits only for time: a tenant's writes to its usage page can waste its own
 * slices but no other tenant's.
 *
 * Plain C without inline code: cffi reads this very file. Times are nanoseconds, moments are
 * CLOCK_MONOTONIC. Functions that can fail return 0, or a negative errno.
 */
#pragma once

#include <stdint.h>

typedef struct penstock_turns penstock_turns; /* of one device */

typedef struct penstock_turns_figures {
  uint64_t turns;    /* given, ever */
  uint64_t overruns; /* of them: the tenant's work continued past the end */
  uint64_t overrun_ns;
  uint64_t held_ns; /* total length of all slices, overruns included */
  uint64_t used_ns; /* device time charged by the tenants' own measurement since they were added */
  uint64_t steps;   /* iterations of the thread */
  uint64_t thread_ns; /* processor time of the thread */
  uint32_t tenants;
  uint32_t handed_out; /* 1: slices are being given at this moment */
} penstock_turns_figures;

/* Starts the thread. NULL: no memory or no thread; see errno. */
penstock_turns *penstock_turns_start(void);

/* Adds the tenant that the caller knows as `number`, with the device at index `device` of its
 * pages. The thread reads share, mode and suspension from the quota page and follows changes. It
 * keeps no descriptor of the caller's. -EEXIST: the number is in use; -EINVAL: no such device, or
 * no such pages. */
int penstock_turns_add(penstock_turns *turns, uint64_t number, int quota_fd, int usage_fd,
                       unsigned device);

/* Removes a tenant, which continues without time slices. -ENOENT: no such tenant. */
int penstock_turns_remove(penstock_turns *turns, uint64_t number);

/* Counters of all slices of the device, or of one tenant (`steps` and later fields stay 0). */
void penstock_turns_count(penstock_turns *turns, penstock_turns_figures *out);
int penstock_turns_count_of(penstock_turns *turns, uint64_t number, penstock_turns_figures *out);

/* Ends the thread and removes all tenants. */
void penstock_turns_stop(penstock_turns *turns);
