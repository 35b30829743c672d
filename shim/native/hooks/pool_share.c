/* Pools that processes share. Such a pool is charged in a share from its creation on. */
#include "memory/charge.h"
#include "hooks/hook.h"
#include "memory/reserve.h"
#include "memory/shares.h"

CUresult CUDAAPI HOOK_NAME(cuMemPoolExportToShareableHandle)(void *shareable, CUmemoryPool pool,
                                                             CUmemAllocationHandleType type,
                                                             unsigned long long flags) {
  CUresult result = REAL(cuMemPoolExportToShareableHandle)(shareable, pool, type, flags);
  penstock_reserve *reserve = penstock_reserve_find(pool);
  if (result != CUDA_SUCCESS || !reserve) return result;
  if (!reserve->share) reserve->handed_out = true;
  penstock_shares_hand_out_pool(reserve->share, shareable, type);
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuMemPoolImportFromShareableHandle)(CUmemoryPool *pool, void *shareable,
                                                               CUmemAllocationHandleType type,
                                                               unsigned long long flags) {
  uint64_t share = penstock_shares_join_handle(shareable, type);
  CUresult result = REAL(cuMemPoolImportFromShareableHandle)(pool, shareable, type, flags);
  if (result != CUDA_SUCCESS) {
    penstock_shares_drop(share);
    return result;
  }
  penstock_object object = {
      .key = (uint64_t)(uintptr_t)*pool, .share = share, .grant = -1, .kind = PENSTOCK_POOL_IMPORT};
  penstock_object_put(&object);
  return CUDA_SUCCESS;
}

/* Charges memory of another tenant's pool to the process that maps it, on the device that the
 * driver reports. */
static CUresult pay(CUdeviceptr pointer, penstock_object *object) {
  int ordinal = 0;
  size_t bytes = 0;

  REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
  REAL(cuMemGetAddressRange_v2)(NULL, &bytes, pointer);
  object->grant = (int16_t)penstock_grant_of(ordinal);
  object->bytes = bytes;
  return penstock_charge(object->grant, bytes);
}

CUresult CUDAAPI HOOK_NAME(cuMemPoolImportPointer)(CUdeviceptr *pointer, CUmemoryPool pool,
                                                   CUmemPoolPtrExportData *data) {
  CUresult result = REAL(cuMemPoolImportPointer)(pointer, pool, data);
  penstock_object imported;
  if (result != CUDA_SUCCESS ||
      !penstock_object_find(PENSTOCK_POOL_IMPORT, (uint64_t)(uintptr_t)pool, &imported)) {
    return result;
  }
  penstock_object object = {
      .key = *pointer, .share = imported.share, .grant = -1, .kind = PENSTOCK_POOL_POINTER};
  if (imported.share) {
    penstock_shares_hold(imported.share);
  } else if ((result = pay(*pointer, &object)) != CUDA_SUCCESS) {
    REAL(cuMemFree_v2)(*pointer);
    return result;
  }
  penstock_object_put(&object);
  return CUDA_SUCCESS;
}
