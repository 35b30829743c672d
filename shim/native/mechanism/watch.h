/* Whether the processes that hold a tenant's slots have ended, told by descriptors of them: one
 * call for all, at any moment, zombies included. Beside it only a look into /proc tells a zombie,
 * and that is too much for thousands of processes every second.
 *
 * Plain C without inline code: cffi reads this very file.
 */
#pragma once

#include <stdint.h>

#define PENSTOCK_WATCHED 64 /* slots of a tenant; those beyond are looked at */

typedef struct penstock_watch {
  uint32_t open;                     /* descriptors */
  uint64_t owners[PENSTOCK_WATCHED]; /* owner word of the slot of this index; 0: not watched */
  int32_t pidfds[PENSTOCK_WATCHED];
} penstock_watch;
