/* A tenant's turn on a device, in the quota page: until when it may have the device for itself.
 *
 * The words lie in copies[0] of the page whichever copy is current, and one thread writes them in
 * place (turns/giver.c): a change of limits meanwhile can neither lose a turn nor bring back an old
 * one. They count only while that thread renews `turn_alive_ns`; when it is silent for
 * PENSTOCK_TURN_SILENT_NS, the tenant goes on as without turns.
 *
 * Plain C without inline code, like gate.h. Times are CLOCK_MONOTONIC nanoseconds.
 */
#pragma once

#include <stdint.h>

#include "abi/quota.h"

#define PENSTOCK_TURN_SILENT_NS 200000000
/* In place of a begin: turns are handed out, and this tenant has none. */
#define PENSTOCK_TURN_NONE 1

typedef struct penstock_turn {
  uint64_t begin_ns; /* 0: no turns are handed out; names the turn: no two begin alike */
  uint64_t end_ns;
  uint64_t alive_ns; /* when the giver last showed that it lives */
  uint64_t flags;    /* PENSTOCK_TURN_* */
} penstock_turn;

/* Are turns handed out? One relaxed load. */
int penstock_turn_any(const penstock_quota_page *page, unsigned device);

/* The turn as it was at one moment; without a begin if the page changes all the time. */
void penstock_turn_read(const penstock_quota_page *page, unsigned device, penstock_turn *out);

/* For the one who hands out turns. `begin` writes a turn and wakes the tenant's sleepers; `end`
 * changes its end; `off` says that no turns are handed out, and wakes. */
void penstock_turn_begin(penstock_quota_page *page, unsigned device, const penstock_turn *turn);
void penstock_turn_end(penstock_quota_page *page, unsigned device, uint64_t end_ns);
void penstock_turn_alive(penstock_quota_page *page, unsigned device, uint64_t now_ns);
void penstock_turn_off(penstock_quota_page *page, unsigned device);
