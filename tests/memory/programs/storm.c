/* Allocates and frees memory of every family at random, for ever or COUNT times: storm SEED COUNT
 *
 * Any answer but success and out-of-memory is an error. Prints how many were granted and refused.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELD 48
#define MIB ((size_t)1 << 20)

enum family {
  LINEAR,
  PITCHED,
  MANAGED,
  PHYSICAL,
  MAPPED,
  ARRAY,
  MIPMAP,
  POOL,
  OWN_POOL,
  MODULE,
  LIBRARY,
  GRAPH,
  LIMIT,
  FAMILIES
};

static const char ptx[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";

typedef struct piece {
  enum family family;
  CUdeviceptr pointer;
  size_t bytes;
  CUmemGenericAllocationHandle physical;
  void *handle;
} piece;

static CUstream stream;
static CUmemoryPool pool;
static unsigned seed;

static size_t some(size_t most) { return 1 + (size_t)rand_r(&seed) % most; }

static void must(const char *call, CUresult result) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: CUDA error %d\n", call, result);
  exit(1);
}
#define MUST(call) must(#call, call)

static CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};

static CUresult take_physical(piece *p) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
  p->bytes = 2 * MIB * some(4);
  CUresult result = cuMemCreate(&p->physical, p->bytes, &properties, 0);
  if (result != CUDA_SUCCESS || p->family == PHYSICAL) return result;
  MUST(cuMemAddressReserve(&p->pointer, p->bytes, 0, 0, 0));
  MUST(cuMemMap(p->pointer, p->bytes, 0, p->physical, 0));
  MUST(cuMemRelease(p->physical));
  return result;
}

static CUresult take_array(piece *p) {
  CUDA_ARRAY3D_DESCRIPTOR d = {.Width = some(1024),
                               .Height = some(512),
                               .Depth = 0,
                               .Format = CU_AD_FORMAT_FLOAT,
                               .NumChannels = 4};
  return p->family == ARRAY ? cuArray3DCreate((CUarray *)&p->handle, &d)
                            : cuMipmappedArrayCreate((CUmipmappedArray *)&p->handle, &d, 3);
}

static CUresult take_graph(piece *p) {
  CUDA_MEM_ALLOC_NODE_PARAMS wanted = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here},
      .bytesize = MIB * some(4)};
  CUgraph graph;
  CUgraphNode node, give;
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &wanted));
  MUST(cuGraphAddMemFreeNode(&give, graph, &node, 1, wanted.dptr));
  MUST(cuGraphInstantiate((CUgraphExec *)&p->handle, graph, 0));
  MUST(cuGraphDestroy(graph));
  CUresult result = cuGraphLaunch(p->handle, stream);
  if (result != CUDA_SUCCESS) MUST(cuGraphExecDestroy(p->handle));
  return result;
}

static CUresult take(piece *p) {
  size_t pitch;
  switch (p->family) {
    case LINEAR:
      return cuMemAlloc(&p->pointer, some(4 * MIB));
    case PITCHED:
      return cuMemAllocPitch(&p->pointer, &pitch, some(4096), some(512), 4);
    case MANAGED:
      return cuMemAllocManaged(&p->pointer, some(4 * MIB), CU_MEM_ATTACH_GLOBAL);
    case PHYSICAL:
    case MAPPED:
      return take_physical(p);
    case ARRAY:
    case MIPMAP:
      return take_array(p);
    case POOL:
      return cuMemAllocAsync(&p->pointer, some(4 * MIB), stream);
    case OWN_POOL:
      return cuMemAllocFromPoolAsync(&p->pointer, some(4 * MIB), pool, stream);
    case MODULE:
      return cuModuleLoadData((CUmodule *)&p->handle, ptx);
    case LIBRARY:
      return cuLibraryLoadData((CUlibrary *)&p->handle, ptx, NULL, NULL, 0, NULL, NULL, 0);
    case GRAPH:
      return take_graph(p);
    case LIMIT:
      return cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB + some(8 * MIB));
    case FAMILIES:
      break;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

static void give_back(piece *p) {
  switch (p->family) {
    case LINEAR:
    case PITCHED:
    case MANAGED:
      return MUST(cuMemFree(p->pointer));
    case PHYSICAL:
      return MUST(cuMemRelease(p->physical));
    case MAPPED:
      MUST(cuMemUnmap(p->pointer, p->bytes));
      return MUST(cuMemAddressFree(p->pointer, p->bytes));
    case ARRAY:
      return MUST(cuArrayDestroy(p->handle));
    case MIPMAP:
      return MUST(cuMipmappedArrayDestroy(p->handle));
    case POOL:
    case OWN_POOL:
      return MUST(cuMemFreeAsync(p->pointer, stream));
    case MODULE:
      return MUST(cuModuleUnload(p->handle));
    case LIBRARY:
      return MUST(cuLibraryUnload(p->handle));
    case GRAPH:
      MUST(cuGraphExecDestroy(p->handle));
      return MUST(cuDeviceGraphMemTrim(0));
    case LIMIT:
      return MUST(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB));
    case FAMILIES:
      break;
  }
}

static void begin(void) {
  CUcontext context;
  CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
  MUST(cuInit(0));
  CUresult result;
  while ((result = cuDevicePrimaryCtxRetain(&context, 0)) == CUDA_ERROR_OUT_OF_MEMORY) continue;
  must("cuDevicePrimaryCtxRetain", result);
  MUST(cuCtxSetCurrent(context));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemPoolCreate(&pool, &properties));
}

int main(int count, char **words) {
  if (count < 3) return 2;
  seed = (unsigned)atoi(words[1]);
  long rounds = atol(words[2]), granted[FAMILIES] = {0}, refused = 0;
  piece held[HELD];
  memset(held, 0xff, sizeof held);
  begin();
  for (long i = 0; i < rounds; i++) {
    piece *p = &held[rand_r(&seed) % HELD];
    if (p->family < FAMILIES) give_back(p);
    p->family = (enum family)(rand_r(&seed) % FAMILIES);
    CUresult result = take(p);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
      fprintf(stderr, "family %d: CUDA error %d\n", p->family, result);
      return 1;
    }
    granted[p->family] += result == CUDA_SUCCESS;
    refused += result != CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) p->family = FAMILIES;
  }
  for (int i = 0; i < HELD; i++) {
    if (held[i].family < FAMILIES) give_back(&held[i]);
  }
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemPoolDestroy(pool));
  for (int i = 0; i < FAMILIES; i++) printf("%ld ", granted[i]);
  printf("%ld\n", refused);
  MUST(cuDevicePrimaryCtxReset(0));
  return 0;
}
