/* A tenant's use of one device over about the last second, computed from samples of its usage page.
 *
 * Plain C without inline code, because cffi parses this header. Times are CLOCK_MONOTONIC, in ns.
 */
#pragma once

#include <stdint.h>

#define PENSTOCK_RECENT_WINDOW_NS 1000000000
/* Time for which one wait counts as demand. It is longer than the window over which use is
 * averaged, because the use of a tenant whose allowance has just grown is at first still averaged
 * with the slower past, and the tenant must not be mistaken for one that needs no more. */
#define PENSTOCK_RECENT_ASKING_NS 2000000000
/* maximum number of samples in a window; more frequent samples shorten the window */
#define PENSTOCK_RECENT_SAMPLES 24

typedef struct penstock_recent {
  uint32_t first;
  uint32_t count;
  uint64_t at_ns[PENSTOCK_RECENT_SAMPLES];
  uint64_t spent_ns[PENSTOCK_RECENT_SAMPLES];
  uint64_t launches; /* value at the last sample */
  uint64_t waits;
  uint64_t waited_at_ns; /* time of the last sample that showed a new wait, 0 if none */
  uint64_t active_at_ns;
  uint64_t active_since_ns;
} penstock_recent;

/* Adds a sample of the page. `in_flight` is nonzero if launches are in flight that no other field
 * of the page may show. */
void penstock_recent_add(penstock_recent *recent, uint64_t at_ns, uint64_t spent_ns,
                         uint64_t launches, uint64_t waits, int in_flight);

/* Returns the share of the device's time that was charged over the window, in permille. */
uint32_t penstock_recent_permille(const penstock_recent *recent);

/* Returns 1 if there was any work in the last second, 0 otherwise. */
int penstock_recent_is_active(const penstock_recent *recent, uint64_t at_ns);

/* Returns 1 if launches had to wait recently, or if work has only just begun, so that its use is
 * not yet known; 0 otherwise. */
int penstock_recent_is_asking(const penstock_recent *recent, uint64_t at_ns);
