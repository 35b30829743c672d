/* A tenant's time slice ("turn") on a device, in the quota page: until when it may have the device
 * for itself.
 *
 * The words lie in copies[0] of the page whichever copy is current, and one thread writes them in
 * place (turns/giver.c): a concurrent change of limits can neither lose a slice nor bring back an
 * old one. The words count only while that thread renews `turn_alive_ns`; when it is silent for
 * PENSTOCK_TURN_SILENT_NS, the tenant continues without time slices.
 *
 * Plain C without inline code, like gate.h. Times are CLOCK_MONOTONIC nanoseconds.
 */
#pragma once

#include <stdint.h>

#include "abi/quota.h"

#define PENSTOCK_TURN_SILENT_NS 200000000
/* As `begin_ns`: there are time slices, and the current one is not this tenant's. */
#define PENSTOCK_TURN_NONE 1

typedef struct penstock_turn {
  uint64_t begin_ns; /* 0: no time slices; identifies the slice: no two begin at the same time */
  uint64_t end_ns;
  uint64_t alive_ns; /* when the time-slice scheduler last showed that it lives */
  uint64_t flags;    /* PENSTOCK_TURN_* */
} penstock_turn;

/* Are there time slices? One relaxed load. */
int penstock_turn_any(const penstock_quota_page *page, unsigned device);

/* A consistent copy of the slice; without a begin if the page changes all the time. */
void penstock_turn_read(const penstock_quota_page *page, unsigned device, penstock_turn *out);

/* For the time-slice scheduler. `begin` writes a slice and wakes the tenant's sleepers; `end`
 * changes its end; `off` says that there are no time slices, and wakes. */
void penstock_turn_begin(penstock_quota_page *page, unsigned device, const penstock_turn *turn);
void penstock_turn_end(penstock_quota_page *page, unsigned device, uint64_t end_ns);
void penstock_turn_alive(penstock_quota_page *page, unsigned device, uint64_t now_ns);
void penstock_turn_off(penstock_quota_page *page, unsigned device);
