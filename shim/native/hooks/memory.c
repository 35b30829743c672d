/* Linear device memory: cuMemAlloc, Pitch, Managed, and cuMemFree. */
#include "charge.h"
#include "hooks/hook.h"

/* Reserve, allocate, remember: the body of every plain allocation. `call` stores the pointer. */
#define ALLOCATE(bytes_asked, pointer, call)                                             \
  do {                                                                                   \
    CUcontext context;                                                                   \
    int grant;                                                                           \
    const uint64_t bytes = (bytes_asked);                                                \
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

CUresult CUDAAPI HOOK_NAME(cuMemAllocManaged)(CUdeviceptr *pointer, size_t size,
                                              unsigned int flags) {
  PENSTOCK_PASS(cuMemAllocManaged, pointer, size, flags);
  ALLOCATE(size, pointer, REAL(cuMemAllocManaged)(pointer, size, flags));
}

#define FREE(pointer, call)                                                            \
  do {                                                                                 \
    penstock_freeing freeing = penstock_free_begin(PENSTOCK_DEVICE_MEMORY, (pointer)); \
    return penstock_free_end(&freeing, PENSTOCK_BELOW(call));                          \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuMemFree)(CUdeviceptr_v1 pointer) {
  PENSTOCK_PASS(cuMemFree, pointer);
  FREE(pointer, REAL(cuMemFree)(pointer));
}

CUresult CUDAAPI HOOK_NAME(cuMemFree_v2)(CUdeviceptr pointer) {
  PENSTOCK_PASS(cuMemFree_v2, pointer);
  FREE(pointer, REAL(cuMemFree_v2)(pointer));
}
