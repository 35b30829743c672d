/* Memory that the child of a fork finds zeroed. It holds state that a child must not inherit, such
 * as locks that another thread may have held. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct penstock_fork_wiped {
  void *memory;
  uint32_t pid; /* process that the contents belong to, compared with getpid() at each use; 0 if the
                   kernel wipes the memory on fork */
} penstock_fork_wiped;

/* Returns the memory, which the first call maps, or NULL if it cannot be mapped. Pass the same size
 * at each call. */
void *penstock_fork_wiped_get(penstock_fork_wiped *self, size_t size);
