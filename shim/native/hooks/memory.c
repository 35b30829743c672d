/* Linear device memory: cuMemAlloc, Pitch, Managed, and cuMemFree. */
#include "charge.h"
#include "hooks/hook.h"
#include "hooks/pool.h"

/* Reserve, allocate, remember: the body of every plain allocation. `call` stores the pointer. */
#define ALLOCATE(bytes_asked, pointer, call)                                             \
  do {                                                                                   \
    CUcontext context;                                                                   \
    int grant;                                                                           \
    if (__builtin_expect(!(pointer), 0)) return PENSTOCK_BELOW(call);                    \
    const uint64_t bytes = penstock_whole_slabs(bytes_asked);                            \
    CUresult result = PENSTOCK_BELOW(penstock_here(&context, &grant));                   \
    if (result != CUDA_SUCCESS) return result;                                           \
    result = penstock_charge(grant, bytes);                                              \
    if (result != CUDA_SUCCESS) return result;                                           \
    result = PENSTOCK_BELOW(call);                                                       \
    if (result != CUDA_SUCCESS) {                                                        \
      penstock_uncharge(grant, bytes);                                                   \
      return result;                                                                     \
    }                                                                                    \
    penstock_object_remember(PENSTOCK_DEVICE_MEMORY, *(pointer), grant, bytes, context); \
    return CUDA_SUCCESS;                                                                 \
  } while (0)

/* The first version of these calls has 32-bit pointers and sizes. */
CUresult CUDAAPI HOOK_NAME(cuMemAlloc)(CUdeviceptr_v1 *pointer, unsigned int size) {
  PENSTOCK_PASS(cuMemAlloc, pointer, size);
  ALLOCATE(size, pointer, REAL(cuMemAlloc)(pointer, size));
}

CUresult CUDAAPI HOOK_NAME(cuMemAlloc_v2)(CUdeviceptr *pointer, size_t size) {
  PENSTOCK_PASS(cuMemAlloc_v2, pointer, size);
  ALLOCATE(size, pointer, REAL(cuMemAlloc_v2)(pointer, size));
}

/* Flags that no driver knew so far: its own answer, and charged afterwards should it take them. */
static CUresult allocate_managed_unlikely(CUdeviceptr *pointer, size_t size, unsigned int flags) {
  CUcontext context;
  int grant;
  CUresult result = PENSTOCK_BELOW(REAL(cuMemAllocManaged)(pointer, size, flags));
  if (result != CUDA_SUCCESS) return result;
  const uint64_t bytes = penstock_whole_slabs(size);
  result = PENSTOCK_BELOW(penstock_here(&context, &grant));
  if (result == CUDA_SUCCESS) result = penstock_charge(grant, bytes);
  if (result != CUDA_SUCCESS) {
    PENSTOCK_BELOW(REAL(cuMemFree_v2)(*pointer));
    return result;
  }
  penstock_object_remember(PENSTOCK_DEVICE_MEMORY, *pointer, grant, bytes, context);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI HOOK_NAME(cuMemAllocManaged)(CUdeviceptr *pointer, size_t size,
                                              unsigned int flags) {
  PENSTOCK_PASS(cuMemAllocManaged, pointer, size, flags);
  if (pointer && flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
      flags != CU_MEM_ATTACH_SINGLE) {
    return allocate_managed_unlikely(pointer, size, flags);
  }
  ALLOCATE(size, pointer, REAL(cuMemAllocManaged)(pointer, size, flags));
}

/* The driver pads each row, so far never to more than a multiple of 512 bytes. */
#define PITCH_BYTES 512

static uint64_t rows_bytes(uint64_t pitch, uint64_t rows) {
  uint64_t bytes;
  return __builtin_mul_overflow(pitch, rows, &bytes) ? UINT64_MAX : penstock_whole_slabs(bytes);
}

static uint64_t pitched_bound(uint64_t width, uint64_t rows) {
  uint64_t padded;
  if (__builtin_add_overflow(width, PITCH_BYTES - 1, &padded)) return UINT64_MAX;
  return rows_bytes(padded - padded % PITCH_BYTES, rows);
}

/* Others the driver refuses, whatever the quota; if not, they are charged once it has answered. */
static bool is_element(unsigned bytes) { return bytes == 4 || bytes == 8 || bytes == 16; }

/* Brings what was reserved as a bound to what the driver took. False: more than fits. */
static bool settle_bound(int grant, uint64_t bound, uint64_t taken) {
  if (taken > bound) return penstock_charge(grant, taken - bound) == CUDA_SUCCESS;
  penstock_uncharge(grant, bound - taken);
  return true;
}

#define ALLOCATE_PITCHED(pointer, pitch, width, rows, call, undo)                        \
  do {                                                                                   \
    CUcontext context;                                                                   \
    int grant;                                                                           \
    bool silly = !(pointer) || !(pitch) || !(width) || !(rows) || !is_element(element);  \
    uint64_t bound = silly ? 0 : pitched_bound(width, rows);                             \
    CUresult result = PENSTOCK_BELOW(penstock_here(&context, &grant));                   \
    if (result == CUDA_SUCCESS) result = penstock_charge(grant, bound);                  \
    if (result != CUDA_SUCCESS) return result;                                           \
    result = PENSTOCK_BELOW(call);                                                       \
    if (result != CUDA_SUCCESS) {                                                        \
      penstock_uncharge(grant, bound);                                                   \
      return result;                                                                     \
    }                                                                                    \
    uint64_t taken = rows_bytes(*(pitch), rows);                                         \
    if (!settle_bound(grant, bound, taken)) {                                            \
      PENSTOCK_BELOW(undo);                                                              \
      penstock_uncharge(grant, bound);                                                   \
      return CUDA_ERROR_OUT_OF_MEMORY;                                                   \
    }                                                                                    \
    penstock_object_remember(PENSTOCK_DEVICE_MEMORY, *(pointer), grant, taken, context); \
    return CUDA_SUCCESS;                                                                 \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuMemAllocPitch)(CUdeviceptr_v1 *pointer, unsigned int *pitch,
                                            unsigned int width, unsigned int rows,
                                            unsigned int element) {
  PENSTOCK_PASS(cuMemAllocPitch, pointer, pitch, width, rows, element);
  ALLOCATE_PITCHED(pointer, pitch, width, rows,
                   REAL(cuMemAllocPitch)(pointer, pitch, width, rows, element),
                   REAL(cuMemFree)(*pointer));
}

CUresult CUDAAPI HOOK_NAME(cuMemAllocPitch_v2)(CUdeviceptr *pointer, size_t *pitch, size_t width,
                                               size_t rows, unsigned int element) {
  PENSTOCK_PASS(cuMemAllocPitch_v2, pointer, pitch, width, rows, element);
  ALLOCATE_PITCHED(pointer, pitch, width, rows,
                   REAL(cuMemAllocPitch_v2)(pointer, pitch, width, rows, element),
                   REAL(cuMemFree_v2)(*pointer));
}

/* cuMemFree takes memory of a pool as well. */
#define FREE(pointer, call)                                                            \
  do {                                                                                 \
    penstock_freeing freeing = penstock_free_begin(PENSTOCK_DEVICE_MEMORY, (pointer)); \
    if (freeing.found) return penstock_free_end(&freeing, PENSTOCK_BELOW(call));       \
    freeing = penstock_pool_free_begin(pointer);                                       \
    return penstock_pool_free_end(&freeing, PENSTOCK_NO_STREAM, PENSTOCK_BELOW(call)); \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuMemFree)(CUdeviceptr_v1 pointer) {
  PENSTOCK_PASS(cuMemFree, pointer);
  FREE(pointer, REAL(cuMemFree)(pointer));
}

CUresult CUDAAPI HOOK_NAME(cuMemFree_v2)(CUdeviceptr pointer) {
  PENSTOCK_PASS(cuMemFree_v2, pointer);
  FREE(pointer, REAL(cuMemFree_v2)(pointer));
}
