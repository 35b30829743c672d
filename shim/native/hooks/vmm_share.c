/* Physical memory that processes share.
 *
 * Memory that another process of the tenant exported is charged once, in a share (shares.h). Memory
 * from elsewhere is charged when it is mapped, because only then is its size known. */
#include "memory/charge.h"
#include "hooks/hook.h"
#include "hooks/vmm.h"
#include "memory/shares.h"

/* Exports an allocation. If the allocation was imported and this process is charged for it, it is
 * unknown how much of it the export holds, so the charge stays until the process ends. The same
 * applies to a multicast object, because memory bound to it stays as long as any process has the
 * object. */
static void hand_out(uint64_t number, const void *shareable, CUmemAllocationHandleType type) {
  penstock_object allocation;
  if (!penstock_vmm_lock()) return;
  if (penstock_object_take(PENSTOCK_VMM_ALLOCATION, number, &allocation)) {
    if (allocation.share || (allocation.bytes && !allocation.imported)) {
      penstock_shares_hand_out(&allocation, shareable, type);
    } else {
      allocation.detail += PENSTOCK_VMM_HANDLES(1);
    }
    penstock_object_put(&allocation);
  }
  penstock_vmm_unlock();
}

void penstock_vmm_keep_for(uint64_t number, int descriptor) {
  hand_out(number, &descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult CUDAAPI HOOK_NAME(cuMemExportToShareableHandle)(void *shareable,
                                                         CUmemGenericAllocationHandle handle,
                                                         CUmemAllocationHandleType type,
                                                         unsigned long long flags) {
  CUresult result = REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
  penstock_object entry;
  if (result == CUDA_SUCCESS && penstock_object_find(PENSTOCK_VMM_HANDLE, handle, &entry)) {
    hand_out(entry.detail, shareable, type);
  }
  return result;
}

typedef struct share_search {
  uint64_t share;
  uint64_t number; /* number of this process's allocation in the share, 0 if there is none */
} share_search;

static bool lies_in(penstock_object *allocation, void *argument) {
  share_search *s = argument;
  if (allocation->share == s->share) s->number = allocation->key;
  return false;
}

/* Adds a handle of memory in a share, either to the allocation that this process already has or to
 * a new one. */
static void take_part(CUmemGenericAllocationHandle handle, uint64_t share, int grant) {
  if (!penstock_vmm_lock()) return;
  share_search s = {.share = share};
  penstock_object_each(PENSTOCK_VMM_ALLOCATION, lies_in, &s);
  if (s.number) {
    penstock_vmm_add_handle(handle, s.number, grant);
  } else {
    uint64_t number = penstock_vmm_add(grant, 0, false);
    penstock_object allocation;
    if (penstock_object_take(PENSTOCK_VMM_ALLOCATION, number, &allocation)) {
      allocation.share = share;
      penstock_object_put(&allocation);
    }
    penstock_vmm_put(PENSTOCK_VMM_HANDLE, handle, grant, 1, number);
  }
  penstock_vmm_unlock();
  if (s.number) penstock_shares_drop(share); /* the existing allocation already holds the share */
}

static void pay_when_mapped(CUmemGenericAllocationHandle handle, int grant) {
  if (!penstock_vmm_lock()) return;
  penstock_vmm_put(PENSTOCK_VMM_HANDLE, handle, grant, 1, penstock_vmm_add(grant, 0, true));
  penstock_vmm_unlock();
}

CUresult CUDAAPI HOOK_NAME(cuMemImportFromShareableHandle)(CUmemGenericAllocationHandle *handle,
                                                           void *shareable,
                                                           CUmemAllocationHandleType type) {
  /* The share is joined before the driver's call, because the exporter may end at any time. */
  uint64_t share = penstock_shares_join_handle(shareable, type);
  CUresult result = REAL(cuMemImportFromShareableHandle)(handle, shareable, type);
  CUmemAllocationProp properties = {0};
  if (result != CUDA_SUCCESS ||
      REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, *handle) != CUDA_SUCCESS ||
      !penstock_vmm_on_device(&properties)) {
    penstock_shares_drop(share);
    return result;
  }
  int grant = penstock_vmm_grant(&properties);
  if (share) {
    take_part(*handle, share, grant);
  } else {
    pay_when_mapped(*handle, grant);
  }
  return CUDA_SUCCESS;
}
