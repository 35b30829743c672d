/* cuCtxSetLimit, and the local memory of kernels: both take device memory in every context.
 *
 * The context's reserve covers the defaults; charged is what a limit is set above the default of
 * its context, in whole slabs, before the driver sets it.
 *
 * Local memory (stacks, arrays and spilled registers of threads) is laid out once a context, for as
 * many threads as the device holds at once: as large as the stack limit says, or as the neediest
 * kernel that was launched there, and it stays so. A kernel's need is charged before its launch.
 */
#include "hooks/limit.h"

#include "charge.h"
#include "hooks/hook.h"

#define LARGEST_STACK_BYTES ((size_t)512 << 10) /* local memory of a thread */
#define LARGEST_SYNC_DEPTH 24

/* Local memory grows in such steps a thread: 128 or 256 bytes, says NVIDIA (developer forum, thread
 * 39558). */
#define LOCAL_STEP_BYTES 256u

/* For each level at which a kernel may wait for those that it launched, "up to 860MB of device
 * memory" (CUDA C++ Programming Guide 12, CDP1, Memory Footprint). */
#define SYNC_LEVEL_BYTES ((uint64_t)860 << 20)

/* For a launch that is pending no figure is published: its parameters, at most 4 KiB, and as much
 * again for the rest. */
#define PENDING_LAUNCH_BYTES 8192

static uint64_t product_of(CUdevice_attribute a, CUdevice_attribute b) {
  CUdevice device;
  int first = 0, second = 0;
  if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return 0;
  REAL(cuDeviceGetAttribute)(&first, a, device);
  REAL(cuDeviceGetAttribute)(&second, b, device);
  return (uint64_t)first * (uint64_t)second;
}

static uint64_t resident_threads(void) {
  return product_of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
}

/* What the device holds for each unit of the limit: a stack for each resident thread. 0: the limit
 * takes no memory. */
static uint64_t copies(CUlimit limit) {
  switch (limit) {
    case CU_LIMIT_MALLOC_HEAP_SIZE:
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return 1;
    case CU_LIMIT_STACK_SIZE:
      return resident_threads();
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      return SYNC_LEVEL_BYTES;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
      return PENDING_LAUNCH_BYTES;
    case CU_LIMIT_PER_BLOCK_MEMORY_SIZE:
      return product_of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                        CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    default:
      return 0;
  }
}

/* What no driver sets gets the driver's answer, over the quota as well. */
static bool is_likely(CUlimit limit, size_t value) {
  size_t now;
  if (REAL(cuCtxGetLimit)(&now, limit) != CUDA_SUCCESS) return false;
  if (limit == CU_LIMIT_STACK_SIZE) return value <= LARGEST_STACK_BYTES;
  return limit != CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH || value <= LARGEST_SYNC_DEPTH;
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

/* What is charged for a limit in a context is an entry whose `detail` is its default; for stacks
 * also the local memory of the neediest kernel so far (`need`), in steps, and how many others have
 * relied on that since it was raised. */
#define DEFAULT_BITS 24
#define RELYING_BITS 8
#define MOST_RELYING ((1u << RELYING_BITS) - 1)

static uint64_t default_of(const penstock_object *entry, CUlimit limit) {
  return limit == CU_LIMIT_STACK_SIZE ? entry->detail & ((1u << DEFAULT_BITS) - 1) : entry->detail;
}

static uint64_t need_of(const penstock_object *entry) {
  return (entry->detail >> (DEFAULT_BITS + RELYING_BITS)) * LOCAL_STEP_BYTES;
}

static uint64_t relying_on(const penstock_object *entry) {
  return entry->detail >> DEFAULT_BITS & MOST_RELYING;
}

static void set_need(penstock_object *entry, uint64_t need, uint64_t relying) {
  entry->detail = default_of(entry, CU_LIMIT_STACK_SIZE) | relying << DEFAULT_BITS |
                  need / LOCAL_STEP_BYTES << (DEFAULT_BITS + RELYING_BITS);
}

static uint64_t in_steps(uint64_t bytes) {
  return (bytes + LOCAL_STEP_BYTES - 1) / LOCAL_STEP_BYTES * LOCAL_STEP_BYTES;
}

/* What is to be charged when the limit is `value`. */
static uint64_t cost_of(const penstock_object *entry, CUlimit limit, uint64_t value,
                        uint64_t count) {
  if (limit == CU_LIMIT_STACK_SIZE) {
    value = value > UINT64_MAX - LOCAL_STEP_BYTES ? value : in_steps(value);
    if (value < need_of(entry)) value = need_of(entry);
  }
  return above(value, default_of(entry, limit), count);
}

static uint64_t key_of(CUcontext context, CUlimit limit) {
  return (uint64_t)(uintptr_t)context + limit;
}

/* The entry of the current context, in the table from now on. */
static bool entry_of(CUcontext context, int grant, CUlimit limit, penstock_object *entry) {
  for (;;) {
    if (penstock_object_find(PENSTOCK_CONTEXT_LIMIT, key_of(context, limit), entry)) return true;
    size_t standard = 0;
    REAL(cuCtxGetLimit)(&standard, limit);
    *entry = (penstock_object){.key = key_of(context, limit),
                               .detail = standard,
                               .context = context,
                               .grant = (int16_t)grant,
                               .kind = PENSTOCK_CONTEXT_LIMIT};
    if (penstock_object_add(entry)) return true;
    if (!penstock_object_find(PENSTOCK_CONTEXT_LIMIT, entry->key, NULL)) return false;
  }
}

/* The limit is set, and `held` bytes more than the entry says are charged. The driver may have
 * rounded what it was told: what it says it has set is what counts. Another thread may have set it
 * anew and noted that before this one notes what it saw: so it is looked at again behind. */
static CUresult settle(CUcontext context, int grant, CUlimit limit, size_t value, uint64_t held) {
  penstock_object seen;
  uint64_t count = copies(limit);
  size_t set = value, again;
  REAL(cuCtxGetLimit)(&set, limit);
  while (penstock_object_find(PENSTOCK_CONTEXT_LIMIT, key_of(context, limit), &seen)) {
    penstock_object now = seen;
    now.bytes = cost_of(&seen, limit, set, count);
    if (now.bytes > seen.bytes + held) {
      uint64_t more = now.bytes - seen.bytes - held;
      if (penstock_charge(grant, more) != CUDA_SUCCESS) break;
      held += more;
    }
    if (!penstock_object_replace(&seen, &now)) continue;
    penstock_uncharge(grant, seen.bytes + held - now.bytes);
    held = 0;
    again = set;
    REAL(cuCtxGetLimit)(&again, limit);
    if (again == set) return CUDA_SUCCESS;
    set = again;
  }
  penstock_uncharge(grant, held);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI HOOK_NAME(cuCtxSetLimit)(CUlimit limit, size_t value) {
  CUcontext context;
  int grant;
  penstock_object entry;
  uint64_t count = copies(limit);
  if (count == 0 || !is_likely(limit, value)) return REAL(cuCtxSetLimit)(limit, value);
  CUresult result = penstock_here(&context, &grant);
  if (result != CUDA_SUCCESS) return result;
  if (!entry_of(context, grant, limit, &entry)) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t before = 0;
  REAL(cuCtxGetLimit)(&before, limit);
  uint64_t wanted = cost_of(&entry, limit, value, count);
  uint64_t more = wanted > entry.bytes ? wanted - entry.bytes : 0;
  result = penstock_charge(grant, more);
  if (result != CUDA_SUCCESS) return result;
  result = REAL(cuCtxSetLimit)(limit, value);
  if (result != CUDA_SUCCESS) {
    penstock_uncharge(grant, more);
    return result;
  }
  result = settle(context, grant, limit, value, more);
  if (result != CUDA_SUCCESS) REAL(cuCtxSetLimit)(limit, before);
  return result;
}

/* ---- local memory of kernels ---- */

/* Notes that somebody relies on the need as it is. */
static bool rely(const penstock_object *seen) {
  penstock_object now = *seen;
  if (relying_on(seen) == MOST_RELYING) return true;
  set_need(&now, need_of(seen), relying_on(seen) + 1);
  return penstock_object_replace(seen, &now);
}

/* In the current context. */
static CUresult raise_need(CUcontext context, int grant, uint64_t need,
                           penstock_local_raise *raise) {
  const CUlimit limit = CU_LIMIT_STACK_SIZE;
  const uint64_t count = resident_threads();
  penstock_object seen, again;
  size_t set = 0;
  REAL(cuCtxGetLimit)(&set, limit);
  for (;;) {
    if (!entry_of(context, grant, limit, &seen)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (need <= default_of(&seen, limit)) return CUDA_SUCCESS;
    if (need <= need_of(&seen)) {
      if (rely(&seen)) return CUDA_SUCCESS;
      continue;
    }
    penstock_object now = seen;
    set_need(&now, need, 0);
    now.bytes = cost_of(&now, limit, set, count);
    uint64_t more = now.bytes > seen.bytes ? now.bytes - seen.bytes : 0;
    CUresult result = penstock_charge_urgent(grant, more, 0);
    if (result == CUDA_SUCCESS && penstock_object_replace(&seen, &now)) {
      *raise = (penstock_local_raise){.context = context, .from = need_of(&seen), .to = need};
      if (now.bytes < seen.bytes) penstock_uncharge(grant, seen.bytes - now.bytes);
      return CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) {
      penstock_uncharge(grant, more);
    } else if (!penstock_object_find(PENSTOCK_CONTEXT_LIMIT, seen.key, &again) ||
               (again.bytes == seen.bytes && again.detail == seen.detail)) {
      return result; /* and no other thread has raised it meanwhile */
    }
  }
}

CUresult penstock_local_memory_admit(CUcontext context, int grant, uint64_t bytes,
                                     penstock_local_raise *raise) {
  CUcontext current = NULL, popped;
  raise->to = 0;
  if (bytes == 0 || bytes > UINT32_MAX) return CUDA_SUCCESS; /* more than any driver launches */
  REAL(cuCtxGetCurrent)(&current);
  bool other = current != context;
  if (other && REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) return CUDA_SUCCESS;
  CUresult result = raise_need(context, grant, in_steps(bytes), raise);
  if (other) REAL(cuCtxPopCurrent_v2)(&popped);
  return result;
}

void penstock_local_memory_undo(const penstock_local_raise *raise) {
  const CUlimit limit = CU_LIMIT_STACK_SIZE;
  CUcontext popped;
  penstock_object seen;
  size_t set = 0;
  if (raise->to == 0 || REAL(cuCtxPushCurrent_v2)(raise->context) != CUDA_SUCCESS) return;
  REAL(cuCtxGetLimit)(&set, limit);
  const uint64_t count = resident_threads();
  while (penstock_object_find(PENSTOCK_CONTEXT_LIMIT, key_of(raise->context, limit), &seen)) {
    if (need_of(&seen) != raise->to || relying_on(&seen)) break;
    penstock_object now = seen;
    set_need(&now, raise->from, raise->from ? MOST_RELYING : 0);
    now.bytes = cost_of(&now, limit, set, count);
    if (now.bytes > seen.bytes) break;
    if (!penstock_object_replace(&seen, &now)) continue;
    penstock_uncharge(seen.grant, seen.bytes - now.bytes);
    break;
  }
  REAL(cuCtxPopCurrent_v2)(&popped);
}
