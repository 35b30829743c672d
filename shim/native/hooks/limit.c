/* cuCtxSetLimit and the local memory of kernels, which both use device memory in every context.
 *
 * The context's reserve covers the default limits. A limit above its default is charged in whole
 * slabs before the driver sets it.
 *
 * Local memory (stacks, arrays and spilled registers of threads) is allocated once for a context,
 * for as many threads as the device can run at once. Its size is that of the stack limit or of the
 * neediest kernel launched there so far, and it never shrinks. A kernel's need is charged before
 * its launch. */
#include "hooks/limit.h"

#include "contexts/contexts.h"
#include "memory/charge.h"
#include "hooks/hook.h"

#define LARGEST_STACK_BYTES ((size_t)512 << 10) /* most local memory that a thread can have */
#define LARGEST_SYNC_DEPTH 24

/* Step in which the local memory of a thread grows: 128 or 256 bytes (NVIDIA developer forum,
 * thread 39558). */
#define LOCAL_STEP_BYTES 256u

/* Memory for each level at which a kernel may wait for kernels that it launched: "up to 860MB of
 * device memory" (CUDA C++ Programming Guide 12, CDP1, Memory Footprint). */
#define SYNC_LEVEL_BYTES ((uint64_t)860 << 20)

/* Memory of a pending launch, for which there is no published figure: its parameters, at most 4
 * KiB, and as much again for the rest. */
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

/* Returns the bytes of device memory for each unit of the limit (for stacks, one unit for each
 * resident thread), or 0 if the limit uses no memory. */
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

/* Returns true if a driver may accept the value. */
static bool is_likely(CUlimit limit, size_t value) {
  if (limit == CU_LIMIT_STACK_SIZE) return value <= LARGEST_STACK_BYTES;
  if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH) return value <= LARGEST_SYNC_DEPTH;
  return value <=
         PENSTOCK_MOST_DEVICE_BYTES; /* no driver accepts that many pending launches either */
}

/* Sets a value that no driver accepts, so that the program gets the driver's error even if the
 * value exceeds the quota. */
static CUresult set_unlikely(CUlimit limit, size_t value, size_t before) {
  CUresult result = REAL(cuCtxSetLimit)(limit, value);
  if (result != CUDA_SUCCESS) return result;
  REAL(cuCtxSetLimit)(limit, before);
  return CUDA_ERROR_OUT_OF_MEMORY;
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

/* Layout of `detail` in the entry for a context's limit, which contains the default. For stacks it
 * also contains the local memory of the neediest kernel so far (`need`), in steps, and how many
 * launches have relied on that need since it was raised. */
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

/* Returns the charge for a limit of `value`. */
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

/* Finds the entry for the current context, or adds it. */
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

/* Threads may change a limit at the same time, and no lock is held while the driver is called. So a
 * change is first charged in the entry, and then the driver is called. When a change ends and no
 * other change is under way, the limit is read, and the charge is reduced to it.
 *
 * The low half of `changes` counts the changes under way; the high half counts all changes that
 * ever began. */
#define ONE_CHANGE ((uint64_t)1 << 32 | 1)

static bool is_alone(const penstock_object *entry) { return (uint32_t)entry->changes == 1; }

/* Replaces the entry `seen` by `now` and charges the difference. `*again` is set if another thread
 * has changed the entry in the meantime. */
static CUresult change_entry(const penstock_object *seen, const penstock_object *now, bool *again) {
  uint64_t more = now->bytes > seen->bytes ? now->bytes - seen->bytes : 0;
  penstock_object other;
  CUresult result = penstock_charge_urgent(seen->grant, more, 0);
  if (result != CUDA_SUCCESS) {
    *again = penstock_object_find(PENSTOCK_CONTEXT_LIMIT, seen->key, &other) &&
             (other.bytes != seen->bytes || other.detail != seen->detail ||
              other.changes != seen->changes);
    return result;
  }
  *again = !penstock_object_replace(seen, now);
  if (*again) {
    penstock_uncharge(seen->grant, more);
  } else if (now->bytes < seen->bytes) {
    penstock_uncharge(seen->grant, seen->bytes - now->bytes);
  }
  return CUDA_SUCCESS;
}

static CUresult begin_change(CUcontext context, int grant, CUlimit limit, uint64_t value,
                             uint64_t count) {
  penstock_object seen;
  CUresult result;
  bool again = true;
  do {
    if (!entry_of(context, grant, limit, &seen)) return CUDA_ERROR_OUT_OF_MEMORY;
    penstock_object now = seen;
    uint64_t wanted = cost_of(&seen, limit, value, count);
    if (wanted > now.bytes) now.bytes = wanted;
    now.changes += ONE_CHANGE;
    result = change_entry(&seen, &now, &again);
  } while (again);
  return result;
}

/* Ends a change. The driver may have rounded the value, so the value that it returns is charged. If
 * the quota has no room for that, the call fails, and the change stays under way. */
static CUresult end_change(CUcontext context, CUlimit limit, uint64_t count) {
  penstock_object seen;
  CUresult result = CUDA_SUCCESS;
  bool again = true;
  while (again && penstock_object_find(PENSTOCK_CONTEXT_LIMIT, key_of(context, limit), &seen)) {
    if ((uint32_t)seen.changes == 0) return CUDA_SUCCESS; /* the entry belongs to a newer context */
    penstock_object now = seen;
    size_t set;
    if (is_alone(&seen) && REAL(cuCtxGetLimit)(&set, limit) == CUDA_SUCCESS) {
      now.bytes = cost_of(&seen, limit, set, count);
    }
    now.changes--;
    result = change_entry(&seen, &now, &again);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuCtxSetLimit)(CUlimit limit, size_t value) {
  CUcontext context;
  int grant;
  uint64_t count = copies(limit);
  size_t before = 0;
  if (count == 0 || REAL(cuCtxGetLimit)(&before, limit) != CUDA_SUCCESS) {
    return REAL(cuCtxSetLimit)(limit, value);
  }
  if (!is_likely(limit, value)) return set_unlikely(limit, value, before);
  CUresult result = penstock_here(&context, &grant);
  if (result != CUDA_SUCCESS) return result;
  result = begin_change(context, grant, limit, value, count);
  if (result != CUDA_SUCCESS) return result;
  result = REAL(cuCtxSetLimit)(limit, value);
  if (end_change(context, limit, count) == CUDA_SUCCESS) return result;
  REAL(cuCtxSetLimit)(limit, before);
  end_change(context, limit, count);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- local memory of kernels ---- */

/* Counts a launch that relies on the current need. */
static bool rely(const penstock_object *seen) {
  penstock_object now = *seen;
  if (relying_on(seen) == MOST_RELYING) return true;
  set_need(&now, need_of(seen), relying_on(seen) + 1);
  return penstock_object_replace(seen, &now);
}

/* Raises the need of the current context. */
static CUresult raise_need(CUcontext context, int grant, uint64_t need,
                           penstock_local_raise *raise) {
  const CUlimit limit = CU_LIMIT_STACK_SIZE;
  const uint64_t count = resident_threads();
  penstock_object seen;
  for (;;) {
    if (!entry_of(context, grant, limit, &seen)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (need <= default_of(&seen, limit)) return CUDA_SUCCESS;
    if (need <= need_of(&seen)) {
      if (rely(&seen)) return CUDA_SUCCESS;
      continue;
    }
    bool again;
    penstock_object now = seen;
    set_need(&now, need, 0);
    uint64_t wanted = cost_of(&now, limit, 0, count);
    if (wanted > now.bytes) now.bytes = wanted;
    CUresult result = change_entry(&seen, &now, &again);
    if (again) continue;
    if (result == CUDA_SUCCESS) {
      *raise = (penstock_local_raise){
          .context = context, .from = need_of(&seen), .to = need, .relied = relying_on(&seen)};
    }
    return result;
  }
}

CUresult penstock_local_memory_admit(CUcontext context, int grant, uint64_t bytes,
                                     penstock_local_raise *raise) {
  CUcontext current = NULL, popped;
  raise->to = 0;
  /* The function needs none, or more than any driver accepts. */
  if (bytes == 0 || bytes > UINT32_MAX) return CUDA_SUCCESS;
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
  if (raise->to == 0 || REAL(cuCtxPushCurrent_v2)(raise->context) != CUDA_SUCCESS) return;
  const uint64_t count = resident_threads();
  while (penstock_object_find(PENSTOCK_CONTEXT_LIMIT, key_of(raise->context, limit), &seen)) {
    if (need_of(&seen) != raise->to || relying_on(&seen)) break;
    penstock_object now = seen;
    set_need(&now, raise->from, raise->relied);
    now.changes += ONE_CHANGE;
    if (!penstock_object_replace(&seen, &now)) continue;
    end_change(raise->context, limit, count);
    break;
  }
  REAL(cuCtxPopCurrent_v2)(&popped);
}
