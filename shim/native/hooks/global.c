#include "hooks/global.h"

#include <stdlib.h>

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
  if (!penstock_object_add(&variable)) penstock_give_back(&variable); /* another was first */
  return CUDA_SUCCESS;
}

static bool take(penstock_object *object, void *argument) {
  penstock_globals *g = argument;
  if (object->detail != g->owner) return false;
  if (g->count == g->room) {
    uint64_t room = g->room ? g->room * 2 : 16;
    penstock_object *larger = realloc(g->all, room * sizeof *larger);
    if (!larger) return false; /* stays charged until the context ends */
    g->all = larger;
    g->room = room;
  }
  g->all[g->count++] = *object;
  return true;
}

penstock_globals penstock_globals_leave(uint64_t owner) {
  penstock_globals globals = {.owner = owner};
  penstock_object_each(PENSTOCK_GLOBAL, take, &globals);
  return globals;
}

void penstock_globals_left(penstock_globals *globals, CUresult result) {
  for (uint64_t i = 0; i < globals->count; i++) {
    if (result == CUDA_SUCCESS) {
      penstock_give_back(&globals->all[i]);
    } else {
      penstock_object_put(&globals->all[i]);
    }
  }
  free(globals->all);
}

/* The first version says the size in 32 bits. */
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
