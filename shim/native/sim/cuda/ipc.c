/* IPC: memory and events of other processes. A handle identifies a process and a position in its
 * heap. The contents are mapped through /proc, so both processes must belong to the same user and
 * see each other in /proc. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/cuda/core.h"

#define MEMORY_MAGIC 0x4d454d31u
#define EVENT_MAGIC 0x45564e31u

typedef struct ipc_handle {
  uint32_t magic;
  int32_t pid, fd;
  uint16_t device, client;
  uint64_t began_ns;
  uint64_t offset, bytes;
  union {
    uint64_t shared; /* ID of the shared memory, 0 if it is in a slab */
    uint64_t cell;   /* event */
  };
} ipc_handle;
_Static_assert(sizeof(ipc_handle) <= sizeof(CUipcMemHandle), "fits the driver's handle");

static const sim_client *client_of(uint32_t device, uint32_t client) {
  return &sim_here.machine->devices[device].clients[client];
}

static CUresult owner_lives(const ipc_handle *h, uint32_t magic, sim_gpu **gpu) {
  REQUIRE(h->magic == magic && h->client < SIM_CLIENTS, CUDA_ERROR_INVALID_VALUE);
  *gpu = NULL;
  for (int i = 0; i < sim_here.gpu_count; i++)
    if (sim_here.gpus[i].device == h->device) *gpu = &sim_here.gpus[i];
  REQUIRE(*gpu, CUDA_ERROR_INVALID_DEVICE);
  const sim_client *c = client_of(h->device, h->client);
  REQUIRE(c->state == SIM_CLIENT_LIVE && c->began_ns == h->began_ns, CUDA_ERROR_INVALID_VALUE);
  /* a process cannot open its own handle */
  if ((*gpu)->client == h->client) return CUDA_ERROR_INVALID_CONTEXT;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr pointer) {
  ENTER_CONTEXT("cuIpcGetMemHandle");
  (void)ctx;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  memset(out, 0, sizeof *out);
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(pointer);
  bool fine = alloc && alloc->kind == SIM_DEVICE;
  if (fine) {
    alloc->exported = true;
    if (alloc->charged_bytes && !alloc->shared)
      alloc->shared = sim_shared_make(sim_here.machine, alloc->gpu->device, alloc->gpu->client,
                                      alloc->charged_bytes);
    ipc_handle h = {.magic = MEMORY_MAGIC,
                    .pid = (int32_t)getpid(),
                    .device = (uint16_t)alloc->gpu->device,
                    .client = (uint16_t)alloc->gpu->client,
                    .shared = alloc->shared,
                    .offset = sim_heap_offset(alloc->address),
                    .bytes = alloc->bytes,
                    .fd = sim_heap_fd()};
    h.began_ns = client_of(h.device, h.client)->began_ns;
    memcpy(out, &h, sizeof h);
  }
  sim_big_unlock();
  return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult open_memory(sim_context *ctx, CUdeviceptr *out, CUipcMemHandle handle,
                            unsigned flags) {
  ipc_handle h;
  sim_gpu *gpu;
  REQUIRE(out && !(flags & ~1u), CUDA_ERROR_INVALID_VALUE);
  memcpy(&h, &handle, sizeof h);
  TRY(owner_lives(&h, MEMORY_MAGIC, &gpu));
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
  int fd = h.fd < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
  REQUIRE(fd >= 0, CUDA_ERROR_MAP_FAILED);
  uint64_t slack = h.offset % 4096, mapped = (h.bytes + slack + 4095) & ~4095ull;
  sim_alloc *alloc = calloc(1, sizeof *alloc);
  if (alloc && h.shared && !sim_shared_join(sim_here.machine, gpu->device, gpu->client, h.shared)) {
    free(alloc);
    close(fd);
    return CUDA_ERROR_INVALID_VALUE;
  }
  sim_big_lock();
  uint64_t at = alloc ? sim_pages_take(mapped) : 0;
  bool fine = at && sim_heap_map_at(at, h.offset - slack, mapped, fd, PROT_READ | PROT_WRITE);
  if (fine) {
    *alloc = (sim_alloc){.address = at + slack,
                         .bytes = h.bytes,
                         .mapped_bytes = mapped,
                         .gpu = gpu,
                         .ctx = ctx,
                         .shared = h.shared,
                         .kind = SIM_IMPORTED};
    sim_alloc_insert(alloc);
    *out = alloc->address;
  }
  sim_big_unlock();
  close(fd);
  if (!fine && h.shared) sim_shared_leave(sim_here.machine, gpu->device, gpu->client, h.shared);
  if (!fine) free(alloc);
  return fine ? CUDA_SUCCESS : CUDA_ERROR_MAP_FAILED;
}
CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle,
                                       unsigned int flags) {
  ENTER_CONTEXT("cuIpcOpenMemHandle");
  return open_memory(ctx, out, handle, flags);
}
CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags) {
  ENTER_CONTEXT("cuIpcOpenMemHandle");
  return open_memory(ctx, out, handle, flags);
}
CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr pointer) {
  ENTER_CONTEXT("cuIpcCloseMemHandle");
  TRY(sim_synchronize_context(ctx));
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(pointer);
  bool fine = alloc && alloc->address == pointer && alloc->kind == SIM_IMPORTED;
  if (fine) sim_alloc_free(alloc);
  sim_big_unlock();
  return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle *out, CUevent handle) {
  ENTER("cuIpcGetEventHandle");
  sim_event *e;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_event_of(handle, &e));
  REQUIRE(e->flags & CU_EVENT_INTERPROCESS, CUDA_ERROR_INVALID_HANDLE);
  ipc_handle h = {.magic = EVENT_MAGIC,
                  .pid = (int32_t)getpid(),
                  .device = (uint16_t)e->device,
                  .client = (uint16_t)e->client,
                  .cell = e->cell};
  e->exported = true;
  h.began_ns = client_of(h.device, h.client)->began_ns;
  memset(out, 0, sizeof *out);
  memcpy(out, &h, sizeof h);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle) {
  ENTER_CONTEXT("cuIpcOpenEventHandle");
  ipc_handle h;
  sim_gpu *gpu;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  memcpy(&h, &handle, sizeof h);
  TRY(owner_lives(&h, EVENT_MAGIC, &gpu));
  REQUIRE(h.cell < SIM_CELLS, CUDA_ERROR_INVALID_VALUE);
  sim_event *e = calloc(1, sizeof *e);
  REQUIRE(e, CUDA_ERROR_OUT_OF_MEMORY);
  *e = (sim_event){.ctx = ctx,
                   .gpu = gpu,
                   .flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING,
                   .device = h.device,
                   .client = h.client,
                   .cell = (uint32_t)h.cell,
                   .imported = true};
  sim_handle_add(e, SIM_EVENT);
  *out = (CUevent)e;
  return CUDA_SUCCESS;
}
