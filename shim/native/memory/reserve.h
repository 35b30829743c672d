/* Reserves: memory that the driver keeps for many allocations. Each stream-ordered pool is a
 * reserve, and each device has one for graph memory nodes.
 *
 * The reserve is charged, not the single allocation. An allocation first charges an upper bound of
 * the growth (its size in whole growth steps), calls the driver, reads the new size of the reserve
 * and uncharges the rest. Only one thread at a time does this. The bound is charged even when the
 * reserve has enough idle bytes, because they may be fragmented, or may have been freed in a stream
 * that has not reached the free yet. If the quota has no room for the bound, idle memory is first
 * returned to the device, so that the device never holds more than is charged. If the reserve grew
 * by more than the bound and the quota cannot hold that, the allocation is undone, and the larger
 * step is learned.
 *
 * An allocation needs no charge and no reading only if a block is known to be free for it, that is,
 * if a block of the same size was freed in the same stream and no allocation of another size or in
 * another stream was served since.
 *
 * The driver shrinks a reserve when the program synchronises. The shim reads the new size in
 * penstock_reserves_settle: after a synchronising call, before a refusal, and when the program asks
 * how much memory is free. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define PENSTOCK_FREE_BLOCK_LISTS 8
#define PENSTOCK_NO_STREAM UINT64_MAX /* stands for a stream that is not known */

/* Blocks of one size, freed in one stream, that are known to be free. */
typedef struct penstock_free_blocks {
  uint64_t stream; /* id from cuStreamGetId, which never repeats one */
  uint64_t bytes;
  uint64_t count;
} penstock_free_blocks;

typedef struct penstock_reserve {
  struct penstock_reserve *older; /* next reserve in the list of all reserves */
  CUmemoryPool pool;              /* NULL if this is the graph memory of `device` */
  CUdevice device;
  int grant;           /* -1 if the memory is not on a granted device, so charges are refused */
  bool free_of_charge; /* set for host memory */
  bool handed_out;     /* exported without a share, so charged until the process ends */
  bool managed; /* managed memory, whose pages come and go: at least the memory in use is charged */
  uint32_t lock;      /* guards all fields below; never held across a driver call */
  bool destroyed;     /* cuMemPoolDestroy was called; the reserve lives until its memory is freed */
  uint32_t in_flight; /* number of allocations admitted and not yet finished */
  uint32_t pins;    /* number of calls to the driver in a settlement or trim, during which the pool
                       must not be destroyed */
  uint64_t charged; /* size of the reserve as last read */
  uint64_t pending; /* bounds of allocations in flight, which are charged as well */
  uint64_t used;    /* sum of the sizes of allocations not freed yet */
  uint64_t step;    /* the reserve grows in multiples of this */
  uint64_t version; /* number of settlements */
  uint64_t excess;  /* part of the reserve, as last read, that the quota could not hold */
  uint32_t growth_lock; /* 1 while an allocation that may grow the reserve is in flight */
  uint64_t share;       /* share that is charged for a pool that can be exported (shares.h) */
  penstock_free_blocks free_blocks[PENSTOCK_FREE_BLOCK_LISTS];
} penstock_reserve;

typedef struct penstock_admission {
  uint64_t bytes;
  uint64_t bound; /* bytes charged for growth */
  bool is_reuse;  /* a block is known to be free, so the reserve does not grow */
  bool holds_growth_lock;
} penstock_admission;

/* Returns the reserve of a pool or of a device's graph memory, which the first call adds, or NULL
 * if there is no memory. penstock_reserve_find returns NULL instead of adding one. */
penstock_reserve *penstock_reserve_of_pool(CUmemoryPool pool, CUdevice device, bool on_host);
penstock_reserve *penstock_reserve_find(CUmemoryPool pool);
penstock_reserve *penstock_reserve_of_graphs(CUdevice device);

/* Charges the growth that an allocation may cause; call before the driver call. Unless it is
 * refused, `cancel` or `complete` must follow. */
CUresult penstock_reserve_admit(penstock_reserve *reserve, uint64_t bytes, uint64_t stream,
                                penstock_admission *admission);

/* Ends an admission after the driver has refused the allocation. */
void penstock_reserve_cancel(penstock_reserve *reserve, const penstock_admission *admission);

/* Ends an admission after the driver has allocated. Returns false if the reserve grew beyond the
 * quota; then free the memory and call `undone`, which other threads wait for. */
bool penstock_reserve_complete(penstock_reserve *reserve, penstock_admission *admission);
void penstock_reserve_undone(penstock_reserve *reserve, penstock_admission *admission);

/* Counts an allocation from a reserve that was not known before. Returns false if the quota cannot
 * hold all of the reserve; then free the memory. */
bool penstock_reserve_adopt(penstock_reserve *reserve, uint64_t bytes);

/* Charges a growth by `bytes`; call before a driver call that may make the reserve grow. `*bound`
 * receives what was charged. */
CUresult penstock_reserve_admit_growth(penstock_reserve *reserve, uint64_t bytes, uint64_t *bound);

/* Uncharges the bound after the driver call failed. */
void penstock_reserve_cancel_growth(penstock_reserve *reserve, uint64_t bound);

/* Adjusts the charge to the reserve's current size; call after the driver call succeeded, or at any
 * other time with a bound of 0. Returns false if the quota cannot hold the reserve. */
bool penstock_reserve_settle(penstock_reserve *reserve, uint64_t bound);

/* Notes that `bytes` of the reserve are free again once `stream` has reached this point. */
void penstock_reserve_unuse(penstock_reserve *reserve, uint64_t bytes, uint64_t stream);

/* Call `retire` before and `retired` after cuMemPoolDestroy. Memory that is still in use stays
 * charged until it is freed. */
void penstock_reserve_retire(penstock_reserve *reserve);
CUresult penstock_reserve_retired(penstock_reserve *reserve, CUresult result);

/* Notes that a reserve may shrink from now on, so that the next penstock_reserves_settle reads the
 * reserves. */
void penstock_reserves_changed(void);

/* Reads every reserve that may have shrunk and uncharges the difference. Returns true if there was
 * any. Cheap when nothing was freed since the last time. */
bool penstock_reserves_settle(void);

/* Settles all reserves after returning idle memory of all pools to the device, which slows down
 * their next allocations. Returns true if anything was uncharged. */
bool penstock_reserves_trim(void);
