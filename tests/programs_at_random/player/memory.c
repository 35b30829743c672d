/* Memory that belongs to a context, its contents, and physical memory with its mappings. */
#include "player.h"

#define KIB 1024ul
static unsigned char pattern[4 * CONTENT_BYTES];

__attribute__((constructor)) static void fill_pattern(void) {
  uint32_t state = 1;
  for (size_t i = 0; i < sizeof pattern; i++) {
    state = state * 1664525u + 1013904223u;
    pattern[i] = (unsigned char)(state >> 24);
  }
}

static size_t content(const thing *t) {
  return t->bytes < CONTENT_BYTES ? t->bytes : CONTENT_BYTES;
}

static CUresult made(call *c, CUresult result, CUdeviceptr pointer, size_t bytes) {
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = pointer, .bytes = bytes};
  if (result == CUDA_SUCCESS) result = cuMemsetD8(pointer, 0, content(c->t[0]));
  return result;
}

static CUresult allocate(call *c) {
  CUdeviceptr pointer;
  size_t bytes = (size_t)c->n[2] * KIB;
  CUresult result = cuMemAlloc(&pointer, bytes);
  return made(c, result, pointer, bytes);
}

static CUresult allocate_pitch(call *c) {
  CUdeviceptr pointer;
  size_t pitch, rows = (size_t)c->n[3];
  CUresult result = cuMemAllocPitch(&pointer, &pitch, (size_t)c->n[2], rows, 4);
  return made(c, result, pointer, result ? 0 : pitch * rows);
}

static CUresult allocate_managed(call *c) {
  CUdeviceptr pointer;
  size_t bytes = (size_t)c->n[2] * KIB;
  CUresult result = cuMemAllocManaged(&pointer, bytes, CU_MEM_ATTACH_GLOBAL);
  return made(c, result, pointer, bytes);
}

static CUresult free_buffer(call *c) { return cuMemFree(c->t[0]->handle); }

/* Words that kernels and streams of any device wait for: in host memory (0) or on the device. */
static CUresult make_words(call *c) {
  size_t bytes = 8 * (size_t)c->n[2];
  if (c->n[3]) {
    CUdeviceptr pointer;
    CUresult result = cuMemAlloc(&pointer, bytes);
    return made(c, result, pointer, bytes);
  }
  void *host = NULL;
  CUresult result =
      cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  CUdeviceptr pointer = 0;
  if (result == CUDA_SUCCESS) {
    memset(host, 0, bytes);
    result = cuMemHostGetDevicePointer(&pointer, host, 0);
  }
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = pointer, .bytes = bytes, .host = host};
  return result;
}

static CUresult read_word(call *c) {
  uint64_t value = 0;
  CUresult result = CUDA_SUCCESS;
  if (c->t[0]->host)
    value = __atomic_load_n((uint64_t *)c->t[0]->host + c->n[1], __ATOMIC_ACQUIRE);
  else
    result = cuMemcpyDtoH(&value, word_of(c->t[0], c->n[1]), 8);
  snprintf(c->note, sizeof c->note, "%llu", (unsigned long long)value);
  return result;
}

/* ---- contents ---- */

static size_t at_most(const call *c, const thing *t, long wanted) {
  (void)c;
  size_t most = content(t), bytes = (size_t)wanted;
  return bytes < most ? bytes : most;
}

/* stream, buffer, value, bytes, width 1 or 4 */
static CUresult fill(call *c) {
  CUstream s = (CUstream)c->t[0]->handle;
  size_t bytes = at_most(c, c->t[1], c->n[3]);
  return c->n[4] == 4
             ? cuMemsetD32Async(c->t[1]->handle, (unsigned)c->n[2] * 0x01030507u, bytes / 4, s)
             : cuMemsetD8Async(c->t[1]->handle, (unsigned char)c->n[2], bytes, s);
}

static CUresult copy(call *c) {
  size_t bytes = at_most(c, c->t[1], c->n[3]);
  bytes = at_most(c, c->t[2], (long)bytes);
  return cuMemcpyDtoDAsync(c->t[1]->handle, c->t[2]->handle, bytes, (CUstream)c->t[0]->handle);
}

static CUresult put(call *c) {
  const unsigned char *from = pattern + (size_t)c->n[2] % (3 * CONTENT_BYTES);
  return cuMemcpyHtoDAsync(c->t[1]->handle, from, at_most(c, c->t[1], c->n[3]),
                           (CUstream)c->t[0]->handle);
}

static CUresult look(call *c) {
  static __thread unsigned char seen[CONTENT_BYTES];
  size_t bytes = content(c->t[0]);
  CUresult result = cuMemcpyDtoH(seen, c->t[0]->handle, bytes);
  uint64_t sum = 14695981039346656037ull;
  for (size_t i = 0; i < bytes && result == CUDA_SUCCESS; i++)
    sum = (sum ^ seen[i]) * 1099511628211ull;
  snprintf(c->note, sizeof c->note, "%016llx", (unsigned long long)sum);
  return result;
}

/* ---- physical memory ---- */

static const CUmemAllocationHandleType BY_FD = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

static CUresult create_physical(call *c) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)c->n[2]},
      .requestedHandleTypes = BY_FD};
  size_t bytes = (size_t)c->n[3] << 21;
  CUresult result = cuMemCreate(&handle, bytes, &properties, 0);
  *c->t[0] =
      (thing){.context = (int)c->n[1], .device = (int)c->n[2], .handle = handle, .bytes = bytes};
  return result;
}

static CUresult release_physical(call *c) { return cuMemRelease(c->t[0]->handle); }

static CUresult map(call *c) {
  const thing *v = c->t[1];
  CUdeviceptr at = 0;
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = v->device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult result = cuMemAddressReserve(&at, v->bytes, 0, 0, 0);
  if (result == CUDA_SUCCESS) result = cuMemMap(at, v->bytes, 0, v->handle, 0);
  if (result == CUDA_SUCCESS) result = cuMemSetAccess(at, v->bytes, &access, 1);
  *c->t[0] = (thing){.context = v->context, .handle = at, .bytes = v->bytes};
  return result;
}

static CUresult unmap(call *c) {
  CUresult result = cuMemUnmap(c->t[0]->handle, c->t[0]->bytes);
  return result == CUDA_SUCCESS ? cuMemAddressFree(c->t[0]->handle, c->t[0]->bytes) : result;
}

static CUresult retain_physical(call *c) {
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = cuMemRetainAllocationHandle(&handle, (void *)c->t[1]->handle);
  *c->t[0] = (thing){.context = c->t[1]->context, .handle = handle, .bytes = c->t[1]->bytes};
  return result;
}

/* ---- arrays ---- */

static CUresult make_array(call *c) {
  CUarray array = NULL;
  CUDA_ARRAY3D_DESCRIPTOR d = {.Width = (size_t)c->n[2],
                               .Height = (size_t)c->n[3],
                               .Format = CU_AD_FORMAT_FLOAT,
                               .NumChannels = 4};
  CUresult result = cuArray3DCreate(&array, &d);
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = (uint64_t)array};
  return result;
}
static CUresult destroy_array(call *c) { return cuArrayDestroy((CUarray)c->t[0]->handle); }

const operation memory_operations[] = {{"alloc", "Bcn", allocate},
                                       {"pitch", "Bcnn", allocate_pitch},
                                       {"managed", "Bcn", allocate_managed},
                                       {"free", "!b", free_buffer},
                                       {"words", "Bcnn", make_words},
                                       {"word", "bn", read_word},
                                       {"fill", "sbnnn", fill},
                                       {"copy", "sbbn", copy},
                                       {"put", "sbnn", put},
                                       {"look", "b", look},
                                       {"vcreate", "Vcnn", create_physical},
                                       {"vrelease", "!v", release_physical},
                                       {"vmap", "Bv", map},
                                       {"vunmap", "!b", unmap},
                                       {"vretain", "Vb", retain_physical},
                                       {"array", "Ycnn", make_array},
                                       {"ydestroy", "!y", destroy_array},
                                       {0}};
