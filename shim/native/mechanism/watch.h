/* Process descriptors (pidfds) that show whether the holders of a tenant's slots have ended: one
 * call for all of them, at any time, zombies included. Otherwise only /proc shows a zombie, and
 * reading it costs too much for thousands of processes every second.
 *
 * Plain C without inline code: cffi reads this very file.
 */
#pragma once

#include <stdint.h>

#define PENSTOCK_WATCHED 64 /* slots of a tenant; others are checked without a descriptor */

typedef struct penstock_watch {
  uint32_t open;                     /* descriptors */
  uint64_t owners[PENSTOCK_WATCHED]; /* owner word of the slot of this index; 0: not watched */
  int32_t pidfds[PENSTOCK_WATCHED];
} penstock_watch;
