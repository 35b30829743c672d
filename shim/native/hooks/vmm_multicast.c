/* Multicast objects. They use no memory themselves, but memory bound to one stays until it is
 * unbound or the object ends. An object is an allocation of 0 bytes, held by handles and mappings
 * like others. */
#include "memory/charge.h"
#include "hooks/hook.h"
#include "hooks/vmm.h"

CUresult CUDAAPI HOOK_NAME(cuMulticastCreate)(CUmemGenericAllocationHandle *object,
                                              const CUmulticastObjectProp *properties) {
  CUresult result = REAL(cuMulticastCreate)(object, properties);
  if (result == CUDA_SUCCESS && penstock_vmm_lock()) {
    penstock_vmm_put(PENSTOCK_VMM_HANDLE, *object, -1, 1, penstock_vmm_add(-1, 0, false));
    penstock_vmm_unlock();
  }
  return result;
}

/* Returns the part of the object on one device. An object from another process is known only by its
 * handle; memory bound to such an object is charged until it is unbound. */
static penstock_vmm_place place_of(CUmemGenericAllocationHandle object, CUdevice device,
                                   size_t offset, size_t bytes) {
  penstock_object entry;
  bool known = penstock_object_find(PENSTOCK_VMM_HANDLE, object, &entry);
  return (penstock_vmm_place){.owner = known ? entry.detail : object,
                              .plane = (uint64_t)(uint32_t)device,
                              .from = {offset},
                              .to = {offset + bytes}};
}

static CUdevice device_of_handle(CUmemGenericAllocationHandle memory) {
  CUmemAllocationProp properties = {0};
  REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, memory);
  return properties.location.id;
}

static CUdevice device_of_pointer(CUdeviceptr pointer) {
  int ordinal = 0;

  REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
  return ordinal;
}

CUresult CUDAAPI HOOK_NAME(cuMulticastBindMem)(CUmemGenericAllocationHandle object, size_t offset,
                                               CUmemGenericAllocationHandle memory,
                                               size_t memory_offset, size_t bytes,
                                               unsigned long long flags) {
  uint64_t number = penstock_vmm_refer_to_handle(memory);
  CUresult result = REAL(cuMulticastBindMem)(object, offset, memory, memory_offset, bytes, flags);
  const penstock_vmm_place place = place_of(object, device_of_handle(memory), offset, bytes);
  return penstock_vmm_bound(&place, number, result);
}

CUresult CUDAAPI HOOK_NAME(cuMulticastBindMem_v2)(CUmemGenericAllocationHandle object,
                                                  CUdevice device, size_t offset,
                                                  CUmemGenericAllocationHandle memory,
                                                  size_t memory_offset, size_t bytes,
                                                  unsigned long long flags) {
  uint64_t number = penstock_vmm_refer_to_handle(memory);
  const penstock_vmm_place place = place_of(object, device, offset, bytes);
  return penstock_vmm_bound(
      &place, number,
      REAL(cuMulticastBindMem_v2)(object, device, offset, memory, memory_offset, bytes, flags));
}

CUresult CUDAAPI HOOK_NAME(cuMulticastBindAddr)(CUmemGenericAllocationHandle object, size_t offset,
                                                CUdeviceptr pointer, size_t bytes,
                                                unsigned long long flags) {
  uint64_t number = penstock_vmm_refer_to_address(pointer);
  CUresult result = REAL(cuMulticastBindAddr)(object, offset, pointer, bytes, flags);
  const penstock_vmm_place place = place_of(object, device_of_pointer(pointer), offset, bytes);
  return penstock_vmm_bound(&place, number, result);
}

CUresult CUDAAPI HOOK_NAME(cuMulticastBindAddr_v2)(CUmemGenericAllocationHandle object,
                                                   CUdevice device, size_t offset,
                                                   CUdeviceptr pointer, size_t bytes,
                                                   unsigned long long flags) {
  uint64_t number = penstock_vmm_refer_to_address(pointer);
  const penstock_vmm_place place = place_of(object, device, offset, bytes);
  return penstock_vmm_bound(
      &place, number, REAL(cuMulticastBindAddr_v2)(object, device, offset, pointer, bytes, flags));
}

CUresult CUDAAPI HOOK_NAME(cuMulticastUnbind)(CUmemGenericAllocationHandle object, CUdevice device,
                                              size_t offset, size_t bytes) {
  CUresult result = REAL(cuMulticastUnbind)(object, device, offset, bytes);
  if (result == CUDA_SUCCESS) {
    penstock_vmm_place place = place_of(object, device, offset, bytes);
    penstock_vmm_let_go_at(&place);
  }
  return result;
}
