/* What a tenant is owed of a device, in device time: the arithmetic behind time slices ("turns").
 *
 *   credit grows by share * elapsed, and falls by the time measured in the tenant's slices
 *
 * A strict tenant gets a slice only once it is owed a whole one, so it never exceeds its share by
 * more than that. Elastic tenants also share the rest, in proportion to their shares: time lent to
 * them is no overdraft. Nothing here reads a clock or a page.
 *
 *   held credit grows in the same way, and falls by the length of the tenant's slices
 *
 * The measured time comes from the tenant itself, and a tenant that uses part of its slices gets
 * more of them. So tenants that held the device for less than their share go before all others.
 *
 * Plain C without inline code: cffi reads this very file. Times are nanoseconds.
 */
#pragma once

#include <stdint.h>

#define PENSTOCK_TURN_SHORTEST_NS 10000000
#define PENSTOCK_TURN_ROUND_NS 40000000  /* a slice is the share of this, if longer */
#define PENSTOCK_TURN_SAVED_NS 500000000 /* wall time that can be owed */
#define PENSTOCK_TURN_LENT_NS 200000000  /* wall time that an elastic tenant can owe */
#define PENSTOCK_TURN_FLOOR 4 /* at least one part in so many of a slice counts as used */

typedef struct penstock_account {
  uint32_t cores_permille; /* 1..1000 */
  uint32_t elastic;
  int64_t credit_ns;    /* device time owed; below zero: it had too much */
  int64_t held_ns;      /* held credit: by the time for which it held the device */
  uint64_t rest;        /* remainder of the growth, in ns / 1000 */
  uint64_t prepaid_ns;  /* deducted already, before it is measured */
  uint64_t finished_ns; /* when its last slice ended; breaks ties */
} penstock_account;

/* Length of a full slice of a tenant with such a share. */
uint64_t penstock_account_turn_ns(uint32_t cores_permille);

void penstock_account_init(penstock_account *account, uint32_t cores_permille, uint32_t elastic);

/* `elapsed_ns` have passed. A tenant with no recent work saves up at most one slice. */
void penstock_account_earn(penstock_account *account, uint64_t elapsed_ns, int at_work);

/* `used_ns` of device time were measured. */
void penstock_account_spend(penstock_account *account, uint64_t used_ns);

/* A slice of `length_ns` is over, `overrun_ns` of it past its end. Part of the slice counts as used
 * whatever will be measured, the overrun in full: the measurement comes from the tenant. */
void penstock_account_finish(penstock_account *account, uint64_t length_ns, uint64_t overrun_ns,
                             uint64_t now_ns);

/* Time until the tenant may have a slice if nothing changes; 0: now. */
uint64_t penstock_account_ready_ns(const penstock_account *account);

/* How long its slice may be. `wanted_permille`: sum of the shares of all tenants that want a slice,
 * this one included; elastic tenants divide a whole round by it. */
uint64_t penstock_account_length_ns(const penstock_account *account, uint32_t wanted_permille);

/* Chooses among the `count` accounts whose `wants` is not 0 and that may have a slice now. Those
 * that held the device for less than their share come first; of these the one that is owed most for
 * its share. -1: none. Time lent to elastic tenants is forgiven all of them alike. */
int penstock_account_choose(penstock_account *const *accounts, const uint8_t *wants, int count);
