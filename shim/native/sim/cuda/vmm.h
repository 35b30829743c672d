/* Physical memory, made by vmm.c and used by multicast.c and sparse.c. Callers hold the big
 * lock. */
#pragma once
#include "sim/cuda/core.h"

#define SIM_GRANULE (2 * SIM_MIB)

typedef struct sim_bound {
  uint64_t offset, bytes; /* position in the multicast object */
  int device;
  struct sim_physical *physical;
  struct sim_bound *next;
} sim_bound;

/* A multicast object: a sim_physical without memory of its own. */
typedef struct sim_team {
  unsigned devices; /* number of devices in the team */
  uint64_t added;   /* one bit for each ordinal that has been added */
  sim_bound *bound;
} sim_team;

typedef struct sim_physical {
  CUmemAllocationProp prop;
  sim_gpu *gpu; /* NULL for host memory */
  uint64_t bytes;
  uint64_t backing; /* heap pages that hold the contents, 0 if they are in a file of their own */
  int fd;
  uint64_t shared;        /* ID of the shared memory, 0 if not exported yet */
  sim_gpu *home;          /* device that `shared` belongs to; the first device for host memory */
  unsigned handles, maps; /* `maps` counts mappings and other users */
  sim_team *team;         /* NULL if this is not a multicast object */
} sim_physical;

/* Kinds of descriptors for exported memory. */
#define SIM_OF_MEMORY 1
#define SIM_OF_POOL 2
#define SIM_OF_DMA_BUF 3
CUresult sim_hand_out(sim_gpu *gpu, uint64_t shared, uint8_t kind, int *descriptor);

CUresult sim_physical_share(sim_physical *physical); /* the caller holds the big lock */
CUresult sim_physical_of(CUmemGenericAllocationHandle handle, sim_physical **physical);
void sim_physical_let_go(sim_physical *physical); /* frees the memory with its last reference */
void sim_team_free(sim_team *team);
/* called when an array is destroyed, and its mappings with it */
void sim_sparse_forget(const void *resource);
