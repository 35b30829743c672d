/* Virtual memory management: reserved addresses, physical memory, and mappings between them.
 *
 * Physical memory exists while something refers to it: a handle, a mapping or, once it has been
 * exported, a descriptor or another process. Exportable memory has its own file, which holds the
 * contents followed by a page that describes the memory. An importer opens that file through /proc,
 * from any process that has the memory. If only descriptors have kept the memory, its contents are
 * lost and read as zero.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "sim/cuda/vmm.h"

#define TRAILER_MAGIC 0x3144455241485356ull
#define TRAILER_BYTES 4096

typedef struct trailer {
  uint64_t magic, bytes, shared;
  CUmemAllocationProp prop;
} trailer;

typedef struct reservation {
  uint64_t address, bytes;
  struct reservation *next;
} reservation;

static reservation *reservations; /* guarded by the big lock */

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
  (void)wish; /* the wish for an address is only a hint */
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
  return p->fd >= 0 && !ftruncate(p->fd, (off_t)(p->bytes + TRAILER_BYTES));
}

static bool write_trailer(const sim_physical *p) {
  trailer t = {TRAILER_MAGIC, p->bytes, p->shared, p->prop};
  return p->fd < 0 || pwrite(p->fd, &t, sizeof t, (off_t)p->bytes) == sizeof t;
}

/* Uncharges physical memory. The caller holds the big lock. */
static void uncharge(const sim_physical *p) {
  if (p->team) return;
  if (p->shared)
    sim_shared_leave(sim_here.machine, p->home->device, p->home->client, p->shared);
  else if (p->gpu)
    sim_memory_give(sim_here.machine, p->gpu->device, p->gpu->client, p->bytes);
}

void sim_physical_let_go(sim_physical *p) {
  if (p->handles || p->maps) return;
  sim_handle_remove(p);
  uncharge(p);
  sim_team_free(p->team);
  if (p->backing) sim_pages_give(p->backing, p->bytes);
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
  sim_big_lock();
  CUresult result = sim_physical_of(handle, &p);
  if (result == CUDA_SUCCESS) {
    p->handles--;
    sim_physical_let_go(p);
  }
  sim_big_unlock();
  return result;
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
  sim_alloc *alloc = calloc(1, sizeof *alloc);
  REQUIRE(alloc, CUDA_ERROR_OUT_OF_MEMORY);
  sim_big_lock();
  bool fine = sim_physical_of(handle, &p) == CUDA_SUCCESS && bytes <= p->bytes &&
              inside_reservation(address, bytes);
  for (uint64_t at = address; fine && at < address + bytes; at += SIM_GRANULE)
    fine = !sim_alloc_find(at);
  uint64_t from = fine && p->backing ? sim_heap_offset(p->backing) : 0;
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

/* Returns true if the range consists of exactly one mapping or several adjacent ones. */
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
  for (int i = 0; i < sim_here.gpu_count; i++) /* work in flight may still use the mapping */
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

CUresult sim_hand_out(sim_gpu *gpu, uint64_t shared, uint8_t kind, int *descriptor) {
  *descriptor = sim_descriptor_make(sim_here.machine, gpu->device, shared, kind);
  if (*descriptor >= 0) return CUDA_SUCCESS;
  penstock_log("simulated GPU: no descriptor for memory: no pseudo-terminal to be had (%s)",
               strerror(errno));
  return CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult sim_physical_share(sim_physical *p) {
  if (p->shared) return CUDA_SUCCESS;
  p->home = p->gpu ? p->gpu : &sim_here.gpus[0];
  TRY(sim_attach_gpu(p->home));
  p->shared =
      sim_shared_make(sim_here.machine, p->home->device, p->home->client, p->gpu ? p->bytes : 0);
  REQUIRE(p->shared && write_trailer(p), CUDA_ERROR_OUT_OF_MEMORY);
  if (p->fd >= 0)
    sim_shared_file(sim_here.machine, p->home->device, p->home->client, p->shared, p->fd);
  return CUDA_SUCCESS;
}

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
  CUresult result = sim_physical_share(p);
  sim_big_unlock();
  TRY(result);
  return sim_hand_out(p->home, p->shared, SIM_OF_MEMORY, out);
}

static sim_gpu *gpu_of_device(uint32_t device) {
  for (int i = 0; i < sim_here.gpu_count; i++)
    if (sim_here.gpus[i].device == device) return &sim_here.gpus[i];
  return NULL;
}

/* Opens the file of any process that has the memory. Returns false if no process has it or the file
 * cannot be opened. */
static bool find_contents(sim_physical *p) {
  int32_t pid, file;
  for (int i = 0; sim_shared_look(sim_here.machine, p->home->device, p->shared, i, &pid, &file);
       i++) {
    char path[64];
    trailer t;
    struct stat status;
    if (!file) continue;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, file);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && !fstat(fd, &status) && status.st_size > TRAILER_BYTES &&
        pread(fd, &t, sizeof t, status.st_size - TRAILER_BYTES) == sizeof t &&
        t.magic == TRAILER_MAGIC && t.shared == p->shared) {
      p->fd = fd;
      p->bytes = t.bytes;
      p->prop.type = t.prop.type;
      p->prop.requestedHandleTypes = t.prop.requestedHandleTypes;
      p->prop.location = t.prop.location;
      return true;
    }
    if (fd >= 0) close(fd);
  }
  return false;
}

/* Makes new contents for memory that only descriptors have kept. */
static bool make_contents(sim_physical *p) {
  uint64_t what;
  if (!sim_shared_find(sim_here.machine, p->home->device, p->shared, &what, &p->bytes) || !p->bytes)
    return false;
  p->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return back_with_file(p) && write_trailer(p);
}

static CUresult import(sim_physical *p) {
  sim_machine *m = sim_here.machine;
  sim_big_lock();
  CUresult attached = sim_attach_gpu(p->home);
  sim_big_unlock();
  TRY(attached);
  REQUIRE(sim_shared_join(m, p->home->device, p->home->client, p->shared),
          CUDA_ERROR_INVALID_VALUE);
  if (!find_contents(p) && !make_contents(p)) {
    sim_shared_leave(m, p->home->device, p->home->client, p->shared);
    return CUDA_ERROR_INVALID_VALUE;
  }
  sim_shared_file(m, p->home->device, p->home->client, p->shared, p->fd);
  if (p->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    p->gpu = p->home;
    p->prop.location.id = p->home->ordinal;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
                                                CUmemAllocationHandleType type) {
  ENTER("cuMemImportFromShareableHandle");
  uint32_t device;
  uint64_t shared;
  REQUIRE(out && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(sim_descriptor_read((int)(intptr_t)os_handle, SIM_OF_MEMORY, &device, &shared) &&
              gpu_of_device(device),
          CUDA_ERROR_INVALID_VALUE);
  sim_physical *p = calloc(1, sizeof *p);
  REQUIRE(p, CUDA_ERROR_OUT_OF_MEMORY);
  *p = (sim_physical){.home = gpu_of_device(device), .shared = shared, .fd = -1, .handles = 1};
  CUresult result = import(p);
  if (result != CUDA_SUCCESS) {
    free(p);
    return result;
  }
  sim_handle_add(p, SIM_PHYSICAL);
  *out = (CUmemGenericAllocationHandle)p;
  return CUDA_SUCCESS;
}

/* ---- dma-buf ---- */

/* Finds the ID of the shared memory at an address, 0 for small allocations, which no descriptor
 * keeps. The caller holds the big lock. */
static CUresult share_range(CUdeviceptr address, size_t bytes, sim_gpu **gpu, uint64_t *shared) {
  sim_alloc *alloc = sim_alloc_find(address);
  REQUIRE(alloc && bytes <= alloc->bytes && address - alloc->address <= alloc->bytes - bytes,
          CUDA_ERROR_INVALID_VALUE);
  *gpu = alloc->gpu;
  if (alloc->kind == SIM_RESERVED_MAP) {
    REQUIRE(alloc->physical->gpu && !alloc->physical->team, CUDA_ERROR_INVALID_VALUE);
    TRY(sim_physical_share(alloc->physical));
    *shared = alloc->physical->shared;
    return CUDA_SUCCESS;
  }
  REQUIRE(alloc->kind == SIM_DEVICE, CUDA_ERROR_INVALID_VALUE);
  alloc->exported = true;
  if (alloc->charged_bytes && !alloc->shared)
    alloc->shared = sim_shared_make(sim_here.machine, alloc->gpu->device, alloc->gpu->client,
                                    alloc->charged_bytes);
  *shared = alloc->shared;
  return CUDA_SUCCESS;
}

/* The range must lie within one mapping. */
CUresult CUDAAPI cuMemGetHandleForAddressRange(void *out, CUdeviceptr address, size_t bytes,
                                               CUmemRangeHandleType type,
                                               unsigned long long flags) {
  ENTER("cuMemGetHandleForAddressRange");
  sim_gpu *gpu = NULL;
  uint64_t shared = 0;
  REQUIRE(out && bytes && !((address | bytes) % 4096) && !flags &&
              type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
          CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  CUresult result = share_range(address, bytes, &gpu, &shared);
  sim_big_unlock();
  TRY(result);
  return sim_hand_out(gpu, shared, SIM_OF_DMA_BUF, out);
}
