/* Physical memory behind sparse arrays. Each tile holds its memory until it is unmapped or
 * replaced, or the array is destroyed. The driver maps and unmaps in stream order, but the ledger
 * changes at the call. */
#include <stdlib.h>

#include "memory/charge.h"
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

/* Returns the numbers of the allocations to map, with 0 for those that are none or unknown, or NULL
 * if there is no memory. */
static uint64_t *refer_to_all(const CUarrayMapInfo *list, unsigned count) {
  uint64_t *numbers = calloc(count ? count : 1, sizeof *numbers);
  for (unsigned i = 0; numbers && list && i < count; i++) {
    bool maps = list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP &&
                list[i].memHandleType == CU_MEM_HANDLE_TYPE_GENERIC;
    if (maps) numbers[i] = penstock_vmm_refer_to_handle(list[i].memHandle.memHandle);
  }
  return numbers;
}

static CUresult mapped(const CUarrayMapInfo *list, unsigned count, uint64_t *numbers,
                       CUresult result) {
  for (unsigned i = 0; list && i < count; i++) {
    penstock_vmm_place place = place_of(&list[i]);
    /* The place was unmapped or replaced. */
    if (result == CUDA_SUCCESS) penstock_vmm_let_go_at(&place);
    penstock_vmm_bound(&place, numbers[i], result);
  }
  free(numbers);
  return result;
}

#define MAP_ARRAYS(list, count, call)              \
  do {                                             \
    uint64_t *numbers = refer_to_all(list, count); \
    if (!numbers) return CUDA_ERROR_OUT_OF_MEMORY; \
    return mapped(list, count, numbers, call);     \
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
