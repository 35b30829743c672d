/* Libraries: they belong to no context, and their code goes to each as it is used there.
 *
 * Charged with the size of the image and of its variables (image.h): in the current context when it
 * is loaded, in another one when a kernel, module or variable of it is asked for there. Without a
 * context the first granted device pays, until it is known where the library is used. A copy's
 * charge goes with its context. Not noticed: a launch in another context by a CUkernel that was got
 * in this one.
 */
#include "charge.h"
#include "hooks/global.h"
#include "hooks/hook.h"
#include "hooks/launch.h"
#include "image.h"

/* One entry a context; NULL: not known yet. */
static uint64_t copy_key(CUlibrary library, CUcontext context) {
  return (uint64_t)(uintptr_t)library * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)context;
}

static penstock_object copy_of(CUlibrary library, CUcontext context, int grant, uint64_t bytes) {
  return (penstock_object){.key = copy_key(library, context),
                           .bytes = bytes,
                           .detail = (uint64_t)(uintptr_t)library,
                           .context = context,
                           .grant = (int16_t)grant,
                           .kind = PENSTOCK_LIBRARY_COPY};
}

static int first_granted(void) {
  int count = 0, grant = -1;
  if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) return -1;
  for (CUdevice device = 0; device < count && grant < 0; device++) {
    grant = penstock_grant_of(device);
  }
  return grant;
}

static void remember(CUlibrary library, CUcontext context, int grant, penstock_image_size size) {
  uint64_t bytes = penstock_image_charge(size);
  penstock_object image = {.key = (uint64_t)(uintptr_t)library,
                           .bytes = penstock_image_covers(size),
                           .detail = bytes,
                           .grant = -1,
                           .kind = PENSTOCK_LIBRARY};
  penstock_object copy = copy_of(library, context, grant, bytes);
  penstock_object_put(&image);
  penstock_object_put(&copy);
}

#define LOAD(library, measure, call)                                                            \
  do {                                                                                          \
    CUcontext context = NULL;                                                                   \
    int grant = -1;                                                                             \
    if (penstock_here(&context, &grant) != CUDA_SUCCESS) {                                      \
      context = NULL;                                                                           \
      grant = first_granted();                                                                  \
    }                                                                                           \
    const penstock_image_size size = (measure);                                                 \
    const uint64_t bytes = penstock_image_charge(size);                                         \
    CUresult result =                                                                           \
        grant < 0 ? CUDA_SUCCESS : penstock_charge_hidden(grant, bytes, PENSTOCK_IMAGE_BLOCKS); \
    if (result != CUDA_SUCCESS) return result;                                                  \
    result = call;                                                                              \
    if (result == CUDA_SUCCESS && grant >= 0) {                                                 \
      remember(*(library), context, grant, size);                                               \
    } else {                                                                                    \
      penstock_uncharge_hidden(grant, bytes, PENSTOCK_IMAGE_BLOCKS);                            \
    }                                                                                           \
    return result;                                                                              \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuLibraryLoadData)(CUlibrary *library, const void *image,
                                              CUjit_option *jit_options, void **jit_values,
                                              unsigned int jit_count, CUlibraryOption *options,
                                              void **values, unsigned int count) {
  if (!library || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD(library, penstock_image_measure(image),
       REAL(cuLibraryLoadData)(library, image, jit_options, jit_values, jit_count, options, values,
                               count));
}

CUresult CUDAAPI HOOK_NAME(cuLibraryLoadFromFile)(CUlibrary *library, const char *file,
                                                  CUjit_option *jit_options, void **jit_values,
                                                  unsigned int jit_count, CUlibraryOption *options,
                                                  void **values, unsigned int count) {
  if (!library || !file) return CUDA_ERROR_INVALID_VALUE;
  LOAD(library, penstock_image_measure_file(file),
       REAL(cuLibraryLoadFromFile)(library, file, jit_options, jit_values, jit_count, options,
                                   values, count));
}

/* Charges the library in the current context if it is new there; `copy` says what was charged. */
static CUresult admit(CUlibrary library, penstock_object *copy, bool *is_new) {
  penstock_object image, unplaced;
  CUcontext context;
  int grant;
  *is_new = false;
  if (!penstock_object_find(PENSTOCK_LIBRARY, (uint64_t)(uintptr_t)library, &image) ||
      penstock_here(&context, &grant) != CUDA_SUCCESS) {
    return CUDA_SUCCESS; /* the driver says what is wrong, if anything is */
  }
  *copy = copy_of(library, context, grant, image.detail);
  if (penstock_object_find(PENSTOCK_LIBRARY_COPY, copy->key, NULL)) return CUDA_SUCCESS;
  bool was = penstock_object_take(PENSTOCK_LIBRARY_COPY, copy_key(library, NULL), &unplaced);
  if (!was || unplaced.grant != grant) {
    CUresult result = penstock_charge_hidden(grant, copy->bytes, PENSTOCK_IMAGE_BLOCKS);
    if (result != CUDA_SUCCESS) {
      if (was) penstock_object_put(&unplaced);
      return result;
    }
    if (was) penstock_give_back(&unplaced);
  }
  *is_new = penstock_object_add(copy);
  if (!*is_new) penstock_give_back(copy); /* another thread was first */
  return CUDA_SUCCESS;
}

static CUresult settle(const penstock_object *copy, bool is_new, CUresult result) {
  penstock_object taken;
  if (is_new && result != CUDA_SUCCESS &&
      penstock_object_take(PENSTOCK_LIBRARY_COPY, copy->key, &taken)) {
    penstock_give_back(&taken);
  }
  return result;
}

#define USE(library, call)                            \
  do {                                                \
    penstock_object copy;                             \
    bool is_new;                                      \
    CUresult result = admit(library, &copy, &is_new); \
    if (result != CUDA_SUCCESS) return result;        \
    return settle(&copy, is_new, call);               \
  } while (0)

/* Both kinds of handle can be launched. */
static CUresult kernels_of(CUlibrary library, const void *handles, unsigned int count,
                           CUresult result) {
  void *const *all = handles;
  for (unsigned int i = 0; result == CUDA_SUCCESS && library && i < count; i++) {
    penstock_gate_function_of(all[i], library);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuLibraryGetKernel)(CUkernel *kernel, CUlibrary library,
                                               const char *name) {
  USE(library, kernels_of(library, kernel, 1, REAL(cuLibraryGetKernel)(kernel, library, name)));
}

CUresult CUDAAPI HOOK_NAME(cuLibraryEnumerateKernels)(CUkernel *kernels, unsigned int count,
                                                      CUlibrary library) {
  USE(library, kernels_of(library, kernels, kernels ? count : 0,
                          REAL(cuLibraryEnumerateKernels)(kernels, count, library)));
}

CUresult CUDAAPI HOOK_NAME(cuLibraryGetModule)(CUmodule *module, CUlibrary library) {
  USE(library, REAL(cuLibraryGetModule)(module, library));
}

/* A variable of an image that did not say enough is charged as it is found. */
static CUresult found(CUlibrary library, CUdeviceptr address, size_t size, CUresult result) {
  penstock_object image;
  uint64_t owner = (uint64_t)(uintptr_t)library;
  if (result != CUDA_SUCCESS || !penstock_object_find(PENSTOCK_LIBRARY, owner, &image)) {
    return result;
  }
  return penstock_global_found(owner, image.bytes, address, size);
}

#define GET_VARIABLE(symbol)                                                                  \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUdeviceptr * pointer, size_t *bytes, CUlibrary library, \
                                     const char *name) {                                      \
    penstock_object copy;                                                                     \
    bool is_new;                                                                              \
    CUdeviceptr address = 0;                                                                  \
    size_t size = 0;                                                                          \
    CUresult result = admit(library, &copy, &is_new);                                         \
    if (result != CUDA_SUCCESS) return result;                                                \
    result = REAL(symbol)(&address, &size, library, name);                                    \
    result = found(library, address, size, settle(&copy, is_new, result));                    \
    if (result != CUDA_SUCCESS) return result;                                                \
    if (pointer) *pointer = address;                                                          \
    if (bytes) *bytes = size;                                                                 \
    return CUDA_SUCCESS;                                                                      \
  }
GET_VARIABLE(cuLibraryGetGlobal)
GET_VARIABLE(cuLibraryGetManaged)

CUresult CUDAAPI HOOK_NAME(cuKernelGetFunction)(CUfunction *function, CUkernel kernel) {
  CUlibrary library = NULL;
  if (REAL(cuKernelGetLibrary)(&library, kernel) != CUDA_SUCCESS) library = NULL;
  USE(library, kernels_of(library, function, 1, REAL(cuKernelGetFunction)(function, kernel)));
}

/* The copies are taken out before the driver may give the handle to another library. */
#define MOST_COPIES 64

typedef struct copies {
  uint64_t library;
  penstock_object all[MOST_COPIES];
  int count;
} copies;

static bool take_copy(penstock_object *copy, void *argument) {
  copies *c = argument;
  if (copy->detail != c->library || c->count == MOST_COPIES) return false;
  c->all[c->count++] = *copy;
  return true;
}

CUresult CUDAAPI HOOK_NAME(cuLibraryUnload)(CUlibrary library) {
  copies taken = {.library = (uint64_t)(uintptr_t)library};
  penstock_freeing freeing = penstock_free_begin(PENSTOCK_LIBRARY, taken.library);
  if (freeing.found) penstock_object_each(PENSTOCK_LIBRARY_COPY, take_copy, &taken);
  penstock_globals globals = penstock_globals_leave(taken.library);
  CUresult result = penstock_free_end(&freeing, REAL(cuLibraryUnload)(library));
  penstock_globals_left(&globals, result);
  for (int i = 0; i < taken.count; i++) {
    if (result == CUDA_SUCCESS) {
      penstock_give_back(&taken.all[i]);
    } else {
      penstock_object_put(&taken.all[i]);
    }
  }
  if (result == CUDA_SUCCESS) penstock_gate_forget_functions(library);
  return result;
}
