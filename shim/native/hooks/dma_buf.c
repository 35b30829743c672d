/* Device memory exported as a dma-buf. The descriptor and any kernel driver that imported it keep
 * the memory after it is freed and unmapped, and the memory stays charged for that long. */
#include <unistd.h>

#include "memory/charge.h"
#include "hooks/hook.h"
#include "hooks/vmm.h"
#include "memory/shares.h"

static bool keep_linear(CUdeviceptr pointer, int descriptor, bool *is_known) {
  penstock_object object;
  CUdeviceptr base = pointer;
  REAL(cuMemGetAddressRange_v2)(&base, NULL, pointer);
  if (!penstock_vmm_lock()) return false;
  /* Taken out of the table for one thread at a time, as in ipc.c. */
  *is_known = penstock_object_take(PENSTOCK_DEVICE_MEMORY, base, &object);
  if (*is_known) {
    if (!object.in_slab) penstock_shares_keep_for(&object, descriptor);
    penstock_object_put(&object);
  }
  penstock_vmm_unlock();
  /* For a small block the descriptor keeps the whole slab, which other blocks may share. */
  return *is_known && (!object.in_slab ||
                       penstock_shares_charge_for(object.grant, PENSTOCK_SLAB_BYTES, descriptor));
}

/* Keeps the charges of the adjacent mappings in a range. */
static bool keep_mapped(CUdeviceptr at, size_t size, int descriptor, bool *is_known) {
  const CUdeviceptr end = at + size;
  penstock_object mapping;
  while (at < end && penstock_vmm_find_mapping(at, &mapping)) {
    *is_known = true;
    penstock_vmm_keep_for(mapping.detail, descriptor);
    at = mapping.key + mapping.bytes;
  }
  return *is_known;
}

/* Charges memory of a pool or imported memory, because this process did not charge it or its charge
 * is unknown. */
static bool keep_other(CUdeviceptr pointer, size_t size, int descriptor) {
  unsigned type = CU_MEMORYTYPE_DEVICE;
  int ordinal = -1;
  REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
  if (type == CU_MEMORYTYPE_HOST) return true;
  REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
  const uint64_t bytes =
      size > PENSTOCK_SLAB_BYTES ? penstock_whole_slabs(size) : PENSTOCK_SLAB_BYTES;
  return penstock_shares_charge_for(penstock_grant_of(ordinal), bytes, descriptor);
}

CUresult CUDAAPI HOOK_NAME(cuMemGetHandleForAddressRange)(void *handle, CUdeviceptr pointer,
                                                          size_t size, CUmemRangeHandleType type,
                                                          unsigned long long flags) {
  CUresult result = REAL(cuMemGetHandleForAddressRange)(handle, pointer, size, type, flags);
  if (result != CUDA_SUCCESS || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) return result;
  const int descriptor = *(int *)handle;
  bool is_known = false;
  bool is_kept = keep_mapped(pointer, size, descriptor, &is_known);
  if (!is_known) is_kept = keep_linear(pointer, descriptor, &is_known);
  if (!is_known) is_kept = keep_other(pointer, size, descriptor);
  if (is_kept) return CUDA_SUCCESS;
  close(descriptor);
  *(int *)handle = -1;
  return CUDA_ERROR_OUT_OF_MEMORY;
}
