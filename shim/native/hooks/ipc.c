/* Memory of other processes: IPC handles and external memory (Vulkan, Direct3D, dma-buf).
 *
 * Memory that another process of the tenant exported is charged once, in a share (shares.h). Memory
 * from elsewhere is charged to the process that opens it, while it is open. A process cannot open
 * its own IPC handles. */
#include "contexts/contexts.h"
#include "memory/charge.h"
#include "hooks/hook.h"
#include "hooks/vmm.h"
#include "memory/shares.h"

/* Moves the charge of an exported allocation into a share. Only one thread at a time does this,
 * because the object is not in the table in the meantime. */
static void hand_out(const CUipcMemHandle *handle, CUdeviceptr pointer) {
  penstock_object object;
  CUdeviceptr base = pointer;
  REAL(cuMemGetAddressRange_v2)(&base, NULL, pointer);
  if (!penstock_vmm_lock()) return;
  if (penstock_object_take(PENSTOCK_DEVICE_MEMORY, base, &object)) {
    penstock_shares_make(&object, penstock_shares_key(handle, sizeof *handle));
    penstock_object_put(&object);
  }
  penstock_vmm_unlock();
}

CUresult CUDAAPI HOOK_NAME(cuIpcGetMemHandle)(CUipcMemHandle *handle, CUdeviceptr pointer) {
  CUresult result = REAL(cuIpcGetMemHandle)(handle, pointer);
  if (result == CUDA_SUCCESS) hand_out(handle, pointer);
  return result;
}

/* Counts another opening of a handle, which gives the same pointer and is already charged. Returns
 * false if the pointer was not opened before. */
static bool open_again(CUdeviceptr pointer) {
  penstock_object entry;
  while (penstock_object_find(PENSTOCK_IPC_MEMORY, pointer, &entry)) {
    penstock_object more = entry;
    more.detail++;
    if (penstock_object_replace(&entry, &more)) return true;
  }
  return false;
}

/* Returns the grant of the device that holds the memory, which may not be the current device. */
static int grant_of_pointer(CUdeviceptr pointer, int otherwise) {
  int device = 0;
  CUresult result =
      REAL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
  return result == CUDA_SUCCESS ? penstock_grant_of(device) : otherwise;
}

/* Charges memory after it was opened, because only then is its size known, or closes it again. */
static CUresult opened(CUdeviceptr pointer, uint64_t share, int grant, CUcontext context) {
  CUdeviceptr base;
  size_t bytes = 0;
  if (open_again(pointer)) {
    penstock_shares_drop(share);
    return CUDA_SUCCESS;
  }
  grant = grant_of_pointer(pointer, grant);
  penstock_object object = {.key = pointer,
                            .share = share,
                            .context = context,
                            .grant = (int16_t)grant,
                            .kind = PENSTOCK_IPC_MEMORY};
  if (!share) {
    REAL(cuMemGetAddressRange_v2)(&base, &bytes, pointer);
    bytes = penstock_whole_slabs(bytes);
    CUresult result = penstock_charge(grant, bytes);
    if (result != CUDA_SUCCESS) {
      REAL(cuIpcCloseMemHandle)(pointer);
      return result;
    }
    object.bytes = bytes;
  }
  bool is_new = penstock_object_add(&object);
  /* Another thread has charged the memory first. */
  if (!is_new && open_again(pointer)) penstock_give_back(&object);
  return CUDA_SUCCESS;
}

/* The share is joined before the driver is called, because the process that made it may end at any
 * time. */
#define OPEN_IPC(pointer, handle, call)                                                    \
  do {                                                                                     \
    CUcontext context;                                                                     \
    int grant;                                                                             \
    CUresult result = penstock_here(&context, &grant);                                     \
    if (result != CUDA_SUCCESS) return result;                                             \
    uint64_t share = penstock_shares_join(penstock_shares_key(&(handle), sizeof(handle))); \
    result = call;                                                                         \
    if (result == CUDA_SUCCESS) return opened(*(pointer), share, grant, context);          \
    penstock_shares_drop(share);                                                           \
    return result;                                                                         \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuIpcOpenMemHandle)(CUdeviceptr *pointer, CUipcMemHandle handle,
                                               unsigned int flags) {
  OPEN_IPC(pointer, handle, REAL(cuIpcOpenMemHandle)(pointer, handle, flags));
}

CUresult CUDAAPI HOOK_NAME(cuIpcOpenMemHandle_v2)(CUdeviceptr *pointer, CUipcMemHandle handle,
                                                  unsigned int flags) {
  OPEN_IPC(pointer, handle, REAL(cuIpcOpenMemHandle_v2)(pointer, handle, flags));
}

CUresult CUDAAPI HOOK_NAME(cuIpcCloseMemHandle)(CUdeviceptr pointer) {
  penstock_object entry;
  while (penstock_object_find(PENSTOCK_IPC_MEMORY, pointer, &entry) && entry.detail) {
    penstock_object fewer = entry;
    fewer.detail--;
    if (!penstock_object_replace(&entry, &fewer)) continue;
    CUresult result = REAL(cuIpcCloseMemHandle)(pointer); /* the memory stays open */
    if (result != CUDA_SUCCESS) open_again(pointer);
    return result;
  }
  penstock_freeing freeing = penstock_free_begin(PENSTOCK_IPC_MEMORY, pointer);
  return penstock_free_end(&freeing, REAL(cuIpcCloseMemHandle)(pointer));
}

CUresult CUDAAPI HOOK_NAME(cuImportExternalMemory)(CUexternalMemory *memory,
                                                   const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *handle) {
  if (!memory || !handle) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context;
  int grant;
  const uint64_t bytes = handle->size;
  CUresult result = penstock_here(&context, &grant);
  if (bytes > PENSTOCK_MOST_DEVICE_BYTES) {
    result = REAL(cuImportExternalMemory)(memory, handle);
    if (result == CUDA_SUCCESS) REAL(cuDestroyExternalMemory)(*memory);
    return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
  }
  if (result == CUDA_SUCCESS) result = penstock_charge(grant, bytes);
  if (result != CUDA_SUCCESS) return result;
  result = REAL(cuImportExternalMemory)(memory, handle);
  if (result == CUDA_SUCCESS) {
    penstock_object_remember(PENSTOCK_EXTERNAL_MEMORY, (uint64_t)(uintptr_t)*memory, grant, bytes,
                             context);
  } else {
    penstock_uncharge(grant, bytes);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuDestroyExternalMemory)(CUexternalMemory memory) {
  penstock_freeing freeing =
      penstock_free_begin(PENSTOCK_EXTERNAL_MEMORY, (uint64_t)(uintptr_t)memory);
  return penstock_free_end(&freeing, REAL(cuDestroyExternalMemory)(memory));
}
