/* Virtual memory management: physical memory that is charged where it lies, as long as a handle or
 * a mapping holds it.
 *
 * An allocation (PENSTOCK_VMM_ALLOCATION, under a number of our own) counts its handle references
 * and its mappings; its bytes come back when both are gone. The driver may give a handle's value to
 * somebody else once the last reference is released, while old mappings still hold the memory: so
 * handles and mappings point to the number, not to each other.
 *
 * Memory imported from another process is charged when it is mapped, for its exporter may end and
 * take its charge along; what this very process exported is not charged twice.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "charge.h"
#include "fork_wiped.h"
#include "hooks/array.h"
#include "hooks/hook.h"
#include "log.h"
#include "mechanism/lock.h"

/* `detail` of a handle or a mapping: the allocation's number. `detail` of an allocation: */
#define HANDLES(count) ((uint64_t)(count))
#define MAPPINGS(count) ((uint64_t)(count) << 32)

typedef struct vmm_state {
  uint32_t lock; /* makes changes of a handle or mapping and its allocation one */
  uint64_t last_number;
  uint64_t array_mappings; /* ever made: arrays of programs that make none are not looked up */
} vmm_state;

static vmm_state *state(void) {
  static penstock_fork_wiped memory;
  return penstock_fork_wiped_get(&memory, sizeof(vmm_state));
}

static bool lock(void) {
  vmm_state *s = state();
  if (s) penstock_lock_acquire(&s->lock);
  return s != NULL;
}

static void unlock(void) { penstock_lock_release(&state()->lock); }

static void put(penstock_kind kind, uint64_t key, int grant, uint64_t bytes, uint64_t detail) {
  penstock_object object = {
      .key = key, .bytes = bytes, .detail = detail, .grant = (int16_t)grant, .kind = (uint8_t)kind};
  if (!penstock_object_put(&object)) penstock_log("no memory to remember an allocation");
}

/* A new allocation with one handle; (locked) */
static uint64_t add_allocation(int grant, uint64_t bytes) {
  uint64_t number = ++state()->last_number;
  put(PENSTOCK_VMM_ALLOCATION, number, grant, bytes, HANDLES(1));
  return number;
}

/* Adds to an allocation's counts; (locked). When nothing holds it any more it is taken out, and
 * true is returned with what it was: the charge is to be given back. */
static bool change_counts(uint64_t number, uint64_t add, uint64_t subtract, penstock_object *gone) {
  penstock_object allocation;
  if (!penstock_object_take(PENSTOCK_VMM_ALLOCATION, number, &allocation)) return false;
  allocation.detail = allocation.detail + add - subtract;
  if (allocation.detail == 0) {
    *gone = allocation;
    return true;
  }
  penstock_object_put(&allocation);
  return false;
}

static bool on_device(const CUmemAllocationProp *properties) {
  CUmemLocationType type = properties->location.type;
  return type == CU_MEM_LOCATION_TYPE_DEVICE || type >= CU_MEM_LOCATION_TYPE_INVISIBLE;
}

/* By its location, whatever context is current. Host memory is free of charge. */
static int grant_of_location(const CUmemAllocationProp *properties) {
  return PENSTOCK_BELOW(penstock_grant_of(properties->location.id));
}

CUresult CUDAAPI HOOK_NAME(cuMemCreate)(CUmemGenericAllocationHandle *handle, size_t size,
                                        const CUmemAllocationProp *properties,
                                        unsigned long long flags) {
  PENSTOCK_PASS(cuMemCreate, handle, size, properties, flags);
  if (!properties || !on_device(properties)) {
    return PENSTOCK_BELOW(REAL(cuMemCreate)(handle, size, properties, flags));
  }
  int grant = grant_of_location(properties);
  CUresult result = penstock_charge(grant, size);
  if (result != CUDA_SUCCESS) return result;
  result = PENSTOCK_BELOW(REAL(cuMemCreate)(handle, size, properties, flags));
  if (result != CUDA_SUCCESS) {
    penstock_uncharge(grant, size);
    return result;
  }
  if (lock()) {
    put(PENSTOCK_VMM_HANDLE, *handle, grant, 1, add_allocation(grant, size));
    unlock();
  }
  return CUDA_SUCCESS;
}

/* `bytes` of a handle entry counts its references. */
static bool add_handle_reference(uint64_t handle, int64_t change, penstock_object *gone) {
  penstock_object entry;
  if (!penstock_object_take(PENSTOCK_VMM_HANDLE, handle, &entry)) return false;
  entry.bytes += (uint64_t)change;
  if (entry.bytes) penstock_object_put(&entry);
  return change < 0 ? change_counts(entry.detail, 0, HANDLES(1), gone)
                    : change_counts(entry.detail, HANDLES(1), 0, gone);
}

CUresult CUDAAPI HOOK_NAME(cuMemRelease)(CUmemGenericAllocationHandle handle) {
  PENSTOCK_PASS(cuMemRelease, handle);
  penstock_object entry, gone;
  bool was_last = false;
  if (lock()) { /* out before the driver may give the value to another thread */
    was_last = penstock_object_find(PENSTOCK_VMM_HANDLE, handle, &entry) && entry.bytes == 1 &&
               penstock_object_take(PENSTOCK_VMM_HANDLE, handle, &entry);
    unlock();
  }
  CUresult result = PENSTOCK_BELOW(REAL(cuMemRelease)(handle));
  bool give_back = false;
  if (lock()) {
    if (result != CUDA_SUCCESS) {
      if (was_last) penstock_object_put(&entry);
    } else if (was_last) {
      give_back = change_counts(entry.detail, 0, HANDLES(1), &gone);
    } else {
      give_back = add_handle_reference(handle, -1, &gone);
    }
    unlock();
  }
  if (give_back) penstock_uncharge(gone.grant, gone.bytes);
  return result;
}

/* An imported allocation has no size, and no charge, before its first mapping. */
static CUresult charge_import(uint64_t number, uint64_t bytes, uint64_t *charged) {
  penstock_object allocation;
  *charged = 0;
  if (!penstock_object_find(PENSTOCK_VMM_ALLOCATION, number, &allocation) || allocation.bytes) {
    return CUDA_SUCCESS;
  }
  CUresult result = penstock_charge(allocation.grant, bytes);
  if (result == CUDA_SUCCESS) *charged = bytes;
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuMemMap)(CUdeviceptr pointer, size_t size, size_t offset,
                                     CUmemGenericAllocationHandle handle,
                                     unsigned long long flags) {
  PENSTOCK_PASS(cuMemMap, pointer, size, offset, handle, flags);
  penstock_object entry, gone;
  uint64_t charged = 0;
  bool known = penstock_object_find(PENSTOCK_VMM_HANDLE, handle, &entry);
  if (known) {
    CUresult refused = charge_import(entry.detail, offset + size, &charged);
    if (refused != CUDA_SUCCESS) return refused;
  }
  CUresult result = PENSTOCK_BELOW(REAL(cuMemMap)(pointer, size, offset, handle, flags));
  if (result != CUDA_SUCCESS) {
    if (charged) penstock_uncharge(entry.grant, charged);
    return result;
  }
  if (known && lock()) {
    penstock_object allocation;
    if (charged && penstock_object_take(PENSTOCK_VMM_ALLOCATION, entry.detail, &allocation)) {
      allocation.bytes += charged;
      penstock_object_put(&allocation);
    }
    put(PENSTOCK_VMM_MAPPING, pointer, entry.grant, size, entry.detail);
    change_counts(entry.detail, MAPPINGS(1), 0, &gone);
    unlock();
  }
  return CUDA_SUCCESS;
}

typedef struct taken_mappings {
  penstock_object *all;
  size_t count;
} taken_mappings;

/* Takes out the mappings that lie side by side in the range; (locked). */
static taken_mappings take_mappings(uint64_t at, uint64_t end) {
  taken_mappings taken = {NULL, 0};
  size_t room = 0;
  while (at < end) {
    if (taken.count == room) {
      room = room ? room * 2 : 8;
      penstock_object *larger = realloc(taken.all, room * sizeof *larger);
      if (!larger) break;
      taken.all = larger;
    }
    if (!penstock_object_take(PENSTOCK_VMM_MAPPING, at, &taken.all[taken.count])) break;
    at += taken.all[taken.count++].bytes;
  }
  return taken;
}

static void mapping_gone(uint64_t number) {
  penstock_object gone;
  bool give_back = false;
  if (lock()) {
    give_back = change_counts(number, 0, MAPPINGS(1), &gone);
    unlock();
  }
  if (give_back) penstock_uncharge(gone.grant, gone.bytes);
}

/* The driver unmaps whole mappings only: each that lies in the range is gone. They are taken out
 * before the driver may give the addresses to another thread. */
CUresult CUDAAPI HOOK_NAME(cuMemUnmap)(CUdeviceptr pointer, size_t size) {
  PENSTOCK_PASS(cuMemUnmap, pointer, size);
  taken_mappings taken = {NULL, 0};
  if (lock()) {
    taken = take_mappings(pointer, pointer + size);
    unlock();
  }
  CUresult result = PENSTOCK_BELOW(REAL(cuMemUnmap)(pointer, size));
  for (size_t i = 0; i < taken.count; i++) {
    if (result == CUDA_SUCCESS) {
      mapping_gone(taken.all[i].detail);
    } else {
      penstock_object_put(&taken.all[i]);
    }
  }
  free(taken.all);
  return result;
}

/* Another reference to the allocation `number` under `handle`; (locked). */
static void add_handle(uint64_t handle, uint64_t number, int grant) {
  penstock_object entry, gone;
  if (penstock_object_take(PENSTOCK_VMM_HANDLE, handle, &entry) && entry.detail == number) {
    entry.bytes++;
    penstock_object_put(&entry);
  } else {
    put(PENSTOCK_VMM_HANDLE, handle, grant, 1, number);
  }
  change_counts(number, HANDLES(1), 0, &gone);
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

CUresult CUDAAPI HOOK_NAME(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle,
                                                        void *address) {
  PENSTOCK_PASS(cuMemRetainAllocationHandle, handle, address);
  CUresult result = PENSTOCK_BELOW(REAL(cuMemRetainAllocationHandle)(handle, address));
  if (result != CUDA_SUCCESS) return result;
  search s = {.address = (uint64_t)(uintptr_t)address};
  penstock_object_each(PENSTOCK_VMM_MAPPING, covers, &s);
  if (s.found && lock()) {
    add_handle(*handle, s.mapping.detail, s.mapping.grant);
    unlock();
  }
  return result;
}

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
    if (key) put(PENSTOCK_VMM_EXPORT, key, entry.grant, 0, entry.detail);
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
    if (lock()) {
      add_handle(*handle, allocation.key, allocation.grant);
      unlock();
    }
    return CUDA_SUCCESS;
  }
  CUmemAllocationProp properties = {0};
  if (PENSTOCK_BELOW(REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, *handle)) !=
          CUDA_SUCCESS ||
      !on_device(&properties)) {
    return CUDA_SUCCESS;
  }
  int grant = grant_of_location(&properties);
  if (lock()) {
    put(PENSTOCK_VMM_HANDLE, *handle, grant, 1, add_allocation(grant, 0));
    unlock();
  }
  return CUDA_SUCCESS;
}

/* Memory behind a sparse array: held by the array until that is destroyed, for an unmapping does
 * not say which allocation it lets go. */
static void hold_by_array(const CUarrayMapInfo *map) {
  penstock_object entry, gone;
  if (map->memOperationType != CU_MEM_OPERATION_TYPE_MAP ||
      map->memHandleType != CU_MEM_HANDLE_TYPE_GENERIC ||
      !penstock_object_find(PENSTOCK_VMM_HANDLE, map->memHandle.memHandle, &entry) || !lock()) {
    return;
  }
  penstock_object mapping = {.key = ++state()->last_number,
                             .bytes = (uint64_t)(uintptr_t)map->resource.array,
                             .detail = entry.detail,
                             .grant = entry.grant,
                             .kind = PENSTOCK_VMM_ARRAY_MAPPING};
  __atomic_fetch_add(&state()->array_mappings, 1, __ATOMIC_RELEASE);
  if (penstock_object_put(&mapping)) change_counts(entry.detail, MAPPINGS(1), 0, &gone);
  unlock();
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
  vmm_state *vmm = state();
  if (!vmm || !__atomic_load_n(&vmm->array_mappings, __ATOMIC_ACQUIRE)) return;
  for (;;) {
    array_search s = {.array = array};
    penstock_object_each(PENSTOCK_VMM_ARRAY_MAPPING, held_by, &s);
    if (!s.number) return;
    mapping_gone(s.number);
  }
}
