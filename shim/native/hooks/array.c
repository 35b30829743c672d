/* Arrays and mipmapped arrays. They are charged according to their description, as an upper
 * bound.
 *
 * The driver lays out a plane in columns 64 bytes wide. A column is a stack of up to 32 pieces of 8
 * rows, depending on the height of the plane. A level is counted in whole columns, and a large
 * level in whole slabs. (This is usual for this driver family; whether depth is rounded up as well
 * must be checked on a real device.) Arrays whose memory is mapped in later (sparse, deferred) cost
 * nothing by themselves. */
#include "hooks/array.h"

#include "contexts/contexts.h"
#include "memory/charge.h"
#include "hooks/hook.h"

#define COLUMN_BYTES 64
#define PIECE_ROWS 8
#define MOST_PIECES 32 /* pieces in a column */

typedef struct plane {
  uint8_t bits; /* bits per texel of the array's width, in a row of this plane */
  uint8_t flat; /* number of times that the height is halved for this plane */
} plane;

typedef struct format {
  plane planes[3];
} format;

/* Returns the texel size of a format with this many channels; formats that define their own number
 * ignore `channels`. In block-compressed formats a block counts as one texel, as an upper bound. */
static format format_of(CUarray_format name, unsigned channels) {
  unsigned count = channels > 4 ? 4 : channels ? channels : 1; /* no format has more channels */
  switch ((int)name) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return (format){{{(uint8_t)(8 * count), 0}}};
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return (format){{{(uint8_t)(16 * count), 0}}};
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return (format){{{(uint8_t)(32 * count), 0}}};
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1:
      return (format){{{8, 0}}};
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1:
    case CU_AD_FORMAT_YUY2:
      return (format){{{16, 0}}};
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X4:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_Y210:
    case CU_AD_FORMAT_Y216:
    case CU_AD_FORMAT_AYUV:
    case CU_AD_FORMAT_Y410:
    case CU_AD_FORMAT_UNORM_INT_101010_2:
    case CU_AD_FORMAT_UINT8_PACKED_422:
    case CU_AD_FORMAT_UINT8_PACKED_444:
      return (format){{{32, 0}}};
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4:
    case CU_AD_FORMAT_Y416:
    case CU_AD_FORMAT_BC1_UNORM:
    case CU_AD_FORMAT_BC1_UNORM_SRGB:
    case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM:
      return (format){{{64, 0}}};
    case CU_AD_FORMAT_NV12:
    case CU_AD_FORMAT_UINT8_SEMIPLANAR_420:
      return (format){{{8, 0}, {8, 1}}};
    case CU_AD_FORMAT_P010:
    case CU_AD_FORMAT_P016:
    case CU_AD_FORMAT_UINT16_SEMIPLANAR_420:
      return (format){{{16, 0}, {16, 1}}};
    case CU_AD_FORMAT_NV16:
    case CU_AD_FORMAT_UINT8_SEMIPLANAR_422:
      return (format){{{8, 0}, {8, 0}}};
    case CU_AD_FORMAT_P210:
    case CU_AD_FORMAT_P216:
    case CU_AD_FORMAT_UINT16_SEMIPLANAR_422:
      return (format){{{16, 0}, {16, 0}}};
    case CU_AD_FORMAT_YUV444_8bit_SemiPlanar:
    case CU_AD_FORMAT_UINT8_SEMIPLANAR_444:
      return (format){{{8, 0}, {16, 0}}};
    case CU_AD_FORMAT_YUV444_16bit_SemiPlanar:
    case CU_AD_FORMAT_UINT16_SEMIPLANAR_444:
      return (format){{{16, 0}, {32, 0}}};
    case CU_AD_FORMAT_UINT8_PLANAR_420:
      return (format){{{8, 0}, {4, 1}, {4, 1}}};
    case CU_AD_FORMAT_UINT16_PLANAR_420:
      return (format){{{16, 0}, {8, 1}, {8, 1}}};
    case CU_AD_FORMAT_UINT8_PLANAR_422:
      return (format){{{8, 0}, {4, 0}, {4, 0}}};
    case CU_AD_FORMAT_UINT16_PLANAR_422:
      return (format){{{16, 0}, {8, 0}, {8, 0}}};
    case CU_AD_FORMAT_Y444_PLANAR8:
    case CU_AD_FORMAT_UINT8_PLANAR_444:
      return (format){{{8, 0}, {8, 0}, {8, 0}}};
    case CU_AD_FORMAT_Y444_PLANAR10:
    case CU_AD_FORMAT_UINT16_PLANAR_444:
      return (format){{{16, 0}, {16, 0}, {16, 0}}};
    default:
      return (format){{{128, 0}}}; /* the largest possible format */
  }
}

static uint64_t multiplied(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX / 2 : product;
}

static uint64_t in_whole(uint64_t amount, uint64_t block) {
  return amount > UINT64_MAX / 2 ? UINT64_MAX / 2 : (amount + block - 1) / block * block;
}

/* Returns the height of a plane, rounded up to whole columns. */
static uint64_t in_whole_columns(uint64_t height) {
  uint64_t pieces = 1;
  if (height <= 1) return 1;
  while (pieces < MOST_PIECES && pieces * PIECE_ROWS < height) pieces *= 2;
  return in_whole(height, pieces * PIECE_ROWS);
}

/* Returns the size of one level. A height or depth of 0 means that the array lacks that
 * dimension. */
static uint64_t level_bytes(uint64_t width, uint64_t height, uint64_t depth, format f) {
  uint64_t bytes = 0;
  for (int i = 0; i < 3 && f.planes[i].bits; i++) {
    uint64_t halves = (1u << f.planes[i].flat) - 1;
    uint64_t rows = in_whole_columns((height + halves) >> f.planes[i].flat);
    uint64_t row = in_whole((multiplied(width, f.planes[i].bits) + 7) / 8, COLUMN_BYTES);
    uint64_t all = multiplied(multiplied(row, rows), depth ? depth : 1);
    if (__builtin_add_overflow(bytes, all, &bytes)) return UINT64_MAX / 2;
  }
  return bytes > UINT64_MAX / 2 ? UINT64_MAX / 2 : bytes;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d) {
  if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;
  return level_bytes(d->Width, d->Height, d->Depth, format_of(d->Format, d->NumChannels));
}

#define MOST_LEVELS 18 /* number of levels for the longest possible side */

/* Returns the size of all levels. The number of layers does not shrink from level to level. */
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

/* Length beyond what any device or format supports. */
#define LONGEST_SIDE 131072
static bool is_likely(const CUDA_ARRAY3D_DESCRIPTOR *d) {
  return d->Width > 0 && d->Width <= LONGEST_SIDE && d->Height <= LONGEST_SIDE &&
         d->Depth <= LONGEST_SIDE && d->NumChannels >= 1 && d->NumChannels <= 4;
}

static bool exceeds(CUdevice device, CUdevice_attribute most, size_t side) {
  int value = 0;
  return REAL(cuDeviceGetAttribute)(&value, most, device) == CUDA_SUCCESS && value > 0 &&
         side > (size_t)value;
}
#define EXCEEDS(name, side) exceeds(device, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE##name, side)

/* Returns true if the current device supports the shape. Called only if the result matters. */
static bool is_possible(const CUDA_ARRAY3D_DESCRIPTOR *d) {
  CUdevice device;
  if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return true;
  if (d->Flags & CUDA_ARRAY3D_CUBEMAP) {
    return d->Width == d->Height && d->Depth % 6 == 0 && !EXCEEDS(CUBEMAP_WIDTH, d->Width);
  }
  if (d->Flags & CUDA_ARRAY3D_LAYERED) {
    return d->Height
               ? !EXCEEDS(2D_LAYERED_WIDTH, d->Width) && !EXCEEDS(2D_LAYERED_HEIGHT, d->Height) &&
                     !EXCEEDS(2D_LAYERED_LAYERS, d->Depth)
               : !EXCEEDS(1D_LAYERED_WIDTH, d->Width) && !EXCEEDS(1D_LAYERED_LAYERS, d->Depth);
  }
  if (d->Depth) {
    bool usual = !EXCEEDS(3D_WIDTH, d->Width) && !EXCEEDS(3D_HEIGHT, d->Height) &&
                 !EXCEEDS(3D_DEPTH, d->Depth);
    bool others = EXCEEDS(3D_WIDTH_ALTERNATE, SIZE_MAX); /* the device reports alternative limits */
    return usual ||
           (others && !EXCEEDS(3D_WIDTH_ALTERNATE, d->Width) &&
            !EXCEEDS(3D_HEIGHT_ALTERNATE, d->Height) && !EXCEEDS(3D_DEPTH_ALTERNATE, d->Depth));
  }
  if (!d->Height) return !EXCEEDS(1D_WIDTH, d->Width);
  return !EXCEEDS(2D_WIDTH, d->Width) && !EXCEEDS(2D_HEIGHT, d->Height);
}

/* Returns true if the driver supports the format, which is tested by creating a small array. */
static bool is_format(const CUDA_ARRAY3D_DESCRIPTOR *d, int grant) {
  const CUDA_ARRAY_DESCRIPTOR small = {
      .Width = 64, .Height = 64, .Format = d->Format, .NumChannels = d->NumChannels};
  CUarray array;
  if (!penstock_charge_if_it_fits(0, grant, PENSTOCK_SLAB_BYTES)) return true;
  CUresult result = REAL(cuArrayCreate_v2)(&array, &small);
  if (result == CUDA_SUCCESS) REAL(cuArrayDestroy)(array);
  penstock_uncharge(grant, PENSTOCK_SLAB_BYTES);
  return result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY;
}

/* Charges the array's size before the driver's call, and stores the charge in `*before`. An array
 * that the driver will refuse because of its shape or format is forwarded uncharged even if it
 * exceeds the quota, so that the program gets the driver's error. If the driver accepts it after
 * all, the array is charged then. */
static CUresult admit(const CUDA_ARRAY3D_DESCRIPTOR *d, bool likely, int grant, uint64_t bytes,
                      uint64_t *before) {
  *before = 0;
  if (!likely || !is_likely(d) || !bytes) return CUDA_SUCCESS;
  if (penstock_charge_if_it_fits(0, grant, bytes)) {
    penstock_uncharge(grant, bytes);
  } else if (!is_possible(d) || !is_format(d, grant)) {
    return CUDA_SUCCESS;
  }
  CUresult result = penstock_charge_hidden(grant, bytes, PENSTOCK_ARRAY_BLOCKS);
  if (result == CUDA_SUCCESS) *before = bytes;
  return result;
}

#define CREATE(kind, handle, shape, likely, bytes_needed, call, undo)                             \
  do {                                                                                            \
    CUcontext context;                                                                            \
    int grant;                                                                                    \
    const uint64_t bytes = penstock_whole_slabs(bytes_needed);                                    \
    uint64_t before;                                                                              \
    CUresult result = penstock_here(&context, &grant);                                            \
    if (result == CUDA_SUCCESS) result = admit(shape, likely, grant, bytes, &before);             \
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

#define FLAT(d)                                     \
  ((CUDA_ARRAY3D_DESCRIPTOR){.Width = (d)->Width,   \
                             .Height = (d)->Height, \
                             .Format = (d)->Format, \
                             .NumChannels = (d)->NumChannels})

CUresult CUDAAPI HOOK_NAME(cuArrayCreate)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
  if (!array || !d) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR wide = FLAT(d);
  CREATE(PENSTOCK_ARRAY, array, &wide, true, array_bytes(&wide), REAL(cuArrayCreate)(array, d),
         REAL(cuArrayDestroy)(*array));
}

CUresult CUDAAPI HOOK_NAME(cuArrayCreate_v2)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
  if (!array || !d) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR wide = FLAT(d);
  CREATE(PENSTOCK_ARRAY, array, &wide, true, array_bytes(&wide), REAL(cuArrayCreate_v2)(array, d),
         REAL(cuArrayDestroy)(*array));
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
  CREATE(PENSTOCK_ARRAY, array, &wide, true, array_bytes(&wide), REAL(cuArray3DCreate)(array, d),
         REAL(cuArrayDestroy)(*array));
}

CUresult CUDAAPI HOOK_NAME(cuArray3DCreate_v2)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
  if (!array || !d) return CUDA_ERROR_INVALID_VALUE;
  CREATE(PENSTOCK_ARRAY, array, d, true, array_bytes(d), REAL(cuArray3DCreate_v2)(array, d),
         REAL(cuArrayDestroy)(*array));
}

CUresult CUDAAPI HOOK_NAME(cuMipmappedArrayCreate)(CUmipmappedArray *array,
                                                   const CUDA_ARRAY3D_DESCRIPTOR *d,
                                                   unsigned int levels) {
  if (!array || !d) return CUDA_ERROR_INVALID_VALUE;
  CREATE(PENSTOCK_MIPMAP, array, d, levels > 0 && levels <= MOST_LEVELS, mipmap_bytes(*d, levels),
         REAL(cuMipmappedArrayCreate)(array, d, levels), REAL(cuMipmappedArrayDestroy)(*array));
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
