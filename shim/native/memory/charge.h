/* Charges in the ledger for driver calls. Each allocating call is charged first, then forwarded to
 * the driver, then uncharged if the driver refuses.
 *
 * The charge is what the driver takes from the device, in slabs of 2 MiB. An allocation of more
 * than 1 MiB has slabs of its own and is charged as whole slabs (penstock_whole_slabs), which is
 * also what cuMemGetInfo shows without the shim. Smaller allocations share slabs, and the open
 * slabs are charged: those of linear memory by address (block.h), those of arrays and modules by an
 * upper bound (hidden.h).
 *
 * On a device that was not granted, contexts are refused with CUDA_ERROR_INVALID_DEVICE, and
 * allocations by location with CUDA_ERROR_OUT_OF_MEMORY. */
#pragma once

#include <cuda.h>
#include <stdint.h>

#include "memory/objects.h"
#include "memory/slabs.h"

/* More memory than any device has. Larger requests are left to the driver, which may have another
 * error to report first. */
#define PENSTOCK_MOST_DEVICE_BYTES ((uint64_t)1 << 44)

/* Returns the memory that the driver takes for an allocation of `bytes`. Sizes near 2^64 are
 * returned unchanged. */
static inline uint64_t penstock_whole_slabs(uint64_t bytes) {
  if (bytes <= PENSTOCK_SMALL_BYTES || bytes > UINT64_MAX - PENSTOCK_SLAB_BYTES) return bytes;
  return (bytes + PENSTOCK_SLAB_BYTES - 1) & ~(PENSTOCK_SLAB_BYTES - 1);
}

/* Charges `bytes` to this process. Returns CUDA_ERROR_OUT_OF_MEMORY if they do not fit or if
 * `grant` is -1 (not granted), and CUDA_ERROR_SYSTEM_NOT_READY if there is no quota page. Before a
 * refusal, memory that the driver has released in the meantime is uncharged. */
CUresult penstock_charge(int grant, uint64_t bytes);

/* Charges and uncharges a share that this process made, or the process itself if `share` is 0. */
CUresult penstock_charge_in(uint64_t share, int grant, uint64_t bytes);

/* Tries once to charge `bytes`, without writing to the log and without counting a refusal, for
 * callers that have a fallback. */
bool penstock_charge_if_it_fits(uint64_t share, int grant, uint64_t bytes);

/* Charges blocks whose addresses the driver does not report (hidden.h). `bytes` is the sum of
 * penstock_whole_slabs of up to `count` blocks. */
CUresult penstock_charge_hidden(int grant, uint64_t bytes, unsigned count);
void penstock_uncharge_hidden(int grant, uint64_t bytes, unsigned count);

#define PENSTOCK_ARRAY_BLOCKS 1
#define PENSTOCK_IMAGE_BLOCKS 2      /* one block for code and one for variables */
#define PENSTOCK_IMAGE_PART_BLOCKS 1 /* one block, for either code or variables */

/* Charges memory that a launch or the loading of code needs, which programs do not retry: before a
 * refusal, idle memory of pools is returned to the device. If `count` is 0, the memory has slabs of
 * its own. */
CUresult penstock_charge_urgent(int grant, uint64_t bytes, unsigned count);

/* Uncharges `bytes`. */
void penstock_uncharge(int grant, uint64_t bytes);
void penstock_uncharge_in(uint64_t share, int grant, uint64_t bytes);

/* Uncharges an object: its bytes, or its part in a share. */
void penstock_give_back(const penstock_object *object);

/* Records a charge in the table of objects. If there is no memory for the entry, the charge stays
 * until the process ends. */
void penstock_object_remember(penstock_kind kind, uint64_t key, int grant, uint64_t bytes,
                              CUcontext context);

/* Call `begin` before and `end` after a driver call that frees an object. `begin` takes the object
 * out of the table; `end` uncharges the object, or puts it back if the driver refused. */
typedef struct penstock_freeing {
  penstock_object object;
  bool found;
} penstock_freeing;
penstock_freeing penstock_free_begin(penstock_kind kind, uint64_t key);
CUresult penstock_free_end(const penstock_freeing *freeing, CUresult result);
