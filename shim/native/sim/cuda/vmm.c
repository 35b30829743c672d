/* Virtual memory management: addresses reserved, physical memory created, one mapped on the other.
 *
 * Physical memory lives as long as anything refers to it: handles, mappings, and, once exported,
 * other processes. What is exportable has a file of its own (contents, then a trailer page that
 * says what the device knows it as), so that the descriptor is all another process needs.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/cuda/vmm.h"

#define TRAILER_MAGIC 0x3144455241485356ull
#define TRAILER_BYTES 4096

typedef struct sim_trailer {
  uint64_t magic, bytes;
  uint64_t shared; /* what the device knows it as; 0: not exported yet, or host memory */
  uint32_t device;
  CUmemAllocationProp prop;
} trailer;

typedef struct reservation {
  uint64_t address, bytes;
  struct reservation *next;
} reservation;

static reservation *reservations; /* big lock */

static bool inside_reservation(uint64_t address, uint64_t bytes) {
  for (reservation *r = reservations; r; r = r->next)
    if (address >= r->address && bytes <= r->bytes && address - r->address <= r->bytes - bytes)
      return true;
  return false;
}

/* ---- addresses ---- */

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment,
                                     CUdeviceptr wish, unsigned long long flags) {
  ENTER("cuMemAddressReserve");
  (void)wish; /* a hint */
  REQUIRE(out && bytes && !(bytes % SIM_GRANULE) && !flags && !(alignment & (alignment - 1)),
          CUDA_ERROR_INVALID_VALUE);
  reservation *r = malloc(sizeof *r);
  REQUIRE(r, CUDA_ERROR_OUT_OF_MEMORY);
  uint64_t extra = alignment > SIM_GRANULE ? alignment - SIM_GRANULE : 0;
  sim_big_lock();
  uint64_t address = sim_pages_take(bytes + extra);
  if (address && extra) {
    uint64_t aligned = (address + alignment - 1) & ~(uint64_t)(alignment - 1);
    if (aligned > address) sim_pages_give(address, aligned - address);
    if (address + extra > aligned) sim_pages_give(aligned + bytes, address + extra - aligned);
    address = aligned;
  }
  if (address) {
    *r = (reservation){address, bytes, reservations};
    reservations = r;
  }
  sim_big_unlock();
  if (!address) {
    free(r);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = address;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  ENTER("cuMemAddressFree");
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  sim_big_lock();
  for (reservation **link = &reservations; *link; link = &(*link)->next) {
    reservation *r = *link;
    if (r->address != address || r->bytes != bytes) continue;
    bool mapped = false;
    for (uint64_t at = address; at < address + bytes && !mapped; at += SIM_GRANULE)
      mapped = sim_alloc_find(at);
    if (mapped) break;
    *link = r->next;
    sim_pages_give(address, bytes);
    free(r);
    result = CUDA_SUCCESS;
    break;
  }
  sim_big_unlock();
  return result;
}

/* ---- physical memory ---- */

static CUresult check_prop(const CUmemAllocationProp *prop, sim_gpu **gpu) {
  REQUIRE(prop && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(!(prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          CUDA_ERROR_NOT_SUPPORTED);
  *gpu = NULL;
  switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return sim_gpu_of(prop->location.id, gpu);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop,
                                               CUmemAllocationGranularity_flags option) {
  ENTER("cuMemGetAllocationGranularity");
  sim_gpu *gpu;
  (void)option;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(check_prop(prop, &gpu));
  *out = SIM_GRANULE;
  return CUDA_SUCCESS;
}

static bool back_with_file(sim_physical *p) {
  p->fd = memfd_create("cuda-sim-shared", MFD_CLOEXEC);
  if (p->fd < 0 || ftruncate(p->fd, (off_t)(p->bytes + TRAILER_BYTES))) return false;
  p->shared = mmap(NULL, TRAILER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, (off_t)p->bytes);
  if (p->shared == MAP_FAILED) return p->shared = NULL, false;
  *p->shared = (trailer){.magic = TRAILER_MAGIC, .bytes = p->bytes, .prop = p->prop};
  if (p->gpu) p->shared->device = p->gpu->device;
  return true;
}

/* Big lock held. */
static void uncharge(const sim_physical *p) {
  if (!p->gpu || p->team) return;
  if (p->shared && p->shared->shared)
    sim_shared_leave(sim_here.machine, p->gpu->device, p->gpu->client, p->shared->shared);
  else
    sim_memory_give(sim_here.machine, p->gpu->device, p->gpu->client, p->bytes);
}

void sim_physical_let_go(sim_physical *p) {
  if (p->handles || p->maps) return;
  sim_handle_remove(p);
  uncharge(p);
  sim_team_free(p->team);
  if (p->backing) sim_pages_give(p->backing, p->bytes);
  if (p->shared) munmap(p->shared, TRAILER_BYTES);
  if (p->fd >= 0) close(p->fd);
  free(p);
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes,
                             const CUmemAllocationProp *prop, unsigned long long flags) {
  ENTER("cuMemCreate");
  sim_gpu *gpu;
  REQUIRE(out && bytes && !flags, CUDA_ERROR_INVALID_VALUE);
  TRY(check_prop(prop, &gpu));
  REQUIRE(!(bytes % SIM_GRANULE), CUDA_ERROR_INVALID_VALUE);
  sim_machine *m = sim_here.machine;
  if (gpu) {
    sim_big_lock();
    CUresult attached = sim_attach_gpu(gpu);
    sim_big_unlock();
    TRY(attached);
    if (sim_fault_hits(m, gpu->device, SIM_FAULT_OUT_OF_MEMORY, sim_self.call, NULL))
      return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_memory_take(m, gpu->device, gpu->client, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_physical *p = calloc(1, sizeof *p);
  bool fine = p != NULL;
  if (fine) {
    *p = (sim_physical){.prop = *prop, .gpu = gpu, .bytes = bytes, .fd = -1, .handles = 1};
    if (prop->requestedHandleTypes) {
      fine = back_with_file(p);
    } else {
      sim_big_lock();
      p->backing = sim_pages_take(bytes);
      sim_big_unlock();
      fine = p->backing;
    }
  }
  if (!fine) {
    if (p && p->fd >= 0) close(p->fd);
    free(p);
    if (gpu) sim_memory_give(m, gpu->device, gpu->client, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_handle_add(p, SIM_PHYSICAL);
  *out = (CUmemGenericAllocationHandle)p;
  if (gpu) sim_spend(gpu->profile->memory_slab_ns);
  return CUDA_SUCCESS;
}

CUresult sim_physical_of(CUmemGenericAllocationHandle handle, sim_physical **p) {
  if (!sim_handle_is((void *)handle, SIM_PHYSICAL)) return CUDA_ERROR_INVALID_VALUE;
  *p = (sim_physical *)handle;
  return (*p)->handles ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  ENTER("cuMemRelease");
  sim_physical *p;
  TRY(sim_physical_of(handle, &p));
  sim_big_lock();
  p->handles--;
  sim_physical_let_go(p);
  sim_big_unlock();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
  ENTER("cuMemRetainAllocationHandle");
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find((uint64_t)address);
  sim_physical *p = alloc && alloc->kind == SIM_RESERVED_MAP ? alloc->physical : NULL;
  if (p) p->handles++;
  sim_big_unlock();
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  *out = (CUmemGenericAllocationHandle)p;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                        CUmemGenericAllocationHandle handle) {
  ENTER("cuMemGetAllocationPropertiesFromHandle");
  sim_physical *p;
  REQUIRE(prop, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_physical_of(handle, &p));
  REQUIRE(!p->team, CUDA_ERROR_INVALID_VALUE);
  *prop = p->prop;
  return CUDA_SUCCESS;
}

/* ---- mappings ---- */

CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  ENTER("cuMemMap");
  sim_physical *p;
  REQUIRE(bytes && !(bytes % SIM_GRANULE) && !(address % SIM_GRANULE) && !offset && !flags,
          CUDA_ERROR_INVALID_VALUE);
  TRY(sim_physical_of(handle, &p));
  REQUIRE(bytes <= p->bytes, CUDA_ERROR_INVALID_VALUE);
  sim_alloc *alloc = calloc(1, sizeof *alloc);
  REQUIRE(alloc, CUDA_ERROR_OUT_OF_MEMORY);
  sim_big_lock();
  bool fine = inside_reservation(address, bytes);
  for (uint64_t at = address; fine && at < address + bytes; at += SIM_GRANULE)
    fine = !sim_alloc_find(at);
  uint64_t from = p->backing ? sim_heap_offset(p->backing) : 0;
  fine = fine && sim_heap_map_at(address, from, bytes, p->fd, PROT_READ | PROT_WRITE);
  if (fine) {
    *alloc = (sim_alloc){.address = address,
                         .bytes = bytes,
                         .gpu = p->gpu ? p->gpu : &sim_here.gpus[0],
                         .kind = SIM_RESERVED_MAP,
                         .physical = p,
                         .host_pointer = p->gpu ? 0 : address};
    sim_alloc_insert(alloc);
    p->maps++;
  }
  sim_big_unlock();
  if (!fine) free(alloc);
  return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void unmap(sim_alloc *alloc) {
  sim_physical *p = alloc->physical;
  sim_heap_map_at(alloc->address, sim_heap_offset(alloc->address), alloc->bytes, -1,
                  PROT_READ | PROT_WRITE);
  sim_alloc_remove(alloc);
  free(alloc);
  p->maps--;
  sim_physical_let_go(p);
}

/* Whole mappings, one or several that follow on one another. */
static bool whole_mappings(uint64_t address, uint64_t bytes) {
  uint64_t at = address;
  while (at < address + bytes) {
    sim_alloc *alloc = sim_alloc_find(at);
    if (!alloc || alloc->kind != SIM_RESERVED_MAP || alloc->address != at) return false;
    at += alloc->bytes;
  }
  return at == address + bytes;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t bytes) {
  ENTER("cuMemUnmap");
  for (int i = 0; i < sim_here.gpu_count; i++) /* work under way may still use it */
    if (sim_here.gpus[i].client != SIM_NONE)
      sim_wait_all(sim_here.machine, sim_here.gpus[i].device, sim_here.gpus[i].client);
  sim_big_lock();
  bool fine = bytes && whole_mappings(address, bytes);
  for (uint64_t at = address; fine && at < address + bytes;) {
    sim_alloc *alloc = sim_alloc_find(at);
    at += alloc->bytes;
    unmap(alloc);
  }
  sim_big_unlock();
  return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *list,
                                size_t count) {
  ENTER("cuMemSetAccess");
  REQUIRE(list && count && bytes, CUDA_ERROR_INVALID_VALUE);
  for (size_t i = 0; i < count; i++)
    REQUIRE(list[i].location.type == CU_MEM_LOCATION_TYPE_HOST ||
                list[i].location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                (list[i].location.id >= 0 && list[i].location.id < sim_here.gpu_count),
            CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  bool fine = whole_mappings(address, bytes);
  for (uint64_t at = address; fine && at < address + bytes;) {
    sim_alloc *alloc = sim_alloc_find(at);
    for (size_t i = 0; i < count; i++) alloc->flags = list[i].flags;
    at += alloc->bytes;
  }
  sim_big_unlock();
  return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                                CUdeviceptr address) {
  ENTER("cuMemGetAccess");
  REQUIRE(flags && location, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(address);
  bool fine = alloc && alloc->kind == SIM_RESERVED_MAP;
  if (fine)
    *flags = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id != alloc->gpu->ordinal
                 ? 0
                 : alloc->flags;
  sim_big_unlock();
  return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- between processes ---- */

CUresult CUDAAPI cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags) {
  ENTER("cuMemExportToShareableHandle");
  sim_physical *p;
  REQUIRE(out && !flags && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
          CUDA_ERROR_INVALID_VALUE);
  TRY(sim_physical_of(handle, &p));
  REQUIRE(p->fd >= 0 && p->prop.requestedHandleTypes & type, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  if (p->gpu && !p->shared->shared)
    p->shared->shared = sim_shared_make(sim_here.machine, p->gpu->device, p->gpu->client, p->bytes);
  bool fine = !p->gpu || p->shared->shared;
  sim_big_unlock();
  REQUIRE(fine, CUDA_ERROR_OUT_OF_MEMORY);
  int fd = dup(p->fd);
  REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
  *(int *)out = fd;
  return CUDA_SUCCESS;
}

static sim_gpu *gpu_of_device(uint32_t device) {
  for (int i = 0; i < sim_here.gpu_count; i++)
    if (sim_here.gpus[i].device == device) return &sim_here.gpus[i];
  return NULL;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
                                                CUmemAllocationHandleType type) {
  ENTER("cuMemImportFromShareableHandle");
  REQUIRE(out && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_INVALID_VALUE);
  int fd = (int)(intptr_t)os_handle;
  struct stat status;
  REQUIRE(!fstat(fd, &status) && status.st_size > TRAILER_BYTES, CUDA_ERROR_INVALID_VALUE);
  sim_physical *p = calloc(1, sizeof *p);
  REQUIRE(p, CUDA_ERROR_OUT_OF_MEMORY);
  p->bytes = (uint64_t)status.st_size - TRAILER_BYTES;
  p->shared = mmap(NULL, TRAILER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)p->bytes);
  if (p->shared == MAP_FAILED || p->shared->magic != TRAILER_MAGIC ||
      p->shared->bytes != p->bytes) {
    if (p->shared != MAP_FAILED) munmap(p->shared, TRAILER_BYTES);
    free(p);
    return CUDA_ERROR_INVALID_VALUE;
  }
  p->prop = p->shared->prop;
  p->gpu = p->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? gpu_of_device(p->shared->device)
                                                                : NULL;
  sim_big_lock();
  CUresult attached = p->gpu ? sim_attach_gpu(p->gpu) : CUDA_SUCCESS;
  sim_big_unlock();
  /* No longer anybody's: the exporter has ended and the descriptor is all that is left. */
  if (attached != CUDA_SUCCESS || (p->gpu && !sim_shared_join(sim_here.machine, p->gpu->device,
                                                              p->gpu->client, p->shared->shared))) {
    munmap(p->shared, TRAILER_BYTES);
    free(p);
    return attached != CUDA_SUCCESS ? attached : CUDA_ERROR_INVALID_VALUE;
  }
  p->fd = dup(fd);
  p->handles = 1;
  sim_handle_add(p, SIM_PHYSICAL);
  *out = (CUmemGenericAllocationHandle)p;
  return CUDA_SUCCESS;
}
