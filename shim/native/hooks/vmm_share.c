/* Physical memory that goes from process to process.
 *
 * What another process of the tenant exported is charged once, in a share (shares.h). What comes
 * from elsewhere is charged when it is mapped, for only then its size is known.
 */
#include "charge.h"
#include "hooks/hook.h"
#include "hooks/vmm.h"
#include "shares.h"

/* An imported allocation that this process pays for is handed on: nobody can tell how much of it,
 * so what is charged stays charged until the process ends. A multicast object likewise: what is
 * bound to it stays as long as any process has the object. */
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
  uint64_t number; /* of this process's allocation in that share; 0: none */
} share_search;

static bool lies_in(penstock_object *allocation, void *argument) {
  share_search *s = argument;
  if (allocation->share == s->share) s->number = allocation->key;
  return false;
}

/* A handle of memory in a share: of the allocation that this process knows already, or a new one.
 */
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
  if (s.number) penstock_shares_drop(share); /* that allocation's part is enough */
}

static void pay_when_mapped(CUmemGenericAllocationHandle handle, int grant) {
  if (!penstock_vmm_lock()) return;
  penstock_vmm_put(PENSTOCK_VMM_HANDLE, handle, grant, 1, penstock_vmm_add(grant, 0, true));
  penstock_vmm_unlock();
}

CUresult CUDAAPI HOOK_NAME(cuMemImportFromShareableHandle)(CUmemGenericAllocationHandle *handle,
                                                           void *shareable,
                                                           CUmemAllocationHandleType type) {
  /* First: the exporter may end at any time. */
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
