/* What a tenant is owed of a device, in device time: the arithmetic behind time slices.
 *
 *   credit grows by share * elapsed, and falls by the time measured in the tenant's slices
 *
 * A strict tenant gets a slice only once it is owed a whole one, so it never exceeds its share by
 * more than one slice. Elastic tenants also share the rest, in proportion to their shares: time
 * lent to them is no overdraft. Nothing here reads a clock or a page.
 *
 *   held credit grows in the same way, and falls by the length of the tenant's slices
 *
 * The measured time comes from the tenant itself, and a tenant that uses only part of its slices
 * gets more slices. Therefore tenants that have held the device for less than their share go before
 * all others.
 *
 * This header is plain C without inline code because cffi reads it. Times are in nanoseconds. */
#pragma once

#include <stdint.h>

#define PENSTOCK_SLICE_SHORTEST_NS 10000000
/* A slice lasts the tenant's share of this time, if that is longer than the shortest slice. */
#define PENSTOCK_SLICE_ROUND_NS 40000000
#define PENSTOCK_SLICE_SAVED_NS 500000000 /* most wall time that a tenant can be owed */
#define PENSTOCK_SLICE_LENT_NS 200000000  /* most wall time that an elastic tenant can owe */
#define PENSTOCK_SLICE_FLOOR 4 /* at least one part in this many of a slice counts as used */

typedef struct penstock_account {
  uint32_t cores_permille; /* from 1 to 1000 */
  uint32_t elastic;
  int64_t credit_ns; /* device time that the tenant is owed, negative if it has used too much */
  int64_t held_ns;   /* held credit, which falls by the time for which the tenant held the device */
  uint64_t rest;     /* remainder of the growth, in ns / 1000 */
  uint64_t prepaid_ns;  /* time already deducted, before it is measured */
  uint64_t finished_ns; /* time at which the tenant's last slice ended, which breaks ties */
} penstock_account;

/* Returns the length of a full slice of a tenant with this share. */
uint64_t penstock_account_slice_ns(uint32_t cores_permille);

void penstock_account_init(penstock_account *account, uint32_t cores_permille, uint32_t elastic);

/* Credits the share of `elapsed_ns`. A tenant with no recent work saves up at most one slice. */
void penstock_account_earn(penstock_account *account, uint64_t elapsed_ns, int at_work);

/* Deducts `used_ns` of measured device time. */
void penstock_account_spend(penstock_account *account, uint64_t used_ns);

/* Deducts a finished slice of `length_ns`, of which `overrun_ns` ran past the slice's end. Because
 * the measurement comes from the tenant, part of the slice counts as used whatever is measured
 * later, and the overrun counts in full. */
void penstock_account_finish(penstock_account *account, uint64_t length_ns, uint64_t overrun_ns,
                             uint64_t now_ns);

/* Returns the time until the tenant may have a slice if nothing changes, 0 if it may have one
 * now. */
uint64_t penstock_account_ready_ns(const penstock_account *account);

/* Returns how long the tenant's slice may be. `wanted_permille` is the sum of the shares of all
 * tenants that want a slice, including this one; it determines how elastic tenants divide a whole
 * round. */
uint64_t penstock_account_length_ns(const penstock_account *account, uint32_t wanted_permille);

/* Chooses the next tenant among the `count` accounts whose `wants` is not 0 and that may have a
 * slice now. Tenants that held the device for less than their share come first, and among those the
 * one that is owed most relative to its share. Returns -1 if there is none. If all elastic tenants
 * that want a slice are overdrawn, time lent to elastic tenants is forgiven in proportion to their
 * shares. */
int penstock_account_choose(penstock_account *const *accounts, const uint8_t *wants, int count);
