/* Logical endpoints: what is bound to one is taken to stay until it is unbound or the endpoint is
 * destroyed, as with multicast objects. Their header does not say otherwise. */
#include "hooks/hook.h"
#include "hooks/vmm.h"

#define OWNER_BIT ((uint64_t)1 << 63) /* apart from numbers and addresses */

static penstock_vmm_place place_of(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t offset,
                                   cuuint64_t size) {
  return (penstock_vmm_place){.owner = OWNER_BIT | (uint64_t)endpoint,
                              .plane = (uint64_t)(uint32_t)device,
                              .from = {offset},
                              .to = {offset + size}};
}

CUresult CUDAAPI HOOK_NAME(cuLogicalEndpointBindMem)(CUlogicalEndpointId endpoint, CUdevice device,
                                                     cuuint64_t offset,
                                                     CUmemGenericAllocationHandle memory,
                                                     cuuint64_t memory_offset, cuuint64_t size,
                                                     unsigned long long flags) {
  penstock_object entry;
  CUresult result =
      REAL(cuLogicalEndpointBindMem)(endpoint, device, offset, memory, memory_offset, size, flags);
  if (result == CUDA_SUCCESS && penstock_object_find(PENSTOCK_VMM_HANDLE, memory, &entry)) {
    penstock_vmm_place place = place_of(endpoint, device, offset, size);
    penstock_vmm_hold_at(&place, entry.detail);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuLogicalEndpointBindAddr)(CUlogicalEndpointId endpoint, CUdevice device,
                                                      cuuint64_t offset, void *pointer,
                                                      cuuint64_t size, unsigned long long flags) {
  penstock_object mapping;
  CUresult result = REAL(cuLogicalEndpointBindAddr)(endpoint, device, offset, pointer, size, flags);
  if (result == CUDA_SUCCESS && penstock_vmm_find_mapping((uint64_t)(uintptr_t)pointer, &mapping)) {
    penstock_vmm_place place = place_of(endpoint, device, offset, size);
    penstock_vmm_hold_at(&place, mapping.detail);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuLogicalEndpointUnbind)(CUlogicalEndpointId endpoint, CUdevice device,
                                                    cuuint64_t offset, cuuint64_t size) {
  CUresult result = REAL(cuLogicalEndpointUnbind)(endpoint, device, offset, size);
  if (result == CUDA_SUCCESS) {
    penstock_vmm_place place = place_of(endpoint, device, offset, size);
    penstock_vmm_let_go_at(&place);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuLogicalEndpointDestroy)(CUlogicalEndpointId endpoint) {
  CUresult result = REAL(cuLogicalEndpointDestroy)(endpoint);
  if (result == CUDA_SUCCESS) penstock_vmm_let_go_all(place_of(endpoint, 0, 0, 0).owner);
  return result;
}
