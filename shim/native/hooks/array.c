/* Arrays and mipmapped arrays: charged by their description, as an upper bound.
 *
 * The driver lays them out in blocks of 64 bytes by 8 rows; what a level needs is counted in whole
 * blocks, and large ones in whole slabs. Arrays whose memory is mapped in later (sparse, deferred)
 * cost nothing by themselves.
 */
#include "hooks/array.h"

#include "charge.h"
#include "hooks/hook.h"

#define BLOCK_ROW_BYTES 64
#define BLOCK_ROWS 8

static uint64_t element_bytes(CUarray_format format, unsigned channels) {
  switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2 * (uint64_t)channels;
    default:
      return 4 * (uint64_t)(channels > 4 ? 4 : channels ? channels : 1); /* none is larger */
  }
}

static uint64_t multiplied(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX / 2 : product;
}

static uint64_t in_whole(uint64_t amount, uint64_t block) {
  return amount > UINT64_MAX / 2 ? UINT64_MAX / 2 : (amount + block - 1) / block * block;
}

/* One level; 0 for height or depth means that the array lacks that dimension. */
static uint64_t level_bytes(uint64_t width, uint64_t height, uint64_t depth, uint64_t element) {
  uint64_t rows = height > 1 ? in_whole(height, BLOCK_ROWS) : 1;
  uint64_t row = in_whole(multiplied(width, element), BLOCK_ROW_BYTES);
  return multiplied(multiplied(row, rows), depth ? depth : 1);
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d) {
  if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;
  return level_bytes(d->Width, d->Height, d->Depth, element_bytes(d->Format, d->NumChannels));
}

#define MOST_LEVELS 18 /* of the longest side */

/* Layers do not shrink from level to level. */
static uint64_t mipmap_bytes(CUDA_ARRAY3D_DESCRIPTOR d, unsigned levels) {
  bool layered = d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  uint64_t bytes = 0;
  for (unsigned level = 0; level < levels && level < MOST_LEVELS; level++) {
    if (__builtin_add_overflow(bytes, array_bytes(&d), &bytes)) return UINT64_MAX / 2;
    d.Width = d.Width > 1 ? d.Width / 2 : d.Width;
    d.Height = d.Height > 1 ? d.Height / 2 : d.Height;
    if (!layered && d.Depth > 1) d.Depth /= 2;
  }
  return bytes;
}

/* An unlikely shape gets the driver's own answer, over the quota as well; should the driver take it
 * after all, it is charged once that is known. */
#define CREATE(kind, handle, likely, bytes_needed, call, undo)                                    \
  do {                                                                                            \
    CUcontext context;                                                                            \
    int grant;                                                                                    \
    const uint64_t bytes = penstock_whole_slabs(bytes_needed);                                    \
    const uint64_t before = (likely) ? bytes : 0;                                                 \
    CUresult result = penstock_here(&context, &grant);                                            \
    if (result == CUDA_SUCCESS && before)                                                         \
      result = penstock_charge_hidden(grant, before, PENSTOCK_ARRAY_BLOCKS);                      \
    if (result != CUDA_SUCCESS) return result;                                                    \
    result = call;                                                                                \
    if (result != CUDA_SUCCESS) {                                                                 \
      penstock_uncharge_hidden(grant, before, PENSTOCK_ARRAY_BLOCKS);                             \
      return result;                                                                              \
    }                                                                                             \
    if (bytes > before &&                                                                         \
        (result = penstock_charge_hidden(grant, bytes, PENSTOCK_ARRAY_BLOCKS)) != CUDA_SUCCESS) { \
      undo;                                                                                       \
      return result;                                                                              \
    }                                                                                             \
    penstock_object_remember(kind, (uint64_t)(uintptr_t)*(handle), grant, bytes, context);        \
    return CUDA_SUCCESS;                                                                          \
  } while (0)

/* Beyond what any device takes, or a number of channels that no format has. */
#define LONGEST_SIDE 131072
static bool is_likely(const CUDA_ARRAY3D_DESCRIPTOR *d) {
  return d->Width > 0 && d->Width <= LONGEST_SIDE && d->Height <= LONGEST_SIDE &&
         d->Depth <= LONGEST_SIDE && d->NumChannels >= 1 && d->NumChannels <= 4;
}

static bool is_likely_flat(uint64_t width, uint64_t height, unsigned channels) {
  CUDA_ARRAY3D_DESCRIPTOR d = {.Width = width, .Height = height, .NumChannels = channels};
  return is_likely(&d);
}

static uint64_t flat_bytes(uint64_t width, uint64_t height, CUarray_format format,
                           unsigned channels) {
  return level_bytes(width, height, 0, element_bytes(format, channels));
}

CUresult CUDAAPI HOOK_NAME(cuArrayCreate)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
  if (!array || !d) return CUDA_ERROR_INVALID_VALUE;
  CREATE(PENSTOCK_ARRAY, array, is_likely_flat(d->Width, d->Height, d->NumChannels),
         flat_bytes(d->Width, d->Height, d->Format, d->NumChannels), REAL(cuArrayCreate)(array, d),
         REAL(cuArrayDestroy)(*array));
}

CUresult CUDAAPI HOOK_NAME(cuArrayCreate_v2)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
  if (!array || !d) return CUDA_ERROR_INVALID_VALUE;
  CREATE(PENSTOCK_ARRAY, array, is_likely_flat(d->Width, d->Height, d->NumChannels),
         flat_bytes(d->Width, d->Height, d->Format, d->NumChannels),
         REAL(cuArrayCreate_v2)(array, d), REAL(cuArrayDestroy)(*array));
}

static CUDA_ARRAY3D_DESCRIPTOR widened(const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
  return (CUDA_ARRAY3D_DESCRIPTOR){.Width = d->Width,
                                   .Height = d->Height,
                                   .Depth = d->Depth,
                                   .Format = d->Format,
                                   .NumChannels = d->NumChannels,
                                   .Flags = d->Flags};
}

CUresult CUDAAPI HOOK_NAME(cuArray3DCreate)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
  if (!array || !d) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR wide = widened(d);
  CREATE(PENSTOCK_ARRAY, array, is_likely(&wide), array_bytes(&wide),
         REAL(cuArray3DCreate)(array, d), REAL(cuArrayDestroy)(*array));
}

CUresult CUDAAPI HOOK_NAME(cuArray3DCreate_v2)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
  if (!array || !d) return CUDA_ERROR_INVALID_VALUE;
  CREATE(PENSTOCK_ARRAY, array, is_likely(d), array_bytes(d), REAL(cuArray3DCreate_v2)(array, d),
         REAL(cuArrayDestroy)(*array));
}

CUresult CUDAAPI HOOK_NAME(cuMipmappedArrayCreate)(CUmipmappedArray *array,
                                                   const CUDA_ARRAY3D_DESCRIPTOR *d,
                                                   unsigned int levels) {
  if (!array || !d) return CUDA_ERROR_INVALID_VALUE;
  CREATE(PENSTOCK_MIPMAP, array, is_likely(d) && levels > 0 && levels <= MOST_LEVELS,
         mipmap_bytes(*d, levels), REAL(cuMipmappedArrayCreate)(array, d, levels),
         REAL(cuMipmappedArrayDestroy)(*array));
}

CUresult CUDAAPI HOOK_NAME(cuArrayDestroy)(CUarray array) {
  penstock_freeing freeing = penstock_free_begin(PENSTOCK_ARRAY, (uint64_t)(uintptr_t)array);
  CUresult result = penstock_free_end(&freeing, REAL(cuArrayDestroy)(array));
  if (result == CUDA_SUCCESS) penstock_vmm_array_destroyed((uint64_t)(uintptr_t)array);
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuMipmappedArrayDestroy)(CUmipmappedArray array) {
  penstock_freeing freeing = penstock_free_begin(PENSTOCK_MIPMAP, (uint64_t)(uintptr_t)array);
  CUresult result = penstock_free_end(&freeing, REAL(cuMipmappedArrayDestroy)(array));
  if (result == CUDA_SUCCESS) penstock_vmm_array_destroyed((uint64_t)(uintptr_t)array);
  return result;
}
