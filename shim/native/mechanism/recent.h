/* A tenant's use of one device over about the last second, from samples of its usage page.
 *
 * Plain C without inline code: cffi reads this very file. Times are CLOCK_MONOTONIC, ns.
 */
#pragma once

#include <stdint.h>

#define PENSTOCK_RECENT_WINDOW_NS 1000000000
/* How long one wait counts as demand. Longer than the window of use: while use still averages over
 * slower times, a tenant whose allowance just grew must not be taken for one that needs no more. */
#define PENSTOCK_RECENT_ASKING_NS 2000000000
#define PENSTOCK_RECENT_SAMPLES 24 /* of a window: more frequent samples make it shorter */

typedef struct penstock_recent {
  uint32_t first;
  uint32_t count;
  uint64_t at_ns[PENSTOCK_RECENT_SAMPLES];
  uint64_t spent_ns[PENSTOCK_RECENT_SAMPLES];
  uint64_t launches; /* as of the last sample */
  uint64_t waits;
  uint64_t waited_at_ns; /* 0: never */
  uint64_t active_at_ns;
  uint64_t active_since_ns;
} penstock_recent;

/* Adds a sample of the page. `in_flight`: launches are in flight that no other field of the page
 * may show. */
void penstock_recent_add(penstock_recent *recent, uint64_t at_ns, uint64_t spent_ns,
                         uint64_t launches, uint64_t waits, int in_flight);

/* Share of the device's time charged over the window. */
uint32_t penstock_recent_permille(const penstock_recent *recent);

/* Whether there was any work in the last second. */
int penstock_recent_is_active(const penstock_recent *recent, uint64_t at_ns);

/* Whether its launches had to wait recently, or it has just begun and its use says nothing yet. */
int penstock_recent_is_asking(const penstock_recent *recent, uint64_t at_ns);
