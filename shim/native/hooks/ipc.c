/* Memory of others: IPC handles and external memory (Vulkan, Direct3D, dma-buf).
 *
 * Who opens it keeps it alive when its owner ends and takes the charge along; so it pays as well. A
 * process cannot open its own IPC handles.
 */
#include "charge.h"
#include "hooks/hook.h"

/* The size is known once it is open: then it is charged, or closed again. */
#define OPEN_IPC(pointer, call)                                                         \
  do {                                                                                  \
    CUcontext context;                                                                  \
    CUdeviceptr base;                                                                   \
    size_t bytes = 0;                                                                   \
    int grant;                                                                          \
    CUresult result = PENSTOCK_BELOW(penstock_here(&context, &grant));                  \
    if (result == CUDA_SUCCESS) result = PENSTOCK_BELOW(call);                          \
    if (result != CUDA_SUCCESS) return result;                                          \
    PENSTOCK_BELOW(REAL(cuMemGetAddressRange_v2)(&base, &bytes, *(pointer)));           \
    result = penstock_charge(grant, bytes);                                             \
    if (result == CUDA_SUCCESS) {                                                       \
      penstock_object_remember(PENSTOCK_IPC_MEMORY, *(pointer), grant, bytes, context); \
    } else {                                                                            \
      PENSTOCK_BELOW(REAL(cuIpcCloseMemHandle)(*(pointer)));                            \
    }                                                                                   \
    return result;                                                                      \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuIpcOpenMemHandle)(CUdeviceptr *pointer, CUipcMemHandle handle,
                                               unsigned int flags) {
  PENSTOCK_PASS(cuIpcOpenMemHandle, pointer, handle, flags);
  OPEN_IPC(pointer, REAL(cuIpcOpenMemHandle)(pointer, handle, flags));
}

CUresult CUDAAPI HOOK_NAME(cuIpcOpenMemHandle_v2)(CUdeviceptr *pointer, CUipcMemHandle handle,
                                                  unsigned int flags) {
  PENSTOCK_PASS(cuIpcOpenMemHandle_v2, pointer, handle, flags);
  OPEN_IPC(pointer, REAL(cuIpcOpenMemHandle_v2)(pointer, handle, flags));
}

CUresult CUDAAPI HOOK_NAME(cuIpcCloseMemHandle)(CUdeviceptr pointer) {
  PENSTOCK_PASS(cuIpcCloseMemHandle, pointer);
  penstock_freeing freeing = penstock_free_begin(PENSTOCK_IPC_MEMORY, pointer);
  return penstock_free_end(&freeing, PENSTOCK_BELOW(REAL(cuIpcCloseMemHandle)(pointer)));
}

CUresult CUDAAPI HOOK_NAME(cuImportExternalMemory)(CUexternalMemory *memory,
                                                   const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *handle) {
  PENSTOCK_PASS(cuImportExternalMemory, memory, handle);
  if (!memory || !handle) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context;
  int grant;
  const uint64_t bytes = handle->size;
  CUresult result = PENSTOCK_BELOW(penstock_here(&context, &grant));
  if (result == CUDA_SUCCESS) result = penstock_charge(grant, bytes);
  if (result != CUDA_SUCCESS) return result;
  result = PENSTOCK_BELOW(REAL(cuImportExternalMemory)(memory, handle));
  if (result == CUDA_SUCCESS) {
    penstock_object_remember(PENSTOCK_EXTERNAL_MEMORY, (uint64_t)(uintptr_t)*memory, grant, bytes,
                             context);
  } else {
    penstock_uncharge(grant, bytes);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuDestroyExternalMemory)(CUexternalMemory memory) {
  PENSTOCK_PASS(cuDestroyExternalMemory, memory);
  penstock_freeing freeing =
      penstock_free_begin(PENSTOCK_EXTERNAL_MEMORY, (uint64_t)(uintptr_t)memory);
  return penstock_free_end(&freeing, PENSTOCK_BELOW(REAL(cuDestroyExternalMemory)(memory)));
}
