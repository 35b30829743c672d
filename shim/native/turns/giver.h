/* The giver of turns: a thread that hands a device out among the tenants that want it.
 *
 * While fewer than two tenants are at work nothing is handed out, and each tenant's own gate keeps
 * its share. The thread waits for time only: what a tenant writes into its usage page can waste its
 * own turns and nobody else's.
 *
 * Plain C without inline code: cffi reads this very file. Times are nanoseconds, moments are
 * CLOCK_MONOTONIC. Functions that can fail return 0, or a negative errno.
 */
#pragma once

#include <stdint.h>

typedef struct penstock_turns penstock_turns; /* of one device */

typedef struct penstock_turns_figures {
  uint64_t turns;    /* handed out, ever */
  uint64_t overruns; /* of them: the tenant's work went on past the end */
  uint64_t overrun_ns;
  uint64_t held_ns;   /* the length of all turns, overruns included */
  uint64_t used_ns;   /* device time charged by the tenants' own measure since they were added */
  uint64_t steps;     /* times that the thread looked around */
  uint64_t thread_ns; /* processor time of the thread */
  uint32_t tenants;
  uint32_t handed_out; /* 1: turns are handed out at this moment */
} penstock_turns_figures;

/* Starts the thread. NULL: no memory or no thread; see errno. */
penstock_turns *penstock_turns_start(void);

/* Adds the tenant that the caller knows as `number`, with the device at index `device` of its
 * pages. Share, mode and suspension are read from the quota page, and followed as they change.
 * Keeps no descriptor of the caller's. -EEXIST: the number is in use; -EINVAL: no such device, or
 * no such pages. */
int penstock_turns_add(penstock_turns *turns, uint64_t number, int quota_fd, int usage_fd,
                       unsigned device);

/* Takes a tenant out; it goes on as without turns. -ENOENT: not there. */
int penstock_turns_remove(penstock_turns *turns, uint64_t number);

/* Figures of all turns of the device, or of one tenant (`steps` and below stay 0). */
void penstock_turns_count(penstock_turns *turns, penstock_turns_figures *out);
int penstock_turns_count_of(penstock_turns *turns, uint64_t number, penstock_turns_figures *out);

/* Ends the thread and takes all tenants out. */
void penstock_turns_stop(penstock_turns *turns);
