/* Memory that the driver keeps in reserve for many allocations: stream-ordered pools, and the pool
 * of graph memory nodes that every device has.
 *
 * Charged is the reserve, not the single allocation. An allocation charges a bound of the growth
 * first (its size in whole growth steps), calls the driver, reads the new reserve and gives back
 * what was too much: one such call at a time. Also when there is room by the sums: what was freed
 * lies in pieces, or in a stream that has not reached the free. Where the quota has no room for the
 * bound, idle memory of the reserve is given back to the device first, so that the device never
 * holds more than was charged. If the reserve grew by more than the bound and the quota cannot hold
 * that, the allocation is undone, and the step is learned.
 *
 * Only an allocation that is sure to find a block needs no charge and no reading: one of the same
 * size was freed in the same stream, and no other size or stream was served since.
 *
 * The driver shrinks a reserve when the program synchronises. The shim notices when it is told
 * (penstock_reserves_settle): after a synchronising call, before a refusal, when the program asks
 * how much is free.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define PENSTOCK_SHAPES 8
#define PENSTOCK_NO_STREAM UINT64_MAX /* a free or allocation in a stream that is not known */

/* Blocks that are certainly free: of this size, freed in this stream. */
typedef struct penstock_shape {
  uint64_t stream; /* as cuStreamGetId says, never given twice */
  uint64_t bytes;
  uint64_t count;
} penstock_shape;

typedef struct penstock_reserve {
  struct penstock_reserve *older; /* in the list of all */
  CUmemoryPool pool;              /* NULL: graph memory of `device` */
  CUdevice device;
  int grant;           /* -1: not on a granted device; charges are refused */
  bool free_of_charge; /* host memory */
  bool handed_out;     /* without a share: charged until the process ends */
  bool managed;        /* its pages come and go: at least what is in use is charged */
  uint32_t lock;       /* guards what follows; never held across a driver call */
  bool destroyed;      /* cuMemPoolDestroy was called: lives until its memory is freed */
  uint32_t under_way;  /* allocations between admission and their end */
  uint32_t visits;     /* threads that look at a pool that another one may destroy meanwhile */
  uint64_t charged;    /* the reserve as last read */
  uint64_t pending;    /* bounds of allocations under way, charged too */
  uint64_t used;       /* sizes of allocations not freed yet */
  uint64_t step;       /* growth comes in multiples of this */
  uint64_t version;    /* counts settlements */
  uint64_t excess;     /* of the reserve as last read: what the quota could not hold */
  uint32_t turn;       /* 1: a call that may grow the reserve unannounced is under way */
  uint64_t share;      /* of a pool that can be exported: where it is charged (shares.h) */
  penstock_shape shapes[PENSTOCK_SHAPES];
} penstock_reserve;

typedef struct penstock_admission {
  uint64_t bytes;
  uint64_t bound; /* charged for growth */
  bool sure;      /* the reserve does not grow */
  bool in_turn;   /* holds the reserve's turn */
} penstock_admission;

/* The reserve behind a pool; made known at the first use. NULL without memory. */
penstock_reserve *penstock_reserve_of_pool(CUmemoryPool pool, CUdevice device, bool on_host);
penstock_reserve *penstock_reserve_find(CUmemoryPool pool);
penstock_reserve *penstock_reserve_of_graphs(CUdevice device);

/* Before the driver call of an allocation. Ends with `cancel` or `complete` unless it is refused.
 */
CUresult penstock_reserve_admit(penstock_reserve *reserve, uint64_t bytes, uint64_t stream,
                                penstock_admission *admission);

/* The driver refused. */
void penstock_reserve_cancel(penstock_reserve *reserve, const penstock_admission *admission);

/* The driver allocated. False: the reserve grew beyond the quota; free the memory, then `undone`.
 * Others wait until then. */
bool penstock_reserve_complete(penstock_reserve *reserve, penstock_admission *admission);
void penstock_reserve_undone(penstock_reserve *reserve, penstock_admission *admission);

/* The driver allocated from a reserve that nobody knew of. False: all that it holds is more than
 * the quota can hold; free the memory. */
bool penstock_reserve_adopt(penstock_reserve *reserve, uint64_t bytes);

/* Before a driver call that makes the reserve grow by `bytes`: *bound is what was charged. */
CUresult penstock_reserve_admit_growth(penstock_reserve *reserve, uint64_t bytes, uint64_t *bound);

/* After one that failed: the bound is given back. */
void penstock_reserve_cancel_growth(penstock_reserve *reserve, uint64_t bound);

/* After one that succeeded, or on its own with 0: charges what the reserve is now. False: it is
 * more than the quota can hold. */
bool penstock_reserve_settle(penstock_reserve *reserve, uint64_t bound);

/* `bytes` of the reserve are no longer in use once `stream` has reached this point. */
void penstock_reserve_unuse(penstock_reserve *reserve, uint64_t bytes, uint64_t stream);

/* Around cuMemPoolDestroy: what is still in use then stays charged until it is freed. */
void penstock_reserve_retire(penstock_reserve *reserve);
CUresult penstock_reserve_retired(penstock_reserve *reserve, CUresult result);

/* What a reserve holds may change from now on: it is to be read at the next settlement of all. */
void penstock_reserves_changed(void);

/* Reads every reserve that may have shrunk and gives back. True if something came back. Cheap when
 * nothing was freed since the last time. */
bool penstock_reserves_settle(void);

/* The same after idle memory of all pools went back to the device, which costs those who use them
 * next. */
bool penstock_reserves_trim(void);
