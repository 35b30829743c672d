/* Sparse arrays: physical memory is mapped into them tile by tile, in stream order. */
#include <stdlib.h>

#include "sim/cuda/array.h"
#include "sim/cuda/vmm.h"

#define TILE_BYTES 65536

typedef struct tile_map {
  CUarrayMapInfo info;
  sim_physical *physical;
  struct tile_map *next;
} tile_map;

static tile_map *maps; /* guarded by the big lock */

static bool same_place(const CUarrayMapInfo *a, const CUarrayMapInfo *b) {
  if (a->resource.array != b->resource.array || a->subresourceType != b->subresourceType)
    return false;
  if (a->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL)
    return a->subresource.miptail.layer == b->subresource.miptail.layer &&
           a->subresource.miptail.offset == b->subresource.miptail.offset;
  return a->subresource.sparseLevel.level == b->subresource.sparseLevel.level &&
         a->subresource.sparseLevel.layer == b->subresource.sparseLevel.layer &&
         a->subresource.sparseLevel.offsetX == b->subresource.sparseLevel.offsetX &&
         a->subresource.sparseLevel.offsetY == b->subresource.sparseLevel.offsetY &&
         a->subresource.sparseLevel.offsetZ == b->subresource.sparseLevel.offsetZ;
}

static void unmap(const CUarrayMapInfo *place, const void *resource) {
  for (tile_map **link = &maps; *link;) {
    tile_map *m = *link;
    if (place ? !same_place(&m->info, place) : m->info.resource.array != resource) {
      link = &m->next;
      continue;
    }
    *link = m->next;
    m->physical->maps--;
    sim_physical_let_go(m->physical);
    free(m);
  }
}

void sim_sparse_forget(const void *resource) { unmap(NULL, resource); }

static bool is_sparse(const CUarrayMapInfo *info) {
  if (info->resourceType == CU_RESOURCE_TYPE_ARRAY)
    return sim_handle_is(info->resource.array, SIM_ARRAY) &&
           ((sim_array *)info->resource.array)->shape.Flags & CUDA_ARRAY3D_SPARSE;
  return info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY &&
         sim_handle_is(info->resource.mipmap, SIM_MIPMAP);
}

static CUresult one(const CUarrayMapInfo *info) {
  sim_physical *p = NULL;
  REQUIRE(is_sparse(info) && !info->flags, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(info->memHandleType == CU_MEM_HANDLE_TYPE_GENERIC, CUDA_ERROR_INVALID_VALUE);
  if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
    unmap(info, NULL);
    return CUDA_SUCCESS;
  }
  REQUIRE(info->memOperationType == CU_MEM_OPERATION_TYPE_MAP, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_physical_of(info->memHandle.memHandle, &p));
  REQUIRE(p->gpu && !(info->offset % TILE_BYTES) && info->offset < p->bytes,
          CUDA_ERROR_INVALID_VALUE);
  tile_map *m = malloc(sizeof *m);
  REQUIRE(m, CUDA_ERROR_OUT_OF_MEMORY);
  p->maps++;
  unmap(info, NULL);
  *m = (tile_map){*info, p, maps};
  maps = m;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream handle) {
  ENTER_CONTEXT("cuMemMapArrayAsync");
  sim_stream *stream;
  REQUIRE(list && count, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_stream_of(handle, ctx, &stream));
  REQUIRE(!stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUresult result = CUDA_SUCCESS;
  sim_big_lock();
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) result = one(&list[i]);
  sim_big_unlock();
  sim_spend(ctx->gpu->profile->stream_op_ns);
  return result;
}

/* Reports tiles of 64 KiB and no mip tail. */
static CUresult properties(CUDA_ARRAY_SPARSE_PROPERTIES *out,
                           const CUDA_ARRAY3D_DESCRIPTOR *shape) {
  REQUIRE(shape->Flags & CUDA_ARRAY3D_SPARSE, CUDA_ERROR_INVALID_VALUE);
  unsigned element = sim_format_bytes(shape->Format) * shape->NumChannels;
  REQUIRE(element, CUDA_ERROR_NOT_SUPPORTED);
  *out = (CUDA_ARRAY_SPARSE_PROPERTIES){.miptailFirstLevel = 32};
  out->tileExtent.width = 256;
  out->tileExtent.height = TILE_BYTES / 256 / element;
  out->tileExtent.depth = 1;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray array) {
  ENTER("cuArrayGetSparseProperties");
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(sim_handle_is(array, SIM_ARRAY), CUDA_ERROR_INVALID_HANDLE);
  return properties(out, &((sim_array *)array)->shape);
}
