/* External memory: memory of a graphics API, imported as a file descriptor. A real device charges
 * it to the process that allocated it, which is not simulated, so here it is only address space
 * with contents. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/cuda/core.h"

typedef struct sim_external {
  sim_context *ctx;
  uint64_t bytes;
  int fd;
} sim_external;

CUresult CUDAAPI cuImportExternalMemory(CUexternalMemory *out,
                                        const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *handle) {
  ENTER_CONTEXT("cuImportExternalMemory");
  REQUIRE(out && handle && handle->size, CUDA_ERROR_INVALID_VALUE);
  if (handle->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
  struct stat status;
  REQUIRE(!fstat(handle->handle.fd, &status) && (uint64_t)status.st_size >= handle->size,
          CUDA_ERROR_INVALID_VALUE);
  sim_external *e = calloc(1, sizeof *e);
  REQUIRE(e, CUDA_ERROR_OUT_OF_MEMORY);
  /* from now on the driver owns the descriptor */
  *e = (sim_external){ctx, handle->size, handle->handle.fd};
  sim_handle_add(e, SIM_EXTERNAL);
  *out = (CUexternalMemory)e;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDestroyExternalMemory(CUexternalMemory handle) {
  ENTER("cuDestroyExternalMemory");
  REQUIRE(sim_handle_is(handle, SIM_EXTERNAL), CUDA_ERROR_INVALID_HANDLE);
  sim_external *e = (sim_external *)handle;
  sim_handle_remove(e);
  close(e->fd);
  free(e);
  return CUDA_SUCCESS;
}

/* Maps external memory. The program frees the mapping with cuMemFree. */
CUresult CUDAAPI cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory handle,
                                                 const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *wanted) {
  ENTER_CONTEXT("cuExternalMemoryGetMappedBuffer");
  REQUIRE(sim_handle_is(handle, SIM_EXTERNAL), CUDA_ERROR_INVALID_HANDLE);
  sim_external *e = (sim_external *)handle;
  REQUIRE(out && wanted && wanted->size && !wanted->flags && !(wanted->offset % 4096) &&
              wanted->size <= e->bytes && wanted->offset <= e->bytes - wanted->size,
          CUDA_ERROR_INVALID_VALUE);
  uint64_t mapped = (wanted->size + 4095) & ~4095ull;
  sim_alloc *alloc = calloc(1, sizeof *alloc);
  sim_big_lock();
  uint64_t at = alloc ? sim_pages_take(mapped) : 0;
  bool fine = at && sim_heap_map_at(at, wanted->offset, mapped, e->fd, PROT_READ | PROT_WRITE);
  if (fine) {
    *alloc = (sim_alloc){.address = at,
                         .bytes = wanted->size,
                         .mapped_bytes = mapped,
                         .gpu = ctx->gpu,
                         .ctx = ctx,
                         .kind = SIM_EXTERNAL_MAP};
    sim_alloc_insert(alloc);
    *out = at;
  }
  sim_big_unlock();
  if (!fine) free(alloc);
  return fine ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
