/* Pools of other processes. A descriptor identifies a pool, and exported data identifies an
 * allocation in it. Imported memory is mapped through /proc, like IPC memory, and its chunk stays
 * on the device while any process maps it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/cuda/pool.h"
#include "sim/cuda/vmm.h"

#define POINTER_MAGIC 0x31525450u

typedef struct pointer_data {
  uint32_t magic;
  int32_t pid, fd;
  uint32_t device;
  uint64_t pool, offset, bytes, shared;
} pointer_data;
_Static_assert(sizeof(pointer_data) <= sizeof(CUmemPoolPtrExportData), "fits the driver's");

/* Exports a pool. The caller holds the big lock. */
static CUresult share(sim_pool *p) {
  if (p->shared) return CUDA_SUCCESS;
  TRY(sim_attach_gpu(p->gpu));
  p->shared = sim_shared_make(sim_here.machine, p->gpu->device, p->gpu->client, 0);
  sim_shared_name(sim_here.machine, p->gpu->device, p->shared, (uint64_t)p);
  REQUIRE(p->shared, CUDA_ERROR_OUT_OF_MEMORY);
  for (sim_chunk *c = p->chunks; c; c = c->next) sim_pool_hand_out_chunk(p, c, true);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolExportToShareableHandle(void *out, CUmemoryPool handle,
                                                  CUmemAllocationHandleType type,
                                                  unsigned long long flags) {
  ENTER("cuMemPoolExportToShareableHandle");
  sim_pool *p;
  REQUIRE(out && !flags && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
          CUDA_ERROR_INVALID_VALUE);
  TRY(sim_pool_of(handle, &p));
  REQUIRE(p->exportable, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  CUresult result = share(p);
  sim_big_unlock();
  TRY(result);
  return sim_hand_out(p->gpu, p->shared, SIM_OF_POOL, out);
}

CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *os_handle,
                                                    CUmemAllocationHandleType type,
                                                    unsigned long long flags) {
  ENTER("cuMemPoolImportFromShareableHandle");
  uint32_t device;
  uint64_t shared, maker, bytes;
  REQUIRE(out && !flags && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
          CUDA_ERROR_INVALID_VALUE);
  REQUIRE(sim_descriptor_read((int)(intptr_t)os_handle, SIM_OF_POOL, &device, &shared),
          CUDA_ERROR_INVALID_VALUE);
  sim_gpu *gpu = NULL;
  for (int i = 0; i < sim_here.gpu_count; i++)
    if (sim_here.gpus[i].device == device) gpu = &sim_here.gpus[i];
  REQUIRE(gpu, CUDA_ERROR_INVALID_DEVICE);
  sim_big_lock();
  CUresult attached = sim_attach_gpu(gpu);
  sim_pool *p = attached == CUDA_SUCCESS ? sim_pool_new(gpu, 0) : NULL;
  if (p && sim_shared_join(sim_here.machine, device, gpu->client, shared) &&
      sim_shared_find(sim_here.machine, device, shared, &maker, &bytes)) {
    p->maker = maker;
    p->shared = shared;
  }
  sim_big_unlock();
  TRY(attached);
  *out = (CUmemoryPool)p;
  REQUIRE(p, CUDA_ERROR_OUT_OF_MEMORY);
  return p->maker ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr pointer) {
  ENTER("cuMemPoolExportPointer");
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(pointer);
  bool fine = alloc && alloc->kind == SIM_POOLED && alloc->address == pointer &&
              alloc->pool->exportable && sim_heap_fd() >= 0;
  if (fine) {
    sim_chunk *chunk = alloc->block->chunk;
    sim_pool_hand_out_chunk(alloc->pool, chunk, false);
    if (!chunk->shared)
      chunk->shared =
          sim_shared_make(sim_here.machine, alloc->gpu->device, alloc->gpu->client, chunk->bytes);
    pointer_data data = {POINTER_MAGIC,      (int32_t)getpid(),     sim_heap_fd(),
                         alloc->gpu->device, (uint64_t)alloc->pool, sim_heap_offset(pointer),
                         alloc->bytes,       chunk->shared};
    memset(out, 0, sizeof *out);
    memcpy(out, &data, sizeof data);
  }
  sim_big_unlock();
  return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Maps an exported allocation. Returns its address, or 0 on failure. The caller holds the big
 * lock. */
static uint64_t map(sim_pool *p, const pointer_data *data, int fd) {
  uint64_t slack = data->offset % 4096, mapped = (data->bytes + slack + 4095) & ~4095ull;
  sim_alloc *alloc = calloc(1, sizeof *alloc);
  uint64_t at = alloc ? sim_pages_take(mapped) : 0;
  if (!at || !sim_heap_map_at(at, data->offset - slack, mapped, fd, PROT_READ | PROT_WRITE)) {
    free(alloc);
    return 0;
  }
  *alloc = (sim_alloc){.address = at + slack,
                       .bytes = data->bytes,
                       .mapped_bytes = mapped,
                       .gpu = p->gpu,
                       .kind = SIM_POOL_IMPORTED,
                       .pool = p,
                       .shared = data->shared};
  sim_alloc_insert(alloc);
  return alloc->address;
}

CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool handle,
                                        CUmemPoolPtrExportData *exported) {
  ENTER("cuMemPoolImportPointer");
  sim_pool *p;
  pointer_data data;
  REQUIRE(out && exported, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_pool_of(handle, &p));
  memcpy(&data, exported, sizeof data);
  REQUIRE(data.magic == POINTER_MAGIC && p->maker && data.pool == p->maker,
          CUDA_ERROR_INVALID_VALUE);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", data.pid, data.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  REQUIRE(fd >= 0, CUDA_ERROR_INVALID_VALUE);
  uint64_t address = 0;
  if (sim_shared_join(sim_here.machine, p->gpu->device, p->gpu->client, data.shared)) {
    sim_big_lock();
    address = map(p, &data, fd);
    sim_big_unlock();
    if (!address) sim_shared_leave(sim_here.machine, p->gpu->device, p->gpu->client, data.shared);
  }
  close(fd);
  *out = address;
  return address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
