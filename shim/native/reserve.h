/* Memory that the driver keeps in reserve for many allocations: stream-ordered pools, and the pool
 * of graph memory nodes that every device has.
 *
 * Charged is the reserve, not the single allocation. An allocation that the reserve as last read
 * cannot hold charges a bound of the growth first (its size in whole growth steps), calls the
 * driver, reads the new reserve and gives back what was too much. If the reserve grew by more than
 * the bound and the quota cannot hold that, the allocation is undone, and the step is learned.
 *
 * The driver shrinks a reserve when the program synchronises. The shim notices when it is told
 * (penstock_reserves_settle): after a synchronising call, before a refusal, when the program asks
 * how much is free.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct penstock_reserve {
  CUmemoryPool pool; /* NULL: graph memory of `device` */
  CUdevice device;
  int grant;           /* -1: not on a granted device; charges are refused */
  bool free_of_charge; /* host memory */
  uint32_t lock;       /* guards what follows; never held across a driver call */
  bool destroyed;      /* cuMemPoolDestroy was called: lives until its memory is freed */
  uint32_t unread;     /* allocations since the reserve was read */
  uint64_t charged;    /* the reserve as last read */
  uint64_t pending;    /* bounds of allocations under way, charged too */
  uint64_t used;       /* sizes of allocations not freed yet */
  uint64_t step;       /* growth comes in multiples of this */
  uint64_t version;    /* counts settlements */
} penstock_reserve;

/* The reserve behind a pool; made known at the first use. NULL without memory. */
penstock_reserve *penstock_reserve_of_pool(CUmemoryPool pool, CUdevice device, bool on_host);
penstock_reserve *penstock_reserve_find(CUmemoryPool pool);
penstock_reserve *penstock_reserve_of_graphs(CUdevice device);

/* Before the driver call: *bound is what was charged for it (0: the reserve has room). */
CUresult penstock_reserve_admit(penstock_reserve *reserve, uint64_t bytes, uint64_t *bound);

/* The same for a growth of `bytes` whatever room there is; counts nothing as in use. */
CUresult penstock_reserve_admit_growth(penstock_reserve *reserve, uint64_t bytes, uint64_t *bound);

/* After a driver call that failed: the bound is given back, and `bytes` are not in use. */
void penstock_reserve_cancel(penstock_reserve *reserve, uint64_t bytes, uint64_t bound);

/* After one that succeeded. False: the reserve grew beyond the quota; undo the allocation. */
bool penstock_reserve_settle(penstock_reserve *reserve, uint64_t bound);

/* `bytes` of the reserve are no longer in use. */
void penstock_reserve_unuse(penstock_reserve *reserve, uint64_t bytes);

/* Around cuMemPoolDestroy: what is still in use then stays charged until it is freed. */
void penstock_reserve_retire(penstock_reserve *reserve);
CUresult penstock_reserve_retired(penstock_reserve *reserve, CUresult result);

/* Reads every reserve that may have shrunk and gives back. True if something came back. Cheap when
 * nothing was freed since the last time. */
bool penstock_reserves_settle(void);
