/* cuCtxSetLimit: heap, printf buffer and stacks take device memory in every context.
 *
 * The context's reserve covers the defaults; charged is what a limit is set above the default of
 * its context, in whole slabs, before the driver sets it.
 */
#include "charge.h"
#include "hooks/hook.h"

#define LARGEST_STACK_BYTES ((size_t)512 << 10) /* local memory of a thread */

/* How many copies of the limit the device holds: a stack for each resident thread. 0: the limit
 * takes no memory. */
static uint64_t copies(CUlimit limit) {
  CUdevice device;
  int sms = 0, threads = 0;
  switch (limit) {
    case CU_LIMIT_MALLOC_HEAP_SIZE:
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return 1;
    case CU_LIMIT_STACK_SIZE:
      if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return 0;
      REAL(cuDeviceGetAttribute)(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
      REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                                 device);
      return (uint64_t)sms * (uint64_t)threads;
    default:
      return 0;
  }
}

static uint64_t above(uint64_t value, uint64_t standard, uint64_t count) {
  uint64_t bytes;
  if (value <= standard) return 0;
  if (__builtin_mul_overflow(value - standard, count, &bytes) ||
      __builtin_add_overflow(bytes, PENSTOCK_SLAB_BYTES - 1, &bytes)) {
    return UINT64_MAX;
  }
  return bytes / PENSTOCK_SLAB_BYTES * PENSTOCK_SLAB_BYTES;
}

/* What is charged for this limit in this context; `detail` is its default plus one. */
static penstock_object entry_of(CUcontext context, int grant, CUlimit limit) {
  penstock_object entry;
  uint64_t key = (uint64_t)(uintptr_t)context + limit;
  if (penstock_object_find(PENSTOCK_CONTEXT_LIMIT, key, &entry)) return entry;
  size_t standard = 0;
  REAL(cuCtxGetLimit)(&standard, limit);
  return (penstock_object){.key = key,
                           .detail = standard,
                           .context = context,
                           .grant = (int16_t)grant,
                           .kind = PENSTOCK_CONTEXT_LIMIT};
}

/* The driver may round what it is told: what it says it has set is what counts. */
static uint64_t set_bytes(const penstock_object *entry, CUlimit limit, size_t value,
                          uint64_t count) {
  size_t set = value;
  REAL(cuCtxGetLimit)(&set, limit);
  return above(set, entry->detail, count);
}

static CUresult set_charged(CUlimit limit, size_t value, uint64_t count) {
  CUcontext context;
  int grant;
  CUresult result = penstock_here(&context, &grant);
  if (result != CUDA_SUCCESS) return result;
  size_t before = 0;
  REAL(cuCtxGetLimit)(&before, limit);
  penstock_object entry = entry_of(context, grant, limit);
  /* What no driver sets gets the driver's answer, over the quota as well. */
  bool likely = limit != CU_LIMIT_STACK_SIZE || value <= LARGEST_STACK_BYTES;
  uint64_t wanted = likely ? above(value, entry.detail, count) : 0;
  uint64_t more = wanted > entry.bytes ? wanted - entry.bytes : 0;
  result = penstock_charge(grant, more);
  if (result != CUDA_SUCCESS) return result;
  result = REAL(cuCtxSetLimit)(limit, value);
  if (result != CUDA_SUCCESS) {
    penstock_uncharge(grant, more);
    return result;
  }
  uint64_t held = entry.bytes + more, set = set_bytes(&entry, limit, value, count);
  if (set > held && penstock_charge(grant, set - held) != CUDA_SUCCESS) {
    REAL(cuCtxSetLimit)(limit, before);
    penstock_uncharge(grant, more);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (set < held) penstock_uncharge(grant, held - set);
  entry.bytes = set;
  penstock_object_put(&entry);
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuCtxSetLimit)(CUlimit limit, size_t value) {
  uint64_t count = copies(limit);
  if (count == 0) return REAL(cuCtxSetLimit)(limit, value);
  return set_charged(limit, value, count);
}
