#include "memory/block.h"

#include "common/log.h"

CUresult penstock_block_admit(penstock_block *block, int grant, uint64_t bytes, bool is_managed) {
  *block = (penstock_block){
      .hidden_made = penstock_slab_hidden_made(grant), .grant = grant, .is_managed = is_managed};
  const bool is_small = bytes && bytes <= PENSTOCK_SMALL_BYTES;
  const uint64_t wanted = is_small ? PENSTOCK_SLAB_BYTES : penstock_whole_slabs(bytes);
  if (is_small && !penstock_charge_if_it_fits(0, grant, wanted)) {
    block->is_unreserved = penstock_slab_begin_unreserved(grant, bytes, is_managed, &block->phase);
    if (block->is_unreserved) return CUDA_SUCCESS;
  } else if (is_small) {
    block->reserved = wanted;
    return CUDA_SUCCESS;
  }
  CUresult result = penstock_charge(grant, wanted);
  if (result == CUDA_SUCCESS) block->reserved = wanted;
  return result;
}

/* Changes the size of the reservation to `bytes`. */
static bool reserve(penstock_block *block, uint64_t bytes) {
  if (bytes > block->reserved) {
    if (penstock_charge(block->grant, bytes - block->reserved) != CUDA_SUCCESS) return false;
  } else {
    penstock_uncharge(block->grant, block->reserved - bytes);
  }
  block->reserved = bytes;
  return true;
}

/* Uncharges the rest of the reservation, or ends an allocation that had none. */
static void release(penstock_block *block) {
  uint64_t slabs_closed = 0;
  if (block->is_unreserved) slabs_closed = penstock_slab_end_unreserved(block->grant, block->phase);
  block->is_unreserved = false;
  penstock_uncharge(block->grant, block->reserved + slabs_closed * PENSTOCK_SLAB_BYTES);
  block->reserved = 0;
}

static bool enter(penstock_block *block, penstock_object *object) {
  const bool is_paid = block->reserved >= PENSTOCK_SLAB_BYTES;
  switch (penstock_slab_enter(block->grant, object->key, object->bytes, block->is_managed, is_paid,
                              block->hidden_made)) {
    case PENSTOCK_SLAB_UNPAID:
      return reserve(block, PENSTOCK_SLAB_BYTES) && enter(block, object);
    case PENSTOCK_SLAB_UNKNOWN: /* the block is charged as a slab of its own */
      if (!is_paid && !reserve(block, PENSTOCK_SLAB_BYTES)) return false;
      object->bytes = PENSTOCK_SLAB_BYTES;
      block->reserved -= PENSTOCK_SLAB_BYTES;
      return true;
    case PENSTOCK_SLAB_OPENED:
      block->reserved -= PENSTOCK_SLAB_BYTES;
      break;
    case PENSTOCK_SLAB_JOINED:
      break;
  }
  object->in_slab = true;
  return true;
}

CUresult penstock_block_keep(penstock_block *block, CUdeviceptr address, uint64_t bytes,
                             CUcontext context) {
  penstock_object object = {.key = address,
                            .bytes = bytes,
                            .context = context,
                            .grant = (int16_t)block->grant,
                            .kind = PENSTOCK_DEVICE_MEMORY};
  if (bytes <= PENSTOCK_SMALL_BYTES) {
    if (!enter(block, &object)) return CUDA_ERROR_OUT_OF_MEMORY;
  } else {
    object.bytes = penstock_whole_slabs(bytes);
    if (!reserve(block, object.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    block->reserved = 0;
  }
  if (!penstock_object_put(&object)) penstock_log("no host memory left to record an allocation");
  release(block);
  return CUDA_SUCCESS;
}

void penstock_block_drop(penstock_block *block) { release(block); }
