/* Arrays and mipmapped arrays are linear memory with a shape. Textures and surfaces are only
 * handles. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/array.h"
#include "sim/cuda/vmm.h"

typedef struct sim_mipmap {
  CUDA_ARRAY3D_DESCRIPTOR shape;
  sim_alloc *alloc;
  sim_array *levels;
  unsigned level_count;
} sim_mipmap;

unsigned sim_format_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0; /* compressed and planar formats are not simulated */
  }
}

/* Returns the bytes per texel of a format with two planes or with texels of a fixed size, or 0 for
 * any other format. The second plane has half the height for 4:2:0 formats. Arrays of such formats
 * can be created, but not copied. */
static unsigned odd_format_bytes(CUarray_format format, unsigned *second, bool *half) {
  *second = 0;
  *half = format == CU_AD_FORMAT_NV12 || format == CU_AD_FORMAT_P010 || format == CU_AD_FORMAT_P016;
  switch ((int)format) {
    case CU_AD_FORMAT_NV12:
    case CU_AD_FORMAT_NV16:
      return *second = 1;
    case CU_AD_FORMAT_P010:
    case CU_AD_FORMAT_P016:
    case CU_AD_FORMAT_P210:
    case CU_AD_FORMAT_P216:
      return *second = 2;
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_UNORM_INT16X2:
      return 4;
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4:
    case CU_AD_FORMAT_Y416:
      return 8;
    default:
      return 0;
  }
}

/* Returns the number of rows including padding: rows are laid out in blocks of 64 bytes by 8 rows,
 * with up to 32 blocks in a column. */
static uint64_t rows_of(uint64_t height) {
  uint64_t column = 8;
  if (height <= 1) return 1;
  while (column < 256 && column < height) column *= 2;
  return (height + column - 1) / column * column;
}

static CUresult lay_out(sim_array *a, uint64_t *bytes) {
  const CUDA_ARRAY3D_DESCRIPTOR *s = &a->shape;
  unsigned second = 0, element = sim_format_bytes(s->Format) * s->NumChannels;
  bool half = false, odd = !element && (element = odd_format_bytes(s->Format, &second, &half));
  REQUIRE(s->Width && (odd || s->NumChannels == 1 || s->NumChannels == 2 || s->NumChannels == 4),
          CUDA_ERROR_INVALID_VALUE);
  size_t side = s->Depth && !(s->Flags & CUDA_ARRAY3D_LAYERED) ? 16384 : 131072;
  REQUIRE(s->Width <= side && s->Height <= side && s->Height <= 65536 && s->Depth <= 16384,
          CUDA_ERROR_INVALID_VALUE);
  if (!element) return CUDA_ERROR_NOT_SUPPORTED;
  a->pitch = (s->Width * element + 63) & ~63ull;
  a->slice = a->pitch * rows_of(s->Height);
  if (odd && second)
    a->slice +=
        ((s->Width * second + 63) & ~63ull) * rows_of(half ? (s->Height + 1) / 2 : s->Height);
  *bytes = a->slice * (s->Depth ? s->Depth : 1);
  return CUDA_SUCCESS;
}

static CUresult create(sim_context *ctx, CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_capture_forbids(ctx));
  if (shape->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) return CUDA_ERROR_NOT_SUPPORTED;
  bool sparse = shape->Flags & CUDA_ARRAY3D_SPARSE;
  sim_array layout = {.shape = *shape, .ctx = ctx}, *a;
  uint64_t bytes;
  TRY(lay_out(&layout, &bytes));
  REQUIRE(a = malloc(sizeof *a), CUDA_ERROR_OUT_OF_MEMORY);
  *a = layout;
  if (!sparse) {
    sim_big_lock();
    a->alloc = sim_alloc_new(ctx->gpu, ctx, bytes, SIM_GLOBAL);
    sim_big_unlock();
    if (!a->alloc) {
      free(a);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    a->address = a->alloc->address;
  }
  sim_handle_add(a, SIM_ARRAY);
  *out = (CUarray)a;
  return CUDA_SUCCESS;
}

static CUresult array_of(CUarray handle, sim_array **a) {
  if (!sim_handle_is(handle, SIM_ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
  *a = (sim_array *)handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
  ENTER_CONTEXT("cuArrayCreate");
  REQUIRE(d, CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY3D_DESCRIPTOR shape = {
      .Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
  return create(ctx, out, &shape);
}
CUresult CUDAAPI cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) {
  ENTER_CONTEXT("cuArray3DCreate");
  REQUIRE(d, CUDA_ERROR_INVALID_VALUE);
  return create(ctx, out, d);
}
CUresult CUDAAPI cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *d, CUarray handle) {
  ENTER("cuArrayGetDescriptor");
  sim_array *a;
  REQUIRE(d, CUDA_ERROR_INVALID_VALUE);
  TRY(array_of(handle, &a));
  *d = (CUDA_ARRAY_DESCRIPTOR){.Width = a->shape.Width,
                               .Height = a->shape.Height,
                               .Format = a->shape.Format,
                               .NumChannels = a->shape.NumChannels};
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray handle) {
  ENTER("cuArray3DGetDescriptor");
  sim_array *a;
  REQUIRE(d, CUDA_ERROR_INVALID_VALUE);
  TRY(array_of(handle, &a));
  *d = a->shape;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray handle,
                                              CUdevice device) {
  ENTER("cuArrayGetMemoryRequirements");
  sim_array *a;
  sim_gpu *gpu;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(array_of(handle, &a));
  TRY(sim_gpu_of(device, &gpu));
  *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.alignment = 65536};
  TRY(lay_out(a, &out->size));
  out->size = (out->size + 65535) & ~(size_t)65535;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuArrayDestroy(CUarray handle) {
  ENTER_CONTEXT("cuArrayDestroy");
  sim_array *a;
  TRY(array_of(handle, &a));
  bool sparse = a->shape.Flags & CUDA_ARRAY3D_SPARSE;
  /* a level is destroyed together with its mipmapped array */
  REQUIRE(a->alloc || sparse, CUDA_ERROR_INVALID_HANDLE);
  TRY(sim_synchronize_context(ctx));
  sim_handle_remove(a);
  sim_big_lock();
  if (sparse) sim_sparse_forget(a);
  if (a->alloc && a->ctx->alive) sim_alloc_free(a->alloc);
  sim_big_unlock();
  free(a);
  return CUDA_SUCCESS;
}

/* ---- mipmapped arrays ---- */

static size_t halved(size_t n, unsigned level) { return n ? (n >> level ? n >> level : 1) : 0; }

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                        unsigned int levels) {
  ENTER_CONTEXT("cuMipmappedArrayCreate");
  REQUIRE(out && shape && levels && levels <= 17, CUDA_ERROR_INVALID_VALUE);
  if (shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
    return CUDA_ERROR_NOT_SUPPORTED;
  sim_mipmap *m = calloc(1, sizeof *m);
  sim_array *list = calloc(levels, sizeof *list);
  uint64_t total = 0;
  CUresult result = m && list ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  for (unsigned i = 0; i < levels && result == CUDA_SUCCESS; i++) {
    list[i] = (sim_array){.shape = *shape, .ctx = ctx, .address = total};
    list[i].shape.Width = halved(shape->Width, i);
    list[i].shape.Height = halved(shape->Height, i);
    list[i].shape.Depth = halved(shape->Depth, i);
    uint64_t bytes = 0;
    result = lay_out(&list[i], &bytes);
    total += bytes;
  }
  if (result == CUDA_SUCCESS) {
    sim_big_lock();
    m->alloc = sim_alloc_new(ctx->gpu, ctx, total, SIM_GLOBAL);
    sim_big_unlock();
    if (!m->alloc) result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS) {
    free(m);
    free(list);
    return result;
  }
  for (unsigned i = 0; i < levels; i++) {
    list[i].address += m->alloc->address;
    sim_handle_add(&list[i], SIM_ARRAY);
  }
  m->shape = *shape;
  m->levels = list;
  m->level_count = levels;
  sim_handle_add(m, SIM_MIPMAP);
  *out = (CUmipmappedArray)m;
  return CUDA_SUCCESS;
}
static CUresult mipmap_of(CUmipmappedArray handle, sim_mipmap **m) {
  if (!sim_handle_is(handle, SIM_MIPMAP)) return CUDA_ERROR_INVALID_HANDLE;
  *m = (sim_mipmap *)handle;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle,
                                          unsigned int level) {
  ENTER("cuMipmappedArrayGetLevel");
  sim_mipmap *m;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(mipmap_of(handle, &m));
  REQUIRE(level < m->level_count, CUDA_ERROR_INVALID_VALUE);
  *out = (CUarray)&m->levels[level];
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out,
                                                       CUmipmappedArray handle, CUdevice device) {
  ENTER("cuMipmappedArrayGetMemoryRequirements");
  sim_mipmap *m;
  sim_gpu *gpu;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(mipmap_of(handle, &m));
  TRY(sim_gpu_of(device, &gpu));
  *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = (m->alloc->bytes + 65535) & ~65535ull,
                                          .alignment = 65536};
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  ENTER_CONTEXT("cuMipmappedArrayDestroy");
  sim_mipmap *m;
  TRY(mipmap_of(handle, &m));
  TRY(sim_synchronize_context(ctx));
  sim_handle_remove(m);
  for (unsigned i = 0; i < m->level_count; i++) sim_handle_remove(&m->levels[i]);
  sim_big_lock();
  if (m->levels[0].ctx->alive) sim_alloc_free(m->alloc);
  sim_big_unlock();
  free(m->levels);
  free(m);
  return CUDA_SUCCESS;
}

/* ---- texture and surface objects ---- */

typedef struct bound {
  CUDA_RESOURCE_DESC resource;
  CUDA_TEXTURE_DESC texture;
  CUDA_RESOURCE_VIEW_DESC view;
} bound;

static CUresult bind(unsigned long long *out, const CUDA_RESOURCE_DESC *resource,
                     const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_VIEW_DESC *view) {
  REQUIRE(out && resource, CUDA_ERROR_INVALID_VALUE);
  bound *b = calloc(1, sizeof *b);
  REQUIRE(b, CUDA_ERROR_OUT_OF_MEMORY);
  b->resource = *resource;
  if (texture) b->texture = *texture;
  if (view) b->view = *view;
  sim_handle_add(b, SIM_LINK);
  *out = (unsigned long long)b;
  return CUDA_SUCCESS;
}
static CUresult bound_of(unsigned long long handle, bound **b) {
  if (!sim_handle_is((void *)handle, SIM_LINK)) return CUDA_ERROR_INVALID_VALUE;
  *b = (bound *)handle;
  return CUDA_SUCCESS;
}
static CUresult unbind(unsigned long long handle) {
  bound *b;
  TRY(bound_of(handle, &b));
  sim_handle_remove(b);
  free(b);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource,
                                   const CUDA_TEXTURE_DESC *texture,
                                   const CUDA_RESOURCE_VIEW_DESC *view) {
  ENTER_CONTEXT("cuTexObjectCreate");
  (void)ctx;
  REQUIRE(texture, CUDA_ERROR_INVALID_VALUE);
  return bind(out, resource, texture, view);
}
CUresult CUDAAPI cuTexObjectDestroy(CUtexObject handle) {
  ENTER("cuTexObjectDestroy");
  return unbind(handle);
}
CUresult CUDAAPI cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject handle) {
  ENTER("cuTexObjectGetResourceDesc");
  bound *b;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(bound_of(handle, &b));
  *out = b->resource;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject handle) {
  ENTER("cuTexObjectGetTextureDesc");
  bound *b;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(bound_of(handle, &b));
  *out = b->texture;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject handle) {
  ENTER("cuTexObjectGetResourceViewDesc");
  bound *b;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(bound_of(handle, &b));
  *out = b->view;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource) {
  ENTER_CONTEXT("cuSurfObjectCreate");
  (void)ctx;
  return bind(out, resource, NULL, NULL);
}
CUresult CUDAAPI cuSurfObjectDestroy(CUsurfObject handle) {
  ENTER("cuSurfObjectDestroy");
  return unbind(handle);
}
CUresult CUDAAPI cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUsurfObject handle) {
  ENTER("cuSurfObjectGetResourceDesc");
  bound *b;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(bound_of(handle, &b));
  *out = b->resource;
  return CUDA_SUCCESS;
}
