/* Process descriptors (pidfds) that show whether the owners of a tenant's slots have ended. One
 * call checks all of them at any time and detects zombies. Without descriptors only /proc shows a
 * zombie, and reading /proc costs too much for thousands of processes every second.
 *
 * Plain C without inline code, because cffi parses this header.
 */
#pragma once

#include <stdint.h>

/* number of slots of a tenant that are watched; the others are checked without a descriptor */
#define PENSTOCK_WATCHED 64

typedef struct penstock_watch {
  uint32_t open; /* number of open descriptors */
  /* owner word of the slot with the same index, 0 if it is not watched */
  uint64_t owners[PENSTOCK_WATCHED];
  int32_t pidfds[PENSTOCK_WATCHED];
} penstock_watch;
