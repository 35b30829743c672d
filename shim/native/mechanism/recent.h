/* What a tenant did on one device over about the last second, told from samples of its usage page.
 *
 * Plain C without inline code: cffi reads this very file. Moments are CLOCK_MONOTONIC, ns.
 */
#pragma once

#include <stdint.h>

#define PENSTOCK_RECENT_WINDOW_NS 1000000000
/* How long one wait counts as asking. Longer than the window of use: while use still averages over
 * slower times, a tenant that was just given more must not be taken for one that needs no more. */
#define PENSTOCK_RECENT_ASKING_NS 2000000000
#define PENSTOCK_RECENT_SAMPLES 24 /* of a window: one that is sampled more often is shorter */

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

/* Takes in what the page says now. `in_flight`: launches are under way that nothing else in the
 * page may tell of. */
void penstock_recent_add(penstock_recent *recent, uint64_t at_ns, uint64_t spent_ns,
                         uint64_t launches, uint64_t waits, int in_flight);

/* Share of the device's time charged over the window. */
uint32_t penstock_recent_permille(const penstock_recent *recent);

/* Whether there was any work in the last second. */
int penstock_recent_is_active(const penstock_recent *recent, uint64_t at_ns);

/* Whether its launches had to wait lately, or it has just begun and use tells nothing. */
int penstock_recent_is_asking(const penstock_recent *recent, uint64_t at_ns);
