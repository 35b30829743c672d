/* Multicast objects: a team of devices, each with its own memory bound to the same addresses. Bound
 * memory stays allocated until it is unbound or the object is destroyed, even if it is released.
 * Objects cannot be exported to other processes. */
#include <stdlib.h>

#include "sim/cuda/vmm.h"

static CUresult check(const CUmulticastObjectProp *prop) {
  REQUIRE(prop && prop->numDevices && prop->size && !prop->flags, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(prop->numDevices <= (unsigned)sim_here.gpu_count, CUDA_ERROR_INVALID_VALUE);
  return prop->handleTypes ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult CUDAAPI cuMulticastGetGranularity(size_t *out, const CUmulticastObjectProp *prop,
                                           CUmulticastGranularity_flags option) {
  ENTER("cuMulticastGetGranularity");
  (void)option;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(check(prop));
  *out = SIM_GRANULE;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *out,
                                   const CUmulticastObjectProp *prop) {
  ENTER("cuMulticastCreate");
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(check(prop));
  REQUIRE(!(prop->size % SIM_GRANULE), CUDA_ERROR_INVALID_VALUE);
  sim_physical *p = calloc(1, sizeof *p);
  sim_team *team = calloc(1, sizeof *team);
  sim_big_lock();
  uint64_t backing = p && team ? sim_pages_take(prop->size) : 0;
  sim_big_unlock();
  if (!backing) {
    free(p);
    free(team);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  team->devices = prop->numDevices;
  *p = (sim_physical){.gpu = &sim_here.gpus[0],
                      .bytes = prop->size,
                      .backing = backing,
                      .fd = -1,
                      .handles = 1,
                      .team = team};
  sim_handle_add(p, SIM_PHYSICAL);
  *out = (CUmemGenericAllocationHandle)p;
  return CUDA_SUCCESS;
}

static CUresult team_of(CUmemGenericAllocationHandle handle, sim_physical **p) {
  TRY(sim_physical_of(handle, p));
  return (*p)->team ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
  ENTER("cuMulticastAddDevice");
  sim_physical *p;
  sim_gpu *gpu;
  TRY(team_of(handle, &p));
  TRY(sim_gpu_of(device, &gpu));
  sim_team *team = p->team;
  REQUIRE(!(team->added >> device & 1), CUDA_ERROR_INVALID_VALUE);
  REQUIRE((unsigned)__builtin_popcountll(team->added) < team->devices, CUDA_ERROR_INVALID_VALUE);
  team->added |= 1ull << device;
  return CUDA_SUCCESS;
}

static bool is_taken(const sim_team *team, int device, uint64_t offset, uint64_t bytes) {
  for (const sim_bound *b = team->bound; b; b = b->next)
    if (b->device == device && offset < b->offset + b->bytes && b->offset < offset + bytes)
      return true;
  return false;
}

/* Binds memory to a multicast object. The caller holds the big lock. */
static CUresult bind(sim_physical *object, size_t offset, sim_physical *memory,
                     size_t memory_offset, size_t bytes, int device) {
  sim_team *team = object->team;
  REQUIRE(memory->gpu && !memory->team, CUDA_ERROR_INVALID_VALUE);
  if (device < 0) device = memory->gpu->ordinal;
  REQUIRE(device == memory->gpu->ordinal, CUDA_ERROR_INVALID_VALUE);
  REQUIRE((unsigned)__builtin_popcountll(team->added) == team->devices, CUDA_ERROR_ILLEGAL_STATE);
  REQUIRE(team->added >> device & 1, CUDA_ERROR_INVALID_DEVICE);
  REQUIRE(bytes && !((offset | memory_offset | bytes) % SIM_GRANULE), CUDA_ERROR_INVALID_VALUE);
  REQUIRE(bytes <= object->bytes && offset <= object->bytes - bytes, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(bytes <= memory->bytes && memory_offset <= memory->bytes - bytes,
          CUDA_ERROR_INVALID_VALUE);
  REQUIRE(!is_taken(team, device, offset, bytes), CUDA_ERROR_INVALID_VALUE);
  sim_bound *b = malloc(sizeof *b);
  REQUIRE(b, CUDA_ERROR_OUT_OF_MEMORY);
  *b = (sim_bound){offset, bytes, device, memory, team->bound};
  team->bound = b;
  memory->maps++;
  return CUDA_SUCCESS;
}

static CUresult bind_memory(CUmemGenericAllocationHandle handle, int device, size_t offset,
                            CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                            unsigned long long flags) {
  sim_physical *object, *p;
  REQUIRE(!flags, CUDA_ERROR_INVALID_VALUE);
  TRY(team_of(handle, &object));
  TRY(sim_physical_of(memory, &p));
  sim_big_lock();
  CUresult result = bind(object, offset, p, memory_offset, bytes, device);
  sim_big_unlock();
  return result;
}
CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                    CUmemGenericAllocationHandle memory, size_t memory_offset,
                                    size_t bytes, unsigned long long flags) {
  ENTER("cuMulticastBindMem");
  return bind_memory(handle, -1, offset, memory, memory_offset, bytes, flags);
}
CUresult CUDAAPI cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device,
                                       size_t offset, CUmemGenericAllocationHandle memory,
                                       size_t memory_offset, size_t bytes,
                                       unsigned long long flags) {
  ENTER("cuMulticastBindMem");
  REQUIRE(device >= 0, CUDA_ERROR_INVALID_DEVICE);
  return bind_memory(handle, device, offset, memory, memory_offset, bytes, flags);
}

static CUresult bind_address(CUmemGenericAllocationHandle handle, int device, size_t offset,
                             CUdeviceptr address, size_t bytes, unsigned long long flags) {
  sim_physical *object;
  REQUIRE(!flags, CUDA_ERROR_INVALID_VALUE);
  TRY(team_of(handle, &object));
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(address);
  CUresult result =
      alloc && alloc->kind == SIM_RESERVED_MAP
          ? bind(object, offset, alloc->physical, address - alloc->address, bytes, device)
          : CUDA_ERROR_INVALID_VALUE;
  sim_big_unlock();
  return result;
}
CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
                                     CUdeviceptr address, size_t bytes, unsigned long long flags) {
  ENTER("cuMulticastBindAddr");
  return bind_address(handle, -1, offset, address, bytes, flags);
}
CUresult CUDAAPI cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device,
                                        size_t offset, CUdeviceptr address, size_t bytes,
                                        unsigned long long flags) {
  ENTER("cuMulticastBindAddr");
  REQUIRE(device >= 0, CUDA_ERROR_INVALID_DEVICE);
  return bind_address(handle, device, offset, address, bytes, flags);
}

static void unbind(sim_team *team, int device, uint64_t offset, uint64_t bytes) {
  for (sim_bound **link = &team->bound; *link;) {
    sim_bound *b = *link;
    if ((device >= 0 && b->device != device) || b->offset < offset ||
        b->offset + b->bytes > offset + bytes) {
      link = &b->next;
      continue;
    }
    *link = b->next;
    b->physical->maps--;
    sim_physical_let_go(b->physical);
    free(b);
  }
}

CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device,
                                   size_t offset, size_t bytes) {
  ENTER("cuMulticastUnbind");
  sim_physical *object;
  sim_gpu *gpu;
  TRY(team_of(handle, &object));
  TRY(sim_gpu_of(device, &gpu));
  REQUIRE(bytes && bytes <= object->bytes && offset <= object->bytes - bytes &&
              !((offset | bytes) % SIM_GRANULE),
          CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  unbind(object->team, device, offset, bytes);
  sim_big_unlock();
  return CUDA_SUCCESS;
}

void sim_team_free(sim_team *team) {
  if (!team) return;
  unbind(team, -1, 0, UINT64_MAX / 2);
  free(team);
}
