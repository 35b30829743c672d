/* Memory in stream order: pools, and what is taken from them. */
#include "player.h"

static CUmemoryPool pool_of(const thing *t) { return (CUmemoryPool)t->handle; }

static CUresult make_pool(call *c) {
  CUmemoryPool pool = NULL;
  CUmemPoolProps properties = {
      .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
      .handleTypes = c->n[3] ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)c->n[2]}};
  CUresult result = cuMemPoolCreate(&pool, &properties);
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = (uint64_t)pool};
  return result;
}

static CUresult default_pool(call *c) {
  CUmemoryPool pool = NULL;
  CUresult result = cuDeviceGetDefaultMemPool(&pool, (CUdevice)c->n[2]);
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = (uint64_t)pool};
  return result;
}

static CUresult destroy_pool(call *c) { return cuMemPoolDestroy(pool_of(c->t[0])); }
static CUresult trim(call *c) { return cuMemPoolTrimTo(pool_of(c->t[0]), (size_t)c->n[1] << 20); }

static CUresult set_threshold(call *c) {
  uint64_t bytes = (uint64_t)c->n[1] << 20;
  return cuMemPoolSetAttribute(pool_of(c->t[0]), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes);
}

static CUresult use_pool(call *c) {
  return cuDeviceSetMemPool((CUdevice)c->n[1], pool_of(c->t[0]));
}

static CUresult allocate(call *c) {
  CUdeviceptr pointer = 0;
  size_t bytes = (size_t)c->n[2] << 10;
  CUresult result = cuMemAllocAsync(&pointer, bytes, (CUstream)c->t[1]->handle);
  *c->t[0] = (thing){.context = c->t[1]->context, .handle = pointer, .bytes = bytes};
  return result;
}

static CUresult allocate_from(call *c) {
  CUdeviceptr pointer = 0;
  size_t bytes = (size_t)c->n[3] << 10;
  CUresult result =
      cuMemAllocFromPoolAsync(&pointer, bytes, pool_of(c->t[2]), (CUstream)c->t[1]->handle);
  *c->t[0] = (thing){.context = c->t[1]->context, .handle = pointer, .bytes = bytes};
  return result;
}

static CUresult give_back(call *c) {
  return cuMemFreeAsync(c->t[1]->handle, (CUstream)c->t[0]->handle);
}

const operation pool_operations[] = {
    {"pool", "Pcnn", make_pool},        {"defpool", "Pcn", default_pool},
    {"pdestroy", "!p", destroy_pool},   {"trim", "pn", trim},
    {"threshold", "pn", set_threshold}, {"usepool", "pn", use_pool},
    {"aalloc", "Bsn", allocate},        {"palloc", "Bspn", allocate_from},
    {"afree", "s!b", give_back},        {0}};
