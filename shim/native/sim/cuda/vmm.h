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
  uint64_t shared;        /* what the device knows it as; 0: not handed out yet */
  sim_gpu *home;          /* the device that knows it: of host memory, the first */
  unsigned handles, maps; /* mappings, and what else holds it */
  sim_team *team;         /* NULL: not a multicast object */
} sim_physical;

/* Kinds of descriptors. */
#define SIM_OF_MEMORY 1
#define SIM_OF_POOL 2
#define SIM_OF_DMA_BUF 3
CUresult sim_hand_out(sim_gpu *gpu, uint64_t shared, uint8_t kind, int *descriptor);

CUresult sim_physical_share(sim_physical *physical); /* big lock held */
CUresult sim_physical_of(CUmemGenericAllocationHandle handle, sim_physical **physical);
void sim_physical_let_go(sim_physical *physical); /* frees it when nothing refers to it any more */
void sim_team_free(sim_team *team);
void sim_sparse_forget(const void *resource); /* an array is destroyed: what is mapped in it goes */
