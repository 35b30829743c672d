/* Physical memory, as vmm.c makes it and multicast.c and sparse.c hold it; with the big lock held.
 */
#pragma once
#include "sim/cuda/core.h"

#define SIM_GRANULE (2 * SIM_MIB)

typedef struct sim_bound {
  uint64_t offset, bytes; /* in the multicast object */
  int device;
  struct sim_physical *physical;
  struct sim_bound *next;
} sim_bound;

/* A multicast object is physical memory without memory of its own. */
typedef struct sim_team {
  unsigned devices; /* of the team */
  uint64_t added;   /* bit: ordinal */
  sim_bound *bound;
} sim_team;

typedef struct sim_physical {
  CUmemAllocationProp prop;
  sim_gpu *gpu; /* NULL: host memory */
  uint64_t bytes;
  uint64_t backing; /* pages of the heap that hold the contents; 0: a file of its own */
  int fd;
  struct sim_trailer *shared; /* of that file */
  unsigned handles, maps;     /* mappings, and what else holds it */
  sim_team *team;             /* NULL: not a multicast object */
} sim_physical;

CUresult sim_physical_of(CUmemGenericAllocationHandle handle, sim_physical **physical);
void sim_physical_let_go(sim_physical *physical); /* frees it when nothing refers to it any more */
void sim_team_free(sim_team *team);
void sim_sparse_forget(const void *resource); /* an array is destroyed: what is mapped in it goes */
