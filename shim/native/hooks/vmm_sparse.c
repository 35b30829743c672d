/* Physical memory behind sparse arrays: held tile by tile until it is unmapped, replaced, or the
 * array is destroyed. The driver maps and unmaps in stream order; the ledger does at the call. */
#include "charge.h"
#include "hooks/array.h"
#include "hooks/hook.h"
#include "hooks/vmm.h"

static penstock_vmm_place place_of(const CUarrayMapInfo *map) {
  penstock_vmm_place place = {.owner = (uint64_t)(uintptr_t)map->resource.array,
                              .plane = (uint64_t)map->subresourceType << 56};
  if (map->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    place.plane |= map->subresource.miptail.layer;
    place.from[0] = map->subresource.miptail.offset;
    place.to[0] = place.from[0] + map->subresource.miptail.size;
    return place;
  }
  place.plane |= (uint64_t)map->subresource.sparseLevel.level << 32;
  place.plane |= map->subresource.sparseLevel.layer;
  place.from[0] = map->subresource.sparseLevel.offsetX;
  place.from[1] = map->subresource.sparseLevel.offsetY;
  place.from[2] = map->subresource.sparseLevel.offsetZ;
  place.to[0] = place.from[0] + map->subresource.sparseLevel.extentWidth;
  place.to[1] = place.from[1] + map->subresource.sparseLevel.extentHeight;
  place.to[2] = place.from[2] + map->subresource.sparseLevel.extentDepth;
  return place;
}

static void mapped(const CUarrayMapInfo *map) {
  penstock_object entry;
  penstock_vmm_place place = place_of(map);
  bool known = map->memOperationType == CU_MEM_OPERATION_TYPE_MAP &&
               map->memHandleType == CU_MEM_HANDLE_TYPE_GENERIC &&
               penstock_object_find(PENSTOCK_VMM_HANDLE, map->memHandle.memHandle, &entry);
  penstock_vmm_let_go_at(&place); /* unmapped, or replaced */
  if (known) penstock_vmm_hold_at(&place, entry.detail);
}

#define MAP_ARRAYS(list, count, call)                                  \
  do {                                                                 \
    CUresult result = call;                                            \
    for (unsigned i = 0; result == CUDA_SUCCESS && i < (count); i++) { \
      mapped(&(list)[i]);                                              \
    }                                                                  \
    return result;                                                     \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuMemMapArrayAsync)(CUarrayMapInfo *list, unsigned int count,
                                               CUstream stream) {
  MAP_ARRAYS(list, count, REAL(cuMemMapArrayAsync)(list, count, stream));
}

CUresult CUDAAPI HOOK_NAME(cuMemMapArrayAsync_ptsz)(CUarrayMapInfo *list, unsigned int count,
                                                    CUstream stream) {
  MAP_ARRAYS(list, count, REAL(cuMemMapArrayAsync_ptsz)(list, count, stream));
}

void penstock_vmm_array_destroyed(uint64_t array) { penstock_vmm_let_go_all(array); }
