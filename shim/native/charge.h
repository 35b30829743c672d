/* Charging the ledger on behalf of driver calls: reserve, then allocate, and give back if the
 * driver refuses.
 *
 * What is charged is what the driver takes: memory comes in slabs of 2 MiB. An allocation of more
 * than 1 MiB has slabs of its own and is charged in whole ones (penstock_whole_slabs), as
 * cuMemGetInfo without the shim would show it. Smaller ones share slabs, and what is charged are
 * the slabs that are open: of linear memory by address (block.h), of arrays and modules by a bound.
 *
 * A device that was not granted: its contexts are refused with CUDA_ERROR_INVALID_DEVICE, and
 * allocations by location on it with CUDA_ERROR_OUT_OF_MEMORY.
 */
#pragma once

#include <cuda.h>
#include <stdint.h>

#include "contexts.h"
#include "objects.h"
#include "slabs.h"

/* What the driver takes for an allocation of this size. Sizes that no device has stay too large. */
/* No device has more: what asks for that is wrong, and the driver may find more to object to. */
#define PENSTOCK_MOST_DEVICE_BYTES ((uint64_t)1 << 44)

static inline uint64_t penstock_whole_slabs(uint64_t bytes) {
  if (bytes <= PENSTOCK_SMALL_BYTES || bytes > UINT64_MAX - PENSTOCK_SLAB_BYTES) return bytes;
  return (bytes + PENSTOCK_SLAB_BYTES - 1) & ~(PENSTOCK_SLAB_BYTES - 1);
}

/* CUDA_SUCCESS, and the bytes are this process's; CUDA_ERROR_OUT_OF_MEMORY when they do not fit (or
 * `grant` is -1: not granted); CUDA_ERROR_SYSTEM_NOT_READY without a quota page. Before a refusal
 * this process's idle pool memory is looked for. */
CUresult penstock_charge(int grant, uint64_t bytes);

/* The same into a share that this process made; 0: as above. */
CUresult penstock_charge_in(uint64_t share, int grant, uint64_t bytes);

/* The same without looking any further, counting or saying anything: for who tries less next. */
bool penstock_charge_if_it_fits(uint64_t share, int grant, uint64_t bytes);

/* The same for blocks whose place the driver does not tell (hidden.h): `bytes` is a sum of
 * penstock_whole_slabs of up to `count` of them. */
CUresult penstock_charge_hidden(int grant, uint64_t bytes, unsigned count);
void penstock_uncharge_hidden(int grant, uint64_t bytes, unsigned count);

#define PENSTOCK_ARRAY_BLOCKS 1
#define PENSTOCK_IMAGE_BLOCKS 2      /* code and variables */
#define PENSTOCK_IMAGE_PART_BLOCKS 1 /* one of them */

/* The same for what a launch or the loading of code needs, which programs do not try again: idle
 * memory of pools goes back to the device before it is refused. `count` 0: bytes of its own slabs.
 */
CUresult penstock_charge_urgent(int grant, uint64_t bytes, unsigned count);

/* Gives back what was charged. */
void penstock_uncharge(int grant, uint64_t bytes);
void penstock_uncharge_in(uint64_t share, int grant, uint64_t bytes);

/* Gives back what an object cost: bytes, or its part in a share. */
void penstock_give_back(const penstock_object *object);

/* Remembers what was charged; without memory for that, the charge stays until the process ends. */
void penstock_object_remember(penstock_kind kind, uint64_t key, int grant, uint64_t bytes,
                              CUcontext context);

/* Takes the object out before the driver frees it; then settles by the driver's answer: charge
 * given back, or entry put back. */
typedef struct penstock_freeing {
  penstock_object object;
  bool found;
} penstock_freeing;
penstock_freeing penstock_free_begin(penstock_kind kind, uint64_t key);
CUresult penstock_free_end(const penstock_freeing *freeing, CUresult result);
