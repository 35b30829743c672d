/* Logical endpoints. Memory bound to an endpoint is assumed to stay until it is unbound or the
 * endpoint is destroyed, as with multicast objects. The vendor's header does not say otherwise. */
#include "hooks/hook.h"
#include "hooks/vmm.h"

#define OWNER_BIT ((uint64_t)1 << 63) /* distinguishes endpoints from numbers and addresses */

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
  const penstock_vmm_place place = place_of(endpoint, device, offset, size);
  uint64_t number = penstock_vmm_refer_to_handle(memory);
  return penstock_vmm_bound(
      &place, number,
      REAL(cuLogicalEndpointBindMem)(endpoint, device, offset, memory, memory_offset, size, flags));
}

CUresult CUDAAPI HOOK_NAME(cuLogicalEndpointBindAddr)(CUlogicalEndpointId endpoint, CUdevice device,
                                                      cuuint64_t offset, void *pointer,
                                                      cuuint64_t size, unsigned long long flags) {
  const penstock_vmm_place place = place_of(endpoint, device, offset, size);
  uint64_t number = penstock_vmm_refer_to_address((uint64_t)(uintptr_t)pointer);
  return penstock_vmm_bound(
      &place, number,
      REAL(cuLogicalEndpointBindAddr)(endpoint, device, offset, pointer, size, flags));
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
