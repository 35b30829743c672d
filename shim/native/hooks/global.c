#include "hooks/global.h"

#include <stdlib.h>

#include "contexts/contexts.h"
#include "hooks/hook.h"

CUresult penstock_global_found(uint64_t owner, uint64_t covered, CUdeviceptr address,
                               uint64_t bytes) {
  CUcontext context;
  int grant;
  if (bytes <= covered || penstock_object_find(PENSTOCK_GLOBAL, address, NULL)) return CUDA_SUCCESS;
  CUresult result = penstock_here(&context, &grant);
  if (result != CUDA_SUCCESS) return result;
  penstock_object variable = {.key = address,
                              .bytes = penstock_whole_slabs(bytes),
                              .detail = owner,
                              .context = context,
                              .grant = (int16_t)grant,
                              .kind = PENSTOCK_GLOBAL};
  result = penstock_charge_hidden(grant, variable.bytes, PENSTOCK_IMAGE_BLOCKS);
  if (result != CUDA_SUCCESS) return result;
  /* Another thread has charged the variable first. */
  if (!penstock_object_add(&variable)) penstock_give_back(&variable);
  return CUDA_SUCCESS;
}

static bool take(penstock_object *object, void *argument) {
  penstock_belongings *b = argument;
  if (object->detail != b->owner) return false;
  if (b->count == b->room) {
    uint64_t room = b->room ? b->room * 2 : 16;
    penstock_object *larger = realloc(b->all, room * sizeof *larger);
    /* Without memory for a larger list, the rest stays charged until the context ends. */
    if (!larger) return false;
    b->all = larger;
    b->room = room;
  }
  b->all[b->count++] = *object;
  return true;
}

void penstock_belongings_take(penstock_belongings *belongings, penstock_kind kind) {
  penstock_object_each(kind, take, belongings);
}

void penstock_belongings_left(penstock_belongings *belongings, CUresult result) {
  for (uint64_t i = 0; i < belongings->count; i++) {
    if (result == CUDA_SUCCESS) {
      penstock_give_back(&belongings->all[i]);
    } else {
      penstock_object_put(&belongings->all[i]);
    }
  }
  free(belongings->all);
}

/* The first version of this function returns a 32-bit size. */
#define GET_GLOBAL(symbol, address_type, size_type)                                              \
  CUresult CUDAAPI HOOK_NAME(symbol)(address_type * pointer, size_type * bytes, CUmodule module, \
                                     const char *name) {                                         \
    address_type address = 0;                                                                    \
    size_type size = 0;                                                                          \
    penstock_object image;                                                                       \
    uint64_t owner = (uint64_t)(uintptr_t)module;                                                \
    CUresult result = REAL(symbol)(&address, &size, module, name);                               \
    if (result == CUDA_SUCCESS && penstock_object_find(PENSTOCK_MODULE, owner, &image)) {        \
      result = penstock_global_found(owner, image.detail, address, size);                        \
    }                                                                                            \
    if (result != CUDA_SUCCESS) return result;                                                   \
    if (pointer) *pointer = address;                                                             \
    if (bytes) *bytes = size;                                                                    \
    return CUDA_SUCCESS;                                                                         \
  }
GET_GLOBAL(cuModuleGetGlobal, CUdeviceptr_v1, unsigned int)
GET_GLOBAL(cuModuleGetGlobal_v2, CUdeviceptr, size_t)
