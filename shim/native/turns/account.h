/* What a tenant is owed of a device, in device time: the arithmetic behind turns.
 *
 *   credit grows by share * elapsed, and falls by what was measured in the tenant's turns
 *
 * A strict tenant has a turn only once it is owed a whole one, so it never exceeds its share by
 * more than that. Elastic tenants also share what is left, in proportion to their shares: what they
 * are lent is no debt. Nothing here reads a clock or a page.
 *
 *   held credit grows alike, and falls by the length of the tenant's turns
 *
 * What was measured is the tenant's own word, and who uses part of its turns gets more of them. So
 * whoever has held the device for less than its share goes before all that held it for more.
 *
 * Plain C without inline code: cffi reads this very file. Times are nanoseconds.
 */
#pragma once

#include <stdint.h>

#define PENSTOCK_TURN_SHORTEST_NS 10000000
#define PENSTOCK_TURN_ROUND_NS 40000000  /* a turn is the share of this, if longer */
#define PENSTOCK_TURN_SAVED_NS 500000000 /* wall time that can be owed */
#define PENSTOCK_TURN_LENT_NS 200000000  /* wall time that an elastic tenant can owe */
#define PENSTOCK_TURN_FLOOR 4            /* a turn counts as used for one part in so many */

typedef struct penstock_account {
  uint32_t cores_permille; /* 1..1000 */
  uint32_t elastic;
  int64_t credit_ns;    /* device time owed; below zero: had too much */
  int64_t held_ns;      /* the same, of time for which it held the device */
  uint64_t rest;        /* of the growth, in ns / 1000 */
  uint64_t prepaid_ns;  /* taken off already, ahead of what will be measured */
  uint64_t finished_ns; /* when its last turn ended; breaks ties */
} penstock_account;

/* A full turn of a tenant with such a share. */
uint64_t penstock_account_turn_ns(uint32_t cores_permille);

void penstock_account_init(penstock_account *account, uint32_t cores_permille, uint32_t elastic);

/* `elapsed_ns` have passed. One that was not at work of late saves up no more than one. */
void penstock_account_earn(penstock_account *account, uint64_t elapsed_ns, int at_work);

/* `used_ns` of device time were measured. */
void penstock_account_spend(penstock_account *account, uint64_t used_ns);

/* A turn of `length_ns` is over, `overrun_ns` of it past its end. Counts as used in part whatever
 * will be measured, the overrun in full: the measure comes from the tenant. */
void penstock_account_finish(penstock_account *account, uint64_t length_ns, uint64_t overrun_ns,
                             uint64_t now_ns);

/* When it may have a turn if nothing changes, counted from now; 0: now. */
uint64_t penstock_account_ready_ns(const penstock_account *account);

/* How long its turn may be. `wanted_permille`: the shares of all that want turns, this one
 * included; elastic ones divide a whole round by them. */
uint64_t penstock_account_length_ns(const penstock_account *account, uint32_t wanted_permille);

/* Of the `count`, among those whose `wants` is not 0 and that may have a turn now, the one that is
 * owed most for its share; before all others those that held the device for less than theirs. -1:
 * none. What elastic ones were lent is forgiven them all alike. */
int penstock_account_choose(penstock_account *const *accounts, const uint8_t *wants, int count);
