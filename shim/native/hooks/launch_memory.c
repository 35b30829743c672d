/* Memsets and copies. Those within device memory run on the SMs and are gated. Copies to and
 * from the host run on copy engines; their bytes are counted, and measured time does not include
 * them. */
#include "hooks/hook.h"
#include "hooks/launch.h"
#include "hooks/launch_pass.h"
#include "memory/objects.h"

#define MEMSET_KEY(bytes) \
  ((penstock_kind_key){PENSTOCK_KIND_MEMSET, 0, 0, penstock_size_class(bytes)})
#define COPY_KEY(bytes) ((penstock_kind_key){PENSTOCK_KIND_COPY, 0, 0, penstock_size_class(bytes)})
#define LIST(...) __VA_ARGS__

/* Memsets, by element type and by the pointer and size types of the API version. */
#define MEMSET(symbol, width, type, pointer, size, per_thread)                     \
  CUresult CUDAAPI HOOK_NAME(symbol)(pointer to, type value, size count) {         \
    PENSTOCK_GATED(NULL, per_thread, false, MEMSET_KEY((uint64_t)count * (width)), \
                   REAL(symbol)(to, value, count));                                \
  }
#define MEMSET_ASYNC(symbol, width, type, per_thread)                                             \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUdeviceptr to, type value, size_t count, CUstream stream) { \
    PENSTOCK_GATED(stream, per_thread, false, MEMSET_KEY((uint64_t)count * (width)),              \
                   REAL(symbol)(to, value, count, stream));                                       \
  }
#define MEMSET_2D(symbol, width, type, pointer, size, per_thread)                           \
  CUresult CUDAAPI HOOK_NAME(symbol)(pointer to, size pitch, type value, size columns,      \
                                     size rows) {                                           \
    PENSTOCK_GATED(NULL, per_thread, false, MEMSET_KEY((uint64_t)columns * rows * (width)), \
                   REAL(symbol)(to, pitch, value, columns, rows));                          \
  }
#define MEMSET_2D_ASYNC(symbol, width, type, per_thread)                                       \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUdeviceptr to, size_t pitch, type value, size_t columns, \
                                     size_t rows, CUstream stream) {                           \
    PENSTOCK_GATED(stream, per_thread, false, MEMSET_KEY((uint64_t)columns * rows * (width)),  \
                   REAL(symbol)(to, pitch, value, columns, rows, stream));                     \
  }
#define MEMSET_FAMILY(bits, type)                                                   \
  MEMSET(cuMemsetD##bits, bits / 8, type, CUdeviceptr_v1, unsigned int, false)      \
  MEMSET(cuMemsetD##bits##_v2, bits / 8, type, CUdeviceptr, size_t, false)          \
  MEMSET(cuMemsetD##bits##_v2_ptds, bits / 8, type, CUdeviceptr, size_t, true)      \
  MEMSET_ASYNC(cuMemsetD##bits##Async, bits / 8, type, false)                       \
  MEMSET_ASYNC(cuMemsetD##bits##Async_ptsz, bits / 8, type, true)                   \
  MEMSET_2D(cuMemsetD2D##bits, bits / 8, type, CUdeviceptr_v1, unsigned int, false) \
  MEMSET_2D(cuMemsetD2D##bits##_v2, bits / 8, type, CUdeviceptr, size_t, false)     \
  MEMSET_2D(cuMemsetD2D##bits##_v2_ptds, bits / 8, type, CUdeviceptr, size_t, true) \
  MEMSET_2D_ASYNC(cuMemsetD2D##bits##Async, bits / 8, type, false)                  \
  MEMSET_2D_ASYNC(cuMemsetD2D##bits##Async_ptsz, bits / 8, type, true)
MEMSET_FAMILY(8, unsigned char)
MEMSET_FAMILY(16, unsigned short)
MEMSET_FAMILY(32, unsigned int)

/* Returns true for a pointer to device memory. The table knows only the starts of allocations, so
 * the driver is queried about other pointers. */
static bool points_to_device(CUdeviceptr pointer) {
  CUmemorytype type = 0;
  if (penstock_pointer_is_known(pointer)) return true;
  return REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) ==
             CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE;
}

/* Returns the grant of the device that holds the memory, or -1 if it is unknown. The table knows
 * only pointers that allocations returned, so the driver is queried about others. */
static int place_of(CUdeviceptr pointer) {
  penstock_object object;
  int ordinal;
  if (penstock_object_find(PENSTOCK_DEVICE_MEMORY, pointer, &object)) return object.grant;
  return REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) ==
                 CUDA_SUCCESS
             ? penstock_grant_of(ordinal)
             : -1;
}

/* Returns the grant of an array's device. Levels of mipmapped arrays have handles of their own. */
static int place_of_array(CUarray array) {
  penstock_object object;
  uint64_t key = (uint64_t)(uintptr_t)array;
  return penstock_object_find(PENSTOCK_ARRAY, key, &object) ? object.grant : -1;
}

static bool has_several_devices(void) {
  static int count; /* fixed once the driver is initialized */
  int known = __atomic_load_n(&count, __ATOMIC_RELAXED);
  if (!known && REAL(cuDeviceGetCount)(&known) == CUDA_SUCCESS) {
    __atomic_store_n(&count, known, __ATOMIC_RELAXED);
  }
  return known > 1;
}

/* Returns true for a copy between two devices, which runs on copy engines. */
static bool are_apart(int place, int other) { return place >= 0 && other >= 0 && place != other; }
#define WITHIN(d, s) (!has_several_devices() || !are_apart(d, s))

/* Body of a copy that always runs on a copy engine. */
#define BY_ENGINE(symbol, stream, per_thread, bytes, parameters, arguments) \
  CUresult CUDAAPI HOOK_NAME(symbol)(parameters) {                          \
    bool runs = penstock_gate_interrupt(stream, per_thread);                \
    CUresult result = REAL(symbol)(arguments);                              \
    if (runs && result == CUDA_SUCCESS) penstock_gate_copied(bytes);        \
    return result;                                                          \
  }
/* Body of a copy that runs on the SMs if `inside` is true, and otherwise on a copy engine. */
#define DO_EITHER(inside, stream, per_thread, bytes, call)            \
  if (inside) {                                                       \
    PENSTOCK_GATED(stream, per_thread, false, COPY_KEY(bytes), call); \
  }                                                                   \
  bool runs = penstock_gate_interrupt(stream, per_thread);            \
  CUresult result = call;                                             \
  if (runs && result == CUDA_SUCCESS) penstock_gate_copied(bytes);    \
  return result
#define EITHER(symbol, inside, stream, per_thread, bytes, parameters, arguments) \
  CUresult CUDAAPI HOOK_NAME(symbol)(parameters) {                               \
    DO_EITHER(inside, stream, per_thread, bytes, REAL(symbol)(arguments));       \
  }

/* Body of a copy from device memory to device memory of the same or another device. */
#define D_TO_D(symbol, stream, per_thread, bytes, parameters, arguments)   \
  CUresult CUDAAPI HOOK_NAME(symbol)(parameters) {                         \
    DO_EITHER(WITHIN(place_of(d), place_of(s)), stream, per_thread, bytes, \
              REAL(symbol)(arguments));                                    \
  }
#define D_TO_A(symbol, stream, per_thread, bytes, parameters, arguments)         \
  CUresult CUDAAPI HOOK_NAME(symbol)(parameters) {                               \
    DO_EITHER(WITHIN(place_of_array(d), place_of(s)), stream, per_thread, bytes, \
              REAL(symbol)(arguments));                                          \
  }
#define A_TO_D(symbol, stream, per_thread, bytes, parameters, arguments)         \
  CUresult CUDAAPI HOOK_NAME(symbol)(parameters) {                               \
    DO_EITHER(WITHIN(place_of(d), place_of_array(s)), stream, per_thread, bytes, \
              REAL(symbol)(arguments));                                          \
  }
#define A_TO_A(symbol, stream, per_thread, bytes, parameters, arguments)               \
  CUresult CUDAAPI HOOK_NAME(symbol)(parameters) {                                     \
    DO_EITHER(WITHIN(place_of_array(d), place_of_array(s)), stream, per_thread, bytes, \
              REAL(symbol)(arguments));                                                \
  }

/* Linear copies: the first version, then the newer one and its per-thread twin. */
#define LINEAR(body, name, to_v1, from_v1, to, from)                                  \
  body(name, NULL, false, n, LIST(to_v1 d, from_v1 s, unsigned int n), LIST(d, s, n)) \
      body(name##_v2, NULL, false, n, LIST(to d, from s, size_t n), LIST(d, s, n))    \
          body(name##_v2_ptds, NULL, true, n, LIST(to d, from s, size_t n), LIST(d, s, n))
#define LINEAR_ASYNC(body, name, to_v1, from_v1, to, from)                                     \
  body(name, stream, false, n, LIST(to_v1 d, from_v1 s, unsigned int n, CUstream stream),      \
       LIST(d, s, n, stream))                                                                  \
      body(name##_v2, stream, false, n, LIST(to d, from s, size_t n, CUstream stream),         \
           LIST(d, s, n, stream))                                                              \
          body(name##_v2_ptsz, stream, true, n, LIST(to d, from s, size_t n, CUstream stream), \
               LIST(d, s, n, stream))
LINEAR(D_TO_D, cuMemcpyDtoD, CUdeviceptr_v1, CUdeviceptr_v1, CUdeviceptr, CUdeviceptr)
LINEAR_ASYNC(D_TO_D, cuMemcpyDtoDAsync, CUdeviceptr_v1, CUdeviceptr_v1, CUdeviceptr, CUdeviceptr)
LINEAR(BY_ENGINE, cuMemcpyHtoD, CUdeviceptr_v1, const void *, CUdeviceptr, const void *)
LINEAR_ASYNC(BY_ENGINE, cuMemcpyHtoDAsync, CUdeviceptr_v1, const void *, CUdeviceptr, const void *)
LINEAR(BY_ENGINE, cuMemcpyDtoH, void *, CUdeviceptr_v1, void *, CUdeviceptr)
LINEAR_ASYNC(BY_ENGINE, cuMemcpyDtoHAsync, void *, CUdeviceptr_v1, void *, CUdeviceptr)

/* Array copies, in which each array has an offset. */
#define ARRAY(body, name, to_v1, to, from_v1, from, arguments)                         \
  body(name, NULL, false, n, LIST(to_v1, from_v1, unsigned int n), LIST(arguments, n)) \
      body(name##_v2, NULL, false, n, LIST(to, from, size_t n), LIST(arguments, n))    \
          body(name##_v2_ptds, NULL, true, n, LIST(to, from, size_t n), LIST(arguments, n))
ARRAY(D_TO_A, cuMemcpyDtoA, LIST(CUarray d, unsigned int i), LIST(CUarray d, size_t i),
      CUdeviceptr_v1 s, CUdeviceptr s, LIST(d, i, s))
ARRAY(A_TO_D, cuMemcpyAtoD, CUdeviceptr_v1 d, CUdeviceptr d, LIST(CUarray s, unsigned int i),
      LIST(CUarray s, size_t i), LIST(d, s, i))
ARRAY(A_TO_A, cuMemcpyAtoA, LIST(CUarray d, unsigned int i), LIST(CUarray d, size_t i),
      LIST(CUarray s, unsigned int k), LIST(CUarray s, size_t k), LIST(d, i, s, k))
ARRAY(BY_ENGINE, cuMemcpyHtoA, LIST(CUarray d, unsigned int i), LIST(CUarray d, size_t i),
      const void *s, const void *s, LIST(d, i, s))
ARRAY(BY_ENGINE, cuMemcpyAtoH, void *d, void *d, LIST(CUarray s, unsigned int i),
      LIST(CUarray s, size_t i), LIST(d, s, i))

#define ARRAY_ASYNC(name, to_v1, to, from_v1, from, arguments)                             \
  BY_ENGINE(name, stream, false, n, LIST(to_v1, from_v1, unsigned int n, CUstream stream), \
            LIST(arguments, n, stream))                                                    \
  BY_ENGINE(name##_v2, stream, false, n, LIST(to, from, size_t n, CUstream stream),        \
            LIST(arguments, n, stream))                                                    \
  BY_ENGINE(name##_v2_ptsz, stream, true, n, LIST(to, from, size_t n, CUstream stream),    \
            LIST(arguments, n, stream))
ARRAY_ASYNC(cuMemcpyHtoAAsync, LIST(CUarray d, unsigned int i), LIST(CUarray d, size_t i),
            const void *s, const void *s, LIST(d, i, s))
ARRAY_ASYNC(cuMemcpyAtoHAsync, void *d, void *d, LIST(CUarray s, unsigned int i),
            LIST(CUarray s, size_t i), LIST(d, s, i))

static bool is_inside(CUdeviceptr to, CUdeviceptr from) {
  return points_to_device(to) && points_to_device(from) && WITHIN(place_of(to), place_of(from));
}
#define BOTH_ON_DEVICE is_inside(d, s)
#define GENERIC_LIST LIST(CUdeviceptr d, CUdeviceptr s, size_t n)
#define GENERIC_ASYNC LIST(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream stream)
EITHER(cuMemcpy, BOTH_ON_DEVICE, NULL, false, n, GENERIC_LIST, LIST(d, s, n))
EITHER(cuMemcpy_ptds, BOTH_ON_DEVICE, NULL, true, n, GENERIC_LIST, LIST(d, s, n))
EITHER(cuMemcpyAsync, BOTH_ON_DEVICE, stream, false, n, GENERIC_ASYNC, LIST(d, s, n, stream))
EITHER(cuMemcpyAsync_ptsz, BOTH_ON_DEVICE, stream, true, n, GENERIC_ASYNC, LIST(d, s, n, stream))

/* Copies of rectangles, in which each end states its memory type. */
static bool on_device(CUmemorytype type, CUdeviceptr pointer) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY ||
         (type == CU_MEMORYTYPE_UNIFIED && points_to_device(pointer));
}
static int place_in(CUmemorytype type, CUdeviceptr pointer, CUarray array) {
  return type == CU_MEMORYTYPE_ARRAY ? place_of_array(array) : place_of(pointer);
}
#define RECTANGLE_INSIDE                                                                          \
  (p && on_device(p->srcMemoryType, p->srcDevice) && on_device(p->dstMemoryType, p->dstDevice) && \
   WITHIN(place_in(p->srcMemoryType, p->srcDevice, p->srcArray),                                  \
          place_in(p->dstMemoryType, p->dstDevice, p->dstArray)))
#define AREA (p ? (uint64_t)p->WidthInBytes * p->Height : 0)
#define VOLUME (p ? (uint64_t)p->WidthInBytes * p->Height * p->Depth : 0)
#define RECTANGLE(name, type, bytes)                                        \
  EITHER(name, RECTANGLE_INSIDE, NULL, false, bytes, const type##_v1 *p, p) \
  EITHER(name##_v2, RECTANGLE_INSIDE, NULL, false, bytes, const type *p, p) \
  EITHER(name##_v2_ptds, RECTANGLE_INSIDE, NULL, true, bytes, const type *p, p)
#define RECTANGLE_ASYNC(name, type, bytes)                                                        \
  EITHER(name, RECTANGLE_INSIDE, stream, false, bytes, LIST(const type##_v1 *p, CUstream stream), \
         LIST(p, stream))                                                                         \
  EITHER(name##_v2, RECTANGLE_INSIDE, stream, false, bytes, LIST(const type *p, CUstream stream), \
         LIST(p, stream))                                                                         \
  EITHER(name##_v2_ptsz, RECTANGLE_INSIDE, stream, true, bytes,                                   \
         LIST(const type *p, CUstream stream), LIST(p, stream))
RECTANGLE(cuMemcpy2D, CUDA_MEMCPY2D, AREA)
RECTANGLE(cuMemcpy2DUnaligned, CUDA_MEMCPY2D, AREA)
RECTANGLE(cuMemcpy3D, CUDA_MEMCPY3D, VOLUME)
RECTANGLE_ASYNC(cuMemcpy2DAsync, CUDA_MEMCPY2D, AREA)
RECTANGLE_ASYNC(cuMemcpy3DAsync, CUDA_MEMCPY3D, VOLUME)

/* Returns true if two contexts are of the same device, so that a copy between them stays within
 * it. */
static bool on_one_device(CUcontext a, CUcontext b) {
  penstock_object first, second;
  return a == b || !penstock_object_find(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)a, &first) ||
         !penstock_object_find(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)b, &second) ||
         first.grant == second.grant;
}
#define PEER LIST(CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n)
#define PEER_ASYNC LIST(PEER, CUstream stream)
EITHER(cuMemcpyPeer, on_one_device(dc, sc), NULL, false, n, PEER, LIST(d, dc, s, sc, n))
EITHER(cuMemcpyPeer_ptds, on_one_device(dc, sc), NULL, true, n, PEER, LIST(d, dc, s, sc, n))
EITHER(cuMemcpyPeerAsync, on_one_device(dc, sc), stream, false, n, PEER_ASYNC,
       LIST(d, dc, s, sc, n, stream))
EITHER(cuMemcpyPeerAsync_ptsz, on_one_device(dc, sc), stream, true, n, PEER_ASYNC,
       LIST(d, dc, s, sc, n, stream))
#define PEER_INSIDE (RECTANGLE_INSIDE && on_one_device(p->dstContext, p->srcContext))
#define PEER_3D_ASYNC LIST(const CUDA_MEMCPY3D_PEER *p, CUstream stream)
EITHER(cuMemcpy3DPeer, PEER_INSIDE, NULL, false, VOLUME, const CUDA_MEMCPY3D_PEER *p, p)
EITHER(cuMemcpy3DPeer_ptds, PEER_INSIDE, NULL, true, VOLUME, const CUDA_MEMCPY3D_PEER *p, p)
EITHER(cuMemcpy3DPeerAsync, PEER_INSIDE, stream, false, VOLUME, PEER_3D_ASYNC, LIST(p, stream))
EITHER(cuMemcpy3DPeerAsync_ptsz, PEER_INSIDE, stream, true, VOLUME, PEER_3D_ASYNC, LIST(p, stream))

/* Prefetched managed memory, whose pages are transferred over the host link. */
static uint64_t sum_of(const size_t *sizes, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; sizes && i < count; i++) bytes += sizes[i];
  return bytes;
}
#define MOVED(symbol, per_thread, bytes, parameters, arguments)                   \
  BY_ENGINE(symbol, stream, per_thread, bytes, LIST(parameters, CUstream stream), \
            LIST(arguments, stream))
#define MOVED_TWINS(symbol, bytes, parameters, arguments)        \
  MOVED(symbol, false, bytes, LIST(parameters), LIST(arguments)) \
  MOVED(symbol##_ptsz, true, bytes, LIST(parameters), LIST(arguments))
MOVED_TWINS(cuMemPrefetchAsync, n, LIST(CUdeviceptr p, size_t n, CUdevice to), LIST(p, n, to))
MOVED_TWINS(cuMemPrefetchAsync_v2, n,
            LIST(CUdeviceptr p, size_t n, CUmemLocation to, unsigned int flags),
            LIST(p, n, to, flags))
#define RANGES CUdeviceptr *p, size_t *n, size_t count
#define RANGES_TO \
  LIST(RANGES, CUmemLocation *to, size_t *indices, size_t places, unsigned long long flags)
MOVED_TWINS(cuMemPrefetchBatchAsync, sum_of(n, count), RANGES_TO,
            LIST(p, n, count, to, indices, places, flags))
MOVED_TWINS(cuMemDiscardAndPrefetchBatchAsync, sum_of(n, count), RANGES_TO,
            LIST(p, n, count, to, indices, places, flags))

/* Returns true if any part of a batch stays within the device. Copies with attributes and batches
 * are gated as one call in that case. */
static uint64_t batch_inside(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes,
                             size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; to && from && sizes && i < count; i++) {
    if (is_inside(to[i], from[i])) bytes += sizes[i];
  }
  return bytes;
}

static bool operand_on_device(const CUmemcpy3DOperand *operand) {
  return operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY || points_to_device(operand->op.ptr.ptr);
}

static int place_of_operand(const CUmemcpy3DOperand *operand) {
  return operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? place_of_array(operand->op.array.array)
                                                       : place_of(operand->op.ptr.ptr);
}

static uint64_t volume_of(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; list && i < count; i++) {
    const CUextent3D *extent = &list[i].extent;
    bytes += (uint64_t)extent->width * extent->height * extent->depth;
  }
  return bytes;
}

static uint64_t batch_3d_inside(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; list && i < count; i++) {
    bool inside = operand_on_device(&list[i].src) && operand_on_device(&list[i].dst) &&
                  WITHIN(place_of_operand(&list[i].src), place_of_operand(&list[i].dst));
    if (inside) bytes += volume_of(&list[i], 1);
  }
  return bytes;
}

/* Returns true if the operand stays within the device. An endpoint can also reach memory of this
 * device, so only host memory counts as outside. */
static bool fabric_operand_inside(const CUfabricCpyOperand *operand) {
  return operand->type != CU_FABRIC_COPY_OPERAND_TYPE_POINTER ||
         points_to_device(operand->op.ptr.ptr);
}

static uint64_t fabric_inside(const CUDA_FABRIC_COPY_BATCH_OP *list, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; list && i < count; i++) {
    bool inside = fabric_operand_inside(&list[i].src) && fabric_operand_inside(&list[i].dst);
    if (inside) bytes += list[i].size;
  }
  return bytes;
}

static uint64_t fabric_bytes(const CUDA_FABRIC_COPY_BATCH_OP *list, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; list && i < count; i++) bytes += list[i].size;
  return bytes;
}

static uint64_t decompressed(const CUmemDecompressParams *list, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; list && i < count; i++) bytes += list[i].dstNumBytes;
  return bytes;
}

#define BATCH(symbol, bytes_inside, bytes_in_all, per_thread, parameters, arguments) \
  CUresult CUDAAPI HOOK_NAME(symbol)(parameters, CUstream stream) {                  \
    const uint64_t inside = (bytes_inside);                                          \
    if (inside) {                                                                    \
      PENSTOCK_GATED(stream, per_thread, false, COPY_KEY(inside),                    \
                     REAL(symbol)(arguments, stream));                               \
    }                                                                                \
    bool runs = penstock_gate_interrupt(stream, per_thread);                         \
    CUresult result = REAL(symbol)(arguments, stream);                               \
    if (runs && result == CUDA_SUCCESS) penstock_gate_copied(bytes_in_all);          \
    return result;                                                                   \
  }
#define BATCH_TWINS(symbol, inside, in_all, parameters, arguments)        \
  BATCH(symbol, inside, in_all, false, LIST(parameters), LIST(arguments)) \
  BATCH(symbol##_ptsz, inside, in_all, true, LIST(parameters), LIST(arguments))
#define VECTORS                                                                                    \
  CUdeviceptr *d, CUdeviceptr *s, size_t *n, size_t count, CUmemcpyAttributes *a, size_t *indices, \
      size_t attributes
BATCH_TWINS(cuMemcpyBatchAsync, batch_inside(d, s, n, count), sum_of(n, count),
            LIST(VECTORS, size_t *failed), LIST(d, s, n, count, a, indices, attributes, failed))
BATCH_TWINS(cuMemcpyBatchAsync_v2, batch_inside(d, s, n, count), sum_of(n, count), VECTORS,
            LIST(d, s, n, count, a, indices, attributes))
BATCH_TWINS(cuMemcpy3DBatchAsync, batch_3d_inside(list, count), volume_of(list, count),
            LIST(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,
                 unsigned long long flags),
            LIST(count, list, failed, flags))
BATCH_TWINS(cuMemcpy3DBatchAsync_v2, batch_3d_inside(list, count), volume_of(list, count),
            LIST(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags),
            LIST(count, list, flags))
BATCH_TWINS(cuMemcpyWithAttributesAsync, batch_inside(&d, &s, &n, 1), n,
            LIST(CUdeviceptr d, CUdeviceptr s, size_t n, CUmemcpyAttributes *a), LIST(d, s, n, a))
BATCH_TWINS(cuMemcpy3DWithAttributesAsync, batch_3d_inside(list, 1), volume_of(list, 1),
            LIST(CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags), LIST(list, flags))
BATCH_TWINS(cuFabricCpyBatchAsync, fabric_inside(list, count), fabric_bytes(list, count),
            LIST(size_t count, CUDA_FABRIC_COPY_BATCH_OP *list, unsigned long long flags),
            LIST(count, list, flags))
BATCH_TWINS(cuMemBatchDecompressAsync, decompressed(list, count), 0,
            LIST(CUmemDecompressParams *list, size_t count, unsigned int flags, size_t *failed),
            LIST(list, count, flags, failed))
