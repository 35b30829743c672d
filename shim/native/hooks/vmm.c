/* Virtual memory management. Physical memory is charged on its device while a handle or a mapping
 * holds it.
 *
 * An allocation (PENSTOCK_VMM_ALLOCATION, under a number that the shim assigns) counts its handle
 * references and its mappings, and its charge ends when both are gone. After the last release the
 * driver can reuse the handle's value while old mappings still hold the memory, so handles and
 * mappings refer to the number and not to each other. */
#include <stdlib.h>

#include "memory/charge.h"
#include "hooks/hook.h"
#include "hooks/vmm.h"
#include "memory/location.h"
#include "memory/shares.h"

/* Largest granularity of drivers so far. For sizes that are not multiples of it, the driver is
 * queried. */
#define LARGEST_GRANULARITY ((size_t)2 << 20)

static void remember_created(CUmemGenericAllocationHandle handle, size_t size, int grant) {
  if (!penstock_vmm_lock()) return;
  penstock_vmm_put(PENSTOCK_VMM_HANDLE, handle, grant, 1, penstock_vmm_add(grant, size, false));
  penstock_vmm_unlock();
}

/* Returns true if the driver can be expected to accept these arguments. */
static bool is_plausible(size_t size, const CUmemAllocationProp *properties,
                         unsigned long long flags) {
  size_t granularity = 0;
  CUmemLocationType type = properties->location.type;
  if (type != CU_MEM_LOCATION_TYPE_DEVICE && type != CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) {
    return false;
  }
  if (size == 0 || flags || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      !penstock_location_exists(&properties->location)) {
    return false;
  }
  if (size % LARGEST_GRANULARITY == 0) return true;
  REAL(cuMemGetAllocationGranularity)(&granularity, properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return granularity && size % granularity == 0;
}

/* Creates memory with arguments that the driver should refuse, so that the program gets the
 * driver's error even if the size exceeds the quota. If the driver accepts them after all, the
 * memory is charged afterwards. */
static CUresult create_unlikely(CUmemGenericAllocationHandle *handle, size_t size,
                                const CUmemAllocationProp *properties, unsigned long long flags) {
  CUresult result = REAL(cuMemCreate)(handle, size, properties, flags);
  if (result != CUDA_SUCCESS) return result;
  int grant = penstock_vmm_grant(properties);
  result = penstock_charge(grant, size);
  if (result != CUDA_SUCCESS) {
    REAL(cuMemRelease)(*handle);
    return result;
  }
  remember_created(*handle, size, grant);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI HOOK_NAME(cuMemCreate)(CUmemGenericAllocationHandle *handle, size_t size,
                                        const CUmemAllocationProp *properties,
                                        unsigned long long flags) {
  if (!properties || !penstock_vmm_on_device(properties)) {
    return REAL(cuMemCreate)(handle, size, properties, flags);
  }
  if (!handle || !is_plausible(size, properties, flags)) {
    return create_unlikely(handle, size, properties, flags);
  }
  int grant = penstock_vmm_grant(properties);
  CUresult result = penstock_charge(grant, size);
  if (result != CUDA_SUCCESS) return result;
  result = REAL(cuMemCreate)(handle, size, properties, flags);
  if (result != CUDA_SUCCESS) {
    penstock_uncharge(grant, size);
    return result;
  }
  remember_created(*handle, size, grant);
  return CUDA_SUCCESS;
}

/* `bytes` of a handle's entry counts its references. The entry stays in the table until the driver
 * has released the handle, because until then calls of other threads can still succeed. After the
 * driver's call the handle's value may already belong to another allocation. */
CUresult CUDAAPI HOOK_NAME(cuMemRelease)(CUmemGenericAllocationHandle handle) {
  penstock_object entry, gone;
  uint64_t number = 0;
  if (penstock_object_find(PENSTOCK_VMM_HANDLE, handle, &entry)) number = entry.detail;
  CUresult result = REAL(cuMemRelease)(handle);
  if (result != CUDA_SUCCESS || !number || !penstock_vmm_lock()) return result;
  if (penstock_object_find(PENSTOCK_VMM_HANDLE, handle, &entry) && entry.detail == number) {
    penstock_object fewer = entry;
    fewer.bytes--;
    penstock_object_replace(&entry, fewer.bytes ? &fewer : NULL);
  }
  bool give_back = penstock_vmm_count(number, 0, PENSTOCK_VMM_HANDLES(1), &gone);
  penstock_vmm_unlock();
  if (give_back) penstock_vmm_gone(&gone);
  return result;
}

/* Charges an imported allocation up to `end`, the end of the part that is being mapped, because its
 * size is not known before. Memory in a share is at most as large as the share's charge. */
static CUresult charge_import(uint64_t number, uint64_t end, uint64_t *charged, int *grant) {
  penstock_object allocation;
  *charged = 0;
  *grant = -1;
  if (!penstock_object_find(PENSTOCK_VMM_ALLOCATION, number, &allocation)) return CUDA_SUCCESS;
  *grant = allocation.grant;
  if (allocation.share && end > penstock_shares_bytes(allocation.share, allocation.grant)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!allocation.imported || end <= allocation.bytes) return CUDA_SUCCESS;
  CUresult result = penstock_charge(allocation.grant, end - allocation.bytes);
  if (result == CUDA_SUCCESS) *charged = end - allocation.bytes;
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuMemMap)(CUdeviceptr pointer, size_t size, size_t offset,
                                     CUmemGenericAllocationHandle handle,
                                     unsigned long long flags) {
  penstock_object allocation;
  uint64_t charged = 0, number = penstock_vmm_refer_to_handle(handle);
  if (!number) return REAL(cuMemMap)(pointer, size, offset, handle, flags);
  int grant;
  CUresult result = charge_import(number, offset + size, &charged, &grant);
  if (result == CUDA_SUCCESS) result = REAL(cuMemMap)(pointer, size, offset, handle, flags);
  if (result != CUDA_SUCCESS) {
    if (charged) penstock_uncharge(grant, charged);
    penstock_vmm_mapping_gone(number);
    return result;
  }
  if (!penstock_vmm_lock()) return CUDA_SUCCESS;
  if (charged && penstock_object_take(PENSTOCK_VMM_ALLOCATION, number, &allocation)) {
    allocation.bytes += charged;
    penstock_object_put(&allocation);
  }
  penstock_vmm_put(PENSTOCK_VMM_MAPPING, pointer, grant, size, number);
  penstock_vmm_unlock();
  return CUDA_SUCCESS;
}

typedef struct mappings {
  penstock_object *all;
  size_t count;
} mappings;

/* Finds the adjacent mappings in the range. */
static mappings find_mappings(uint64_t at, uint64_t end) {
  mappings found = {NULL, 0};
  size_t room = 0;
  while (at < end) {
    if (found.count == room) {
      room = room ? room * 2 : 8;
      penstock_object *larger = realloc(found.all, room * sizeof *larger);
      if (!larger) break;
      found.all = larger;
    }
    if (!penstock_object_find(PENSTOCK_VMM_MAPPING, at, &found.all[found.count])) break;
    at += found.all[found.count++].bytes;
  }
  return found;
}

/* The driver unmaps only whole mappings, so each mapping in the range ends. Like handles, the
 * mappings stay in the table until the driver has unmapped them, when other mappings may already be
 * at these addresses. */
CUresult CUDAAPI HOOK_NAME(cuMemUnmap)(CUdeviceptr pointer, size_t size) {
  mappings found = find_mappings(pointer, pointer + size);
  CUresult result = REAL(cuMemUnmap)(pointer, size);
  for (size_t i = 0; result == CUDA_SUCCESS && i < found.count; i++) {
    penstock_object_replace(&found.all[i], NULL);
    penstock_vmm_mapping_gone(found.all[i].detail);
  }
  free(found.all);
  return result;
}

typedef struct search {
  uint64_t address;
  penstock_object mapping;
  bool found;
} search;

static bool covers(penstock_object *mapping, void *argument) {
  search *s = argument;
  if (mapping->key <= s->address && s->address - mapping->key < mapping->bytes) {
    s->mapping = *mapping;
    s->found = true;
  }
  return false;
}

bool penstock_vmm_find_mapping(uint64_t address, penstock_object *mapping) {
  search s = {.address = address};
  penstock_object_each(PENSTOCK_VMM_MAPPING, covers, &s);
  if (s.found) *mapping = s.mapping;
  return s.found;
}

CUresult CUDAAPI HOOK_NAME(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle,
                                                        void *address) {
  penstock_object allocation;
  uint64_t number = penstock_vmm_refer_to_address((uint64_t)(uintptr_t)address);
  CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
  if (!number) return result;
  if (result == CUDA_SUCCESS && penstock_vmm_lock()) {
    if (penstock_object_find(PENSTOCK_VMM_ALLOCATION, number, &allocation)) {
      penstock_vmm_add_handle(*handle, number, allocation.grant);
    }
    penstock_vmm_unlock();
  }
  penstock_vmm_mapping_gone(number);
  return result;
}
