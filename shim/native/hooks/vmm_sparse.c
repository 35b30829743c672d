/* Physical memory behind sparse arrays. */
#include "charge.h"
#include "hooks/array.h"
#include "hooks/hook.h"
#include "hooks/vmm.h"

/* Memory behind a sparse array: held by the array until that is destroyed, for an unmapping does
 * not say which allocation it lets go. */
static void hold_by_array(const CUarrayMapInfo *map) {
  penstock_object entry, gone;
  if (map->memOperationType != CU_MEM_OPERATION_TYPE_MAP ||
      map->memHandleType != CU_MEM_HANDLE_TYPE_GENERIC ||
      !penstock_object_find(PENSTOCK_VMM_HANDLE, map->memHandle.memHandle, &entry) ||
      !penstock_vmm_lock()) {
    return;
  }
  penstock_object mapping = {.key = ++penstock_vmm_state_get()->last_number,
                             .bytes = (uint64_t)(uintptr_t)map->resource.array,
                             .detail = entry.detail,
                             .grant = entry.grant,
                             .kind = PENSTOCK_VMM_ARRAY_MAPPING};
  __atomic_fetch_add(&penstock_vmm_state_get()->array_mappings, 1, __ATOMIC_RELEASE);
  if (penstock_object_put(&mapping))
    penstock_vmm_count(entry.detail, PENSTOCK_VMM_MAPPINGS(1), 0, &gone);
  penstock_vmm_unlock();
}

#define MAP_ARRAYS(list, count, call)                                  \
  do {                                                                 \
    CUresult result = PENSTOCK_BELOW(call);                            \
    for (unsigned i = 0; result == CUDA_SUCCESS && i < (count); i++) { \
      hold_by_array(&(list)[i]);                                       \
    }                                                                  \
    return result;                                                     \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuMemMapArrayAsync)(CUarrayMapInfo *list, unsigned int count,
                                               CUstream stream) {
  PENSTOCK_PASS(cuMemMapArrayAsync, list, count, stream);
  MAP_ARRAYS(list, count, REAL(cuMemMapArrayAsync)(list, count, stream));
}

CUresult CUDAAPI HOOK_NAME(cuMemMapArrayAsync_ptsz)(CUarrayMapInfo *list, unsigned int count,
                                                    CUstream stream) {
  PENSTOCK_PASS(cuMemMapArrayAsync_ptsz, list, count, stream);
  MAP_ARRAYS(list, count, REAL(cuMemMapArrayAsync_ptsz)(list, count, stream));
}

typedef struct array_search {
  uint64_t array;
  uint64_t number; /* of an allocation that it held; 0: no more */
} array_search;

static bool held_by(penstock_object *mapping, void *argument) {
  array_search *s = argument;
  if (s->number || mapping->bytes != s->array) return false;
  s->number = mapping->detail;
  return true;
}

void penstock_vmm_array_destroyed(uint64_t array) {
  penstock_vmm_state *vmm = penstock_vmm_state_get();
  if (!vmm || !__atomic_load_n(&vmm->array_mappings, __ATOMIC_ACQUIRE)) return;
  for (;;) {
    array_search s = {.array = array};
    penstock_object_each(PENSTOCK_VMM_ARRAY_MAPPING, held_by, &s);
    if (!s.number) return;
    penstock_vmm_mapping_gone(s.number);
  }
}
