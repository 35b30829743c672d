/* Physical memory that goes from process to process.
 *
 * What is imported from another process is charged when it is mapped, for its exporter may end and
 * take its charge along; what this very process exported is not charged twice.
 */
#include <string.h>
#include <sys/stat.h>

#include "charge.h"
#include "hooks/hook.h"
#include "hooks/vmm.h"

/* What an exported handle is known by: the descriptor's number and file, or the fabric handle. */
static uint64_t export_key(const void *shareable, CUmemAllocationHandleType type) {
  uint64_t key = 0xcbf29ce484222325u;
  unsigned char bytes[sizeof(CUmemFabricHandle)] = {0};
  size_t length = 0;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    struct stat file;
    int descriptor = *(const int *)shareable;
    if (fstat(descriptor, &file) != 0) return 0;
    uint64_t words[3] = {(uint64_t)descriptor, file.st_dev, file.st_ino};
    memcpy(bytes, words, length = sizeof words);
  } else if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    memcpy(bytes, shareable, length = sizeof bytes);
  } else {
    return 0;
  }
  for (size_t i = 0; i < length; i++) key = (key ^ bytes[i]) * 0x100000001b3u;
  return key ? key : 1;
}

CUresult CUDAAPI HOOK_NAME(cuMemExportToShareableHandle)(void *shareable,
                                                         CUmemGenericAllocationHandle handle,
                                                         CUmemAllocationHandleType type,
                                                         unsigned long long flags) {
  PENSTOCK_PASS(cuMemExportToShareableHandle, shareable, handle, type, flags);
  CUresult result =
      PENSTOCK_BELOW(REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags));
  penstock_object entry;
  if (result == CUDA_SUCCESS && penstock_object_find(PENSTOCK_VMM_HANDLE, handle, &entry)) {
    uint64_t key = export_key(shareable, type);
    if (key) penstock_vmm_put(PENSTOCK_VMM_EXPORT, key, entry.grant, 0, entry.detail);
  }
  return result;
}

/* The allocation that this process exported under this name; false: another process did. */
static bool find_own_export(void *shareable, CUmemAllocationHandleType type,
                            penstock_object *allocation) {
  int descriptor = (int)(intptr_t)shareable; /* imported by value */
  const void *name =
      type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? (const void *)&descriptor : shareable;
  uint64_t key = export_key(name, type);
  penstock_object exported;
  return key && penstock_object_find(PENSTOCK_VMM_EXPORT, key, &exported) &&
         penstock_object_find(PENSTOCK_VMM_ALLOCATION, exported.detail, allocation);
}

CUresult CUDAAPI HOOK_NAME(cuMemImportFromShareableHandle)(CUmemGenericAllocationHandle *handle,
                                                           void *shareable,
                                                           CUmemAllocationHandleType type) {
  PENSTOCK_PASS(cuMemImportFromShareableHandle, handle, shareable, type);
  penstock_object allocation;
  bool own = find_own_export(shareable, type, &allocation);
  CUresult result = PENSTOCK_BELOW(REAL(cuMemImportFromShareableHandle)(handle, shareable, type));
  if (result != CUDA_SUCCESS) return result;
  if (own) {
    if (penstock_vmm_lock()) {
      penstock_vmm_add_handle(*handle, allocation.key, allocation.grant);
      penstock_vmm_unlock();
    }
    return CUDA_SUCCESS;
  }
  CUmemAllocationProp properties = {0};
  if (PENSTOCK_BELOW(REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, *handle)) !=
          CUDA_SUCCESS ||
      !penstock_vmm_on_device(&properties)) {
    return CUDA_SUCCESS;
  }
  int grant = penstock_vmm_grant(&properties);
  if (penstock_vmm_lock()) {
    penstock_vmm_put(PENSTOCK_VMM_HANDLE, *handle, grant, 1, penstock_vmm_add(grant, 0, true));
    penstock_vmm_unlock();
  }
  return CUDA_SUCCESS;
}
