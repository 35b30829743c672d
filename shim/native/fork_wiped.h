/* Memory that is all zero again in the child of a fork: state that a child must not inherit, locks
 * that another thread may have held among it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct penstock_fork_wiped {
  void *memory;
  uint32_t pid; /* non-zero: the kernel cannot wipe; compared with getpid() at each use */
} penstock_fork_wiped;

/* The memory, mapped at the first use; NULL without memory. The same size at each call. */
void *penstock_fork_wiped_get(penstock_fork_wiped *self, size_t size);
