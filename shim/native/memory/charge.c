#include "memory/charge.h"

#include "common/log.h"
#include "mechanism/share.h"
#include "memory/reserve.h"
#include "memory/shares.h"
#include "process/process.h"

static CUresult refuse(int grant, uint64_t bytes, penstock_error error) {
  if (error == PENSTOCK_E_OVER_LIMIT) {
    penstock_log("out of memory: %llu bytes do not fit into the quota of device %d",
                 (unsigned long long)bytes, grant);
  } else {
    penstock_log("out of memory: %llu bytes cannot be charged because the tenant %s",
                 (unsigned long long)bytes, penstock_error_text(error));
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

static penstock_error attempt(penstock_region *region, uint64_t share, int grant, uint64_t bytes) {
  return share ? penstock_share_attempt(region, share, (unsigned)grant, bytes)
               : penstock_ledger_attempt(region, (unsigned)grant, bytes);
}

bool penstock_charge_if_it_fits(uint64_t share, int grant, uint64_t bytes) {
  penstock_process *process = penstock_process_get();
  return process && grant >= 0 && attempt(&process->region, share, grant, bytes) == PENSTOCK_OK;
}

/* Uncharges memory that was freed without a call through the shim. Returns true if there was
 * any. */
static bool collect_freed(void) {
  bool reserves = penstock_reserves_settle(), shares = penstock_shares_look_after();
  return reserves || shares;
}

CUresult penstock_charge_in(uint64_t share, int grant, uint64_t bytes) {
  penstock_process *process = penstock_process_get();
  if (!process) return CUDA_ERROR_SYSTEM_NOT_READY;
  if (grant < 0) {
    penstock_log("out of memory: %llu bytes were requested on a device that was not granted",
                 (unsigned long long)bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  penstock_error error = attempt(&process->region, share, grant, bytes);
  if (__builtin_expect(error == PENSTOCK_OK, 1)) return CUDA_SUCCESS;
  if (error == PENSTOCK_E_OVER_LIMIT && collect_freed()) {
    error = attempt(&process->region, share, grant, bytes);
    if (error == PENSTOCK_OK) return CUDA_SUCCESS;
  }
  if (error == PENSTOCK_E_OVER_LIMIT) {
    penstock_ledger_count_refusal(&process->region, (unsigned)grant, bytes);
  }
  return refuse(grant, bytes, error);
}

CUresult penstock_charge(int grant, uint64_t bytes) { return penstock_charge_in(0, grant, bytes); }

void penstock_uncharge_in(uint64_t share, int grant, uint64_t bytes) {
  penstock_process *process = penstock_process_get();
  if (!process || grant < 0 || bytes == 0) return;
  if (share) {
    penstock_share_release(&process->region, share, (unsigned)grant, bytes);
  } else {
    penstock_ledger_release(&process->region, (unsigned)grant, bytes);
  }
}

void penstock_uncharge(int grant, uint64_t bytes) { penstock_uncharge_in(0, grant, bytes); }

/* Returns the part of a sum of block sizes that does not fill whole slabs. */
static uint64_t small_part(uint64_t bytes) { return bytes % PENSTOCK_SLAB_BYTES; }

CUresult penstock_charge_hidden(int grant, uint64_t bytes, unsigned count) {
  const uint64_t small = small_part(bytes), whole = bytes - small;
  CUresult result = penstock_charge(grant, whole);
  bool is_used;
  if (result != CUDA_SUCCESS || !small ||
      penstock_slab_add_hidden(grant, small, count, false, &is_used)) {
    return result;
  }
  result = penstock_charge(grant, PENSTOCK_SLAB_BYTES);
  if (result != CUDA_SUCCESS) {
    penstock_uncharge(grant, whole);
    return result;
  }
  penstock_slab_add_hidden(grant, small, count, true, &is_used);
  if (!is_used) penstock_uncharge(grant, PENSTOCK_SLAB_BYTES); /* another thread has made room */
  return CUDA_SUCCESS;
}

static bool has_room(int grant, uint64_t bytes) {
  bool fits = penstock_charge_if_it_fits(0, grant, bytes);
  if (fits) penstock_uncharge(grant, bytes);
  return fits;
}

CUresult penstock_charge_urgent(int grant, uint64_t bytes, unsigned count) {
  const uint64_t small = small_part(bytes);
  const uint64_t most = small ? bytes - small + PENSTOCK_SLAB_BYTES : bytes;
  if (bytes && grant >= 0 && !has_room(grant, most) &&
      !(penstock_reserves_settle() && has_room(grant, most))) {
    penstock_reserves_trim();
  }
  return count ? penstock_charge_hidden(grant, bytes, count) : penstock_charge(grant, bytes);
}

void penstock_uncharge_hidden(int grant, uint64_t bytes, unsigned count) {
  const uint64_t small = small_part(bytes);
  uint64_t closed = small ? penstock_slab_remove_hidden(grant, small, count) : 0;
  penstock_uncharge(grant, bytes - small + closed * PENSTOCK_SLAB_BYTES);
}

static void uncharge_bytes(const penstock_object *object) {
  switch (object->kind) {
    case PENSTOCK_ARRAY:
    case PENSTOCK_MIPMAP:
      return penstock_uncharge_hidden(object->grant, object->bytes, PENSTOCK_ARRAY_BLOCKS);
    case PENSTOCK_MODULE:
    case PENSTOCK_MODULE_CODE:
      return penstock_uncharge_hidden(object->grant, object->bytes, PENSTOCK_IMAGE_PART_BLOCKS);
    case PENSTOCK_LIBRARY_COPY:
    case PENSTOCK_GLOBAL:
      return penstock_uncharge_hidden(object->grant, object->bytes, PENSTOCK_IMAGE_BLOCKS);
    default:
      return penstock_uncharge(object->grant, object->bytes);
  }
}

void penstock_give_back(const penstock_object *object) {
  if (penstock_shares_keep_open(object)) return;
  if (object->share) penstock_shares_drop(object->share);
  if (object->in_slab) {
    uint64_t closed = penstock_slab_leave(object->grant, object->key, object->bytes);
    penstock_uncharge(object->grant, closed * PENSTOCK_SLAB_BYTES);
  } else if (!object->share) {
    uncharge_bytes(object);
  }
}

void penstock_object_remember(penstock_kind kind, uint64_t key, int grant, uint64_t bytes,
                              CUcontext context) {
  penstock_object object = {.key = key,
                            .bytes = bytes,
                            .context = context,
                            .grant = (int16_t)grant,
                            .kind = (uint8_t)kind};
  if (!penstock_object_put(&object)) penstock_log("no host memory left to record an allocation");
}

penstock_freeing penstock_free_begin(penstock_kind kind, uint64_t key) {
  penstock_freeing freeing = {.found = false};
  freeing.found = penstock_object_take(kind, key, &freeing.object);
  return freeing;
}

CUresult penstock_free_end(const penstock_freeing *freeing, CUresult result) {
  if (!freeing->found) return result;
  if (result == CUDA_SUCCESS) {
    penstock_give_back(&freeing->object);
  } else {
    penstock_object_put(&freeing->object);
  }
  return result;
}
