/* Linear device memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged and cuMemFree. */
#include "contexts/contexts.h"
#include "memory/block.h"
#include "memory/charge.h"
#include "hooks/hook.h"
#include "hooks/pool.h"

/* Body of every allocation. It reserves `bound`, makes the `call`, which stores the pointer, and
 * then corrects the charge to the block's slabs. `bytes` is the size, which may be known only after
 * the call. */
#define ALLOCATE_WITHIN(bound, pointer, is_managed, call, bytes, undo)                           \
  do {                                                                                           \
    CUcontext context;                                                                           \
    int grant;                                                                                   \
    penstock_block block;                                                                        \
    CUresult result = penstock_here(&context, &grant);                                           \
    if (result == CUDA_SUCCESS) result = penstock_block_admit(&block, grant, bound, is_managed); \
    if (result != CUDA_SUCCESS) return result;                                                   \
    result = call;                                                                               \
    if (result != CUDA_SUCCESS) {                                                                \
      penstock_block_drop(&block);                                                               \
      return result;                                                                             \
    }                                                                                            \
    result = penstock_block_keep(&block, *(pointer), bytes, context);                            \
    if (result != CUDA_SUCCESS) {                                                                \
      undo;                                                                                      \
      penstock_block_drop(&block);                                                               \
    }                                                                                            \
    return result;                                                                               \
  } while (0)

#define ALLOCATE(bytes, pointer, is_managed, call, undo)            \
  do {                                                              \
    if (__builtin_expect(!(pointer), 0)) return call;               \
    ALLOCATE_WITHIN(bytes, pointer, is_managed, call, bytes, undo); \
  } while (0)

/* The first version of these calls has 32-bit pointers and sizes. */
CUresult CUDAAPI HOOK_NAME(cuMemAlloc)(CUdeviceptr_v1 *pointer, unsigned int size) {
  ALLOCATE(size, pointer, false, REAL(cuMemAlloc)(pointer, size), REAL(cuMemFree)(*pointer));
}

CUresult CUDAAPI HOOK_NAME(cuMemAlloc_v2)(CUdeviceptr *pointer, size_t size) {
  ALLOCATE(size, pointer, false, REAL(cuMemAlloc_v2)(pointer, size), REAL(cuMemFree_v2)(*pointer));
}

/* Allocates managed memory with flags that no driver has supported so far. The driver's result is
 * returned, and if the driver accepts the flags, the memory is charged afterwards. */
static CUresult allocate_managed_unlikely(CUdeviceptr *pointer, size_t size, unsigned int flags) {
  CUcontext context;
  int grant;
  CUresult result = REAL(cuMemAllocManaged)(pointer, size, flags);
  if (result != CUDA_SUCCESS) return result;
  penstock_block block = {.grant = -1};
  result = penstock_here(&context, &grant);
  if (result == CUDA_SUCCESS) result = penstock_block_admit(&block, grant, size, true);
  if (result == CUDA_SUCCESS) result = penstock_block_keep(&block, *pointer, size, context);
  if (result != CUDA_SUCCESS) {
    REAL(cuMemFree_v2)(*pointer);
    penstock_block_drop(&block);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuMemAllocManaged)(CUdeviceptr *pointer, size_t size,
                                              unsigned int flags) {
  if (pointer && flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
      flags != CU_MEM_ATTACH_SINGLE) {
    return allocate_managed_unlikely(pointer, size, flags);
  }
  ALLOCATE(size, pointer, true, REAL(cuMemAllocManaged)(pointer, size, flags),
           REAL(cuMemFree_v2)(*pointer));
}

/* The driver pads each row to a multiple of at most 512 bytes, as far as known. */
#define PITCH_BYTES 512

static uint64_t rows_bytes(uint64_t pitch, uint64_t rows) {
  uint64_t bytes;
  return __builtin_mul_overflow(pitch, rows, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t pitched_bound(uint64_t width, uint64_t rows) {
  uint64_t padded;
  if (__builtin_add_overflow(width, PITCH_BYTES - 1, &padded)) return UINT64_MAX;
  return rows_bytes(padded - padded % PITCH_BYTES, rows);
}

/* Returns true for an element size that the driver supports. Other sizes are forwarded uncharged
 * whatever the quota, and charged afterwards if the driver accepts them. */
static bool is_element(unsigned bytes) { return bytes == 4 || bytes == 8 || bytes == 16; }

#define ALLOCATE_PITCHED(pointer, pitch, width, rows, call, undo)                       \
  do {                                                                                  \
    bool silly = !(pointer) || !(pitch) || !(width) || !(rows) || !is_element(element); \
    uint64_t bound = silly ? 0 : pitched_bound(width, rows);                            \
    ALLOCATE_WITHIN(bound, pointer, false, call, rows_bytes(*(pitch), rows), undo);     \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuMemAllocPitch)(CUdeviceptr_v1 *pointer, unsigned int *pitch,
                                            unsigned int width, unsigned int rows,
                                            unsigned int element) {
  ALLOCATE_PITCHED(pointer, pitch, width, rows,
                   REAL(cuMemAllocPitch)(pointer, pitch, width, rows, element),
                   REAL(cuMemFree)(*pointer));
}

CUresult CUDAAPI HOOK_NAME(cuMemAllocPitch_v2)(CUdeviceptr *pointer, size_t *pitch, size_t width,
                                               size_t rows, unsigned int element) {
  ALLOCATE_PITCHED(pointer, pitch, width, rows,
                   REAL(cuMemAllocPitch_v2)(pointer, pitch, width, rows, element),
                   REAL(cuMemFree_v2)(*pointer));
}

/* cuMemFree also frees memory of a pool. */
#define FREE(pointer, call)                                                            \
  do {                                                                                 \
    penstock_freeing freeing = penstock_free_begin(PENSTOCK_DEVICE_MEMORY, (pointer)); \
    if (freeing.found) return penstock_free_end(&freeing, call);                       \
    freeing = penstock_pool_free_begin(pointer);                                       \
    return penstock_pool_free_end(&freeing, PENSTOCK_NO_STREAM, call);                 \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuMemFree)(CUdeviceptr_v1 pointer) {
  FREE(pointer, REAL(cuMemFree)(pointer));
}

CUresult CUDAAPI HOOK_NAME(cuMemFree_v2)(CUdeviceptr pointer) {
  FREE(pointer, REAL(cuMemFree_v2)(pointer));
}
