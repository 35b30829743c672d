/* Libraries. They belong to no context, and their code is loaded into each context that uses
 * them.
 *
 * For each context, a library is charged the size of the image that the device loads and of its
 * variables (image.h). With lazy loading it is charged when the context first needs a function, a
 * module, a variable or a kernel of the library. With eager loading it is charged in all contexts
 * when the library is loaded, and in later contexts when they are created. The charge ends with the
 * context. */
#include "hooks/library.h"

#include <stdlib.h>

#include "contexts/contexts.h"
#include "memory/charge.h"
#include "hooks/global.h"
#include "hooks/hook.h"
#include "hooks/launch.h"
#include "hooks/local_memory.h"
#include "images/image.h"

bool penstock_loads_lazily(void) {
  CUmoduleLoadingMode mode;
  return REAL(cuModuleGetLoadingMode)(&mode) == CUDA_SUCCESS && mode == CU_MODULE_LAZY_LOADING;
}

unsigned penstock_architecture_of(CUdevice device) {
  int major = 0, minor = 0;
  REAL(cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  REAL(cuDeviceGetAttribute)(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  return (unsigned)(major * 10 + minor);
}

/* Returns the key of a library's entry for a granted device. Each device has its own entry because
 * it may use another image of a fat binary. */
static uint64_t image_key(CUlibrary library, int grant) {
  return (uint64_t)(uintptr_t)library * PENSTOCK_MAX_DEVICES + (uint64_t)grant;
}

static CUlibrary library_of(const penstock_object *image) {
  return (CUlibrary)(uintptr_t)(image->key / PENSTOCK_MAX_DEVICES);
}

/* Returns a library's entry for one context. */
static penstock_object copy_of(CUlibrary library, CUcontext context, int grant, uint64_t bytes) {
  uint64_t owner = (uint64_t)(uintptr_t)library;
  return (penstock_object){.key = owner * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)context,
                           .bytes = bytes,
                           .detail = owner,
                           .context = context,
                           .grant = (int16_t)grant,
                           .kind = PENSTOCK_LIBRARY_COPY};
}

/* ---- loading ---- */

typedef struct loading {
  penstock_object images[PENSTOCK_MAX_DEVICES]; /* indexed by grant; kind 0 if the device is not
                                                   granted or not visible */
  penstock_object *contexts;                    /* contexts into which eager loading puts a copy */
  size_t count, room;
} loading;

typedef struct measuring {
  const void *image;
  const char *file; /* file to load in place of an image */
  unsigned architecture;
  penstock_image_size size;
} measuring;

static void measure(measuring *m, unsigned architecture) {
  if (m->architecture == architecture) return;
  m->architecture = architecture;
  m->size = m->file ? penstock_image_measure_file(m->file, architecture)
                    : penstock_image_measure(m->image, architecture);
}

static void measure_all(loading *l, const void *image, const char *file) {
  measuring m = {.image = image, .file = file};
  int count = 0;
  if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) return;
  for (CUdevice device = 0; device < count; device++) {
    int grant = penstock_grant_of(device);
    if (grant < 0 || grant >= PENSTOCK_MAX_DEVICES) continue;
    measure(&m, penstock_architecture_of(device));
    l->images[grant] = (penstock_object){.bytes = penstock_image_covers(&m.size),
                                         .detail = penstock_image_charge(&m.size),
                                         .grant = (int16_t)grant,
                                         .kind = PENSTOCK_LIBRARY};
  }
}

static bool add_context(penstock_object *context, void *argument) {
  loading *l = argument;
  if (l->count == l->room) {
    size_t room = l->room ? l->room * 2 : 16;
    penstock_object *larger = realloc(l->contexts, room * sizeof *larger);
    /* Without memory for a larger list, the library is charged in the remaining contexts at its
     * first use there. */
    if (!larger) return false;
    l->contexts = larger;
    l->room = room;
  }
  l->contexts[l->count++] = *context;
  return false;
}

static uint64_t cost_in(const loading *l, const penstock_object *context) {
  return context->grant < 0 ? 0 : l->images[context->grant].detail;
}

static void give_up(loading *l) {
  for (size_t i = 0; i < l->count; i++) {
    penstock_uncharge_hidden(l->contexts[i].grant, cost_in(l, &l->contexts[i]),
                             PENSTOCK_IMAGE_BLOCKS);
  }
  l->count = 0;
}

static CUresult admit_eagerly(loading *l) {
  CUcontext context;
  int grant;
  penstock_here(&context, &grant); /* records a context whose creation the shim did not see */
  penstock_object_each(PENSTOCK_CONTEXT, add_context, l);
  size_t count = l->count;
  for (l->count = 0; l->count < count; l->count++) {
    const penstock_object *one = &l->contexts[l->count];
    CUresult result = penstock_charge_urgent(one->grant, cost_in(l, one), PENSTOCK_IMAGE_BLOCKS);
    if (result == CUDA_SUCCESS) continue;
    give_up(l);
    return result;
  }
  return CUDA_SUCCESS;
}

static CUresult admit_library(loading *l, const void *image, const char *file) {
  measure_all(l, image, file);
  CUresult result = penstock_loads_lazily() ? CUDA_SUCCESS : admit_eagerly(l);
  if (result != CUDA_SUCCESS) free(l->contexts);
  return result;
}

static CUresult loaded(loading *l, CUlibrary *library, CUresult result) {
  if (result != CUDA_SUCCESS) give_up(l);
  for (int grant = 0; result == CUDA_SUCCESS && grant < PENSTOCK_MAX_DEVICES; grant++) {
    l->images[grant].key = image_key(*library, grant);
    if (l->images[grant].kind) penstock_object_put(&l->images[grant]);
  }
  for (size_t i = 0; i < l->count; i++) {
    const penstock_object *one = &l->contexts[i];
    penstock_object copy =
        copy_of(*library, (CUcontext)(uintptr_t)one->key, one->grant, cost_in(l, one));
    penstock_object_put(&copy);
  }
  free(l->contexts);
  return result;
}

#define LOAD(library, image, file, call)                  \
  do {                                                    \
    loading load = {.count = 0};                          \
    CUresult refused = admit_library(&load, image, file); \
    if (refused != CUDA_SUCCESS) return refused;          \
    return loaded(&load, library, call);                  \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuLibraryLoadData)(CUlibrary *library, const void *image,
                                              CUjit_option *jit_options, void **jit_values,
                                              unsigned int jit_count, CUlibraryOption *options,
                                              void **values, unsigned int count) {
  if (!library || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD(library, image, NULL,
       REAL(cuLibraryLoadData)(library, image, jit_options, jit_values, jit_count, options, values,
                               count));
}

CUresult CUDAAPI HOOK_NAME(cuLibraryLoadFromFile)(CUlibrary *library, const char *file,
                                                  CUjit_option *jit_options, void **jit_values,
                                                  unsigned int jit_count, CUlibraryOption *options,
                                                  void **values, unsigned int count) {
  if (!library || !file) return CUDA_ERROR_INVALID_VALUE;
  LOAD(library, NULL, file,
       REAL(cuLibraryLoadFromFile)(library, file, jit_options, jit_values, jit_count, options,
                                   values, count));
}

/* ---- eager loading into a new context ---- */

/* Returns the charge of eager copies, in whole slabs because the places of their parts are not
 * known beforehand. */
static uint64_t in_slabs(uint64_t bytes) {
  uint64_t most = UINT64_MAX - PENSTOCK_SLAB_BYTES;
  if (bytes == 0 || bytes > most) return bytes;
  bytes = (bytes + PENSTOCK_SLAB_BYTES - 1) / PENSTOCK_SLAB_BYTES * PENSTOCK_SLAB_BYTES;
  return bytes < PENSTOCK_IMAGE_BLOCKS * PENSTOCK_SLAB_BYTES
             ? PENSTOCK_IMAGE_BLOCKS * PENSTOCK_SLAB_BYTES
             : bytes;
}

typedef struct entering {
  int grant;
  uint64_t bytes;
  penstock_object *images;
  size_t count, room;
} entering;

static bool add_up(penstock_object *image, void *argument) {
  entering *e = argument;
  if (image->grant == e->grant &&
      __builtin_add_overflow(e->bytes, in_slabs(image->detail), &e->bytes)) {
    e->bytes = UINT64_MAX;
  }
  return false;
}

uint64_t penstock_libraries_eager_bytes(int grant) {
  entering e = {.grant = grant};
  if (grant >= 0 && !penstock_loads_lazily()) penstock_object_each(PENSTOCK_LIBRARY, add_up, &e);
  return e.bytes;
}

static bool gather(penstock_object *image, void *argument) {
  entering *e = argument;
  if (image->grant != e->grant) return false;
  if (e->count == e->room) {
    size_t room = e->room ? e->room * 2 : 16;
    penstock_object *larger = realloc(e->images, room * sizeof *larger);
    if (!larger) return false; /* the charge of this copy stays with the context */
    e->images = larger;
    e->room = room;
  }
  e->images[e->count++] = *image;
  return false;
}

uint64_t penstock_libraries_enter(CUcontext context, int grant, uint64_t bytes) {
  entering e = {.grant = grant};
  if (bytes) penstock_object_each(PENSTOCK_LIBRARY, gather, &e);
  for (size_t i = 0; i < e.count; i++) {
    penstock_object copy =
        copy_of(library_of(&e.images[i]), context, grant, in_slabs(e.images[i].detail));
    if (copy.bytes <= bytes && penstock_object_add(&copy)) bytes -= copy.bytes;
  }
  free(e.images);
  return bytes;
}

/* ---- use ---- */

/* Charges the library in a context if it is new there. `copy` receives the entry of the charge. */
static CUresult admit_in(CUlibrary library, CUcontext context, int grant, penstock_object *copy,
                         bool *is_new) {
  penstock_object image;
  *is_new = false;
  if (grant < 0 || !penstock_object_find(PENSTOCK_LIBRARY, image_key(library, grant), &image)) {
    return CUDA_SUCCESS; /* the driver returns any error */
  }
  *copy = copy_of(library, context, grant, image.detail);
  if (penstock_object_find(PENSTOCK_LIBRARY_COPY, copy->key, NULL)) return CUDA_SUCCESS;
  CUresult result = penstock_charge_urgent(grant, copy->bytes, PENSTOCK_IMAGE_BLOCKS);
  if (result != CUDA_SUCCESS) return result;
  *is_new = penstock_object_add(copy);
  if (!*is_new) penstock_give_back(copy); /* another thread has charged the library first */
  return CUDA_SUCCESS;
}

static CUresult admit(CUlibrary library, penstock_object *copy, bool *is_new) {
  CUcontext context;
  int grant;
  *is_new = false;
  if (penstock_here(&context, &grant) != CUDA_SUCCESS) return CUDA_SUCCESS;
  return admit_in(library, context, grant, copy, is_new);
}

/* Ends a use of a library. After CUDA_ERROR_NOT_FOUND the charge stays, because the driver has
 * loaded the library to search it. */
static CUresult settle(const penstock_object *copy, bool is_new, CUresult result) {
  penstock_object taken;
  if (is_new && result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND &&
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

CUresult CUDAAPI HOOK_NAME(cuLibraryGetModule)(CUmodule *module, CUlibrary library) {
  USE(library, REAL(cuLibraryGetModule)(module, library));
}

CUresult CUDAAPI HOOK_NAME(cuLibraryGetUnifiedFunction)(void **function, CUlibrary library,
                                                        const char *name) {
  USE(library, REAL(cuLibraryGetUnifiedFunction)(function, library, name));
}

/* Charges a variable that the image does not declare when the variable is looked up. */
static CUresult found(CUlibrary library, CUdeviceptr address, size_t size, CUresult result) {
  penstock_object image;
  CUcontext context;
  int grant;
  if (result != CUDA_SUCCESS || penstock_here(&context, &grant) != CUDA_SUCCESS || grant < 0 ||
      !penstock_object_find(PENSTOCK_LIBRARY, image_key(library, grant), &image)) {
    return result;
  }
  return penstock_global_found((uint64_t)(uintptr_t)library, image.bytes, address, size);
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

/* ---- kernels ---- */

/* Records a kernel's library, because a kernel may be launched in any context. */
static void remember_kernel(CUkernel kernel, CUlibrary library) {
  penstock_object entry = {.key = (uint64_t)(uintptr_t)kernel,
                           .detail = (uint64_t)(uintptr_t)library,
                           .grant = -1,
                           .kind = PENSTOCK_KERNEL};
  penstock_object_put(&entry);
  penstock_gate_function_of(kernel, library);
}

CUresult CUDAAPI HOOK_NAME(cuLibraryGetKernel)(CUkernel *kernel, CUlibrary library,
                                               const char *name) {
  CUresult result = REAL(cuLibraryGetKernel)(kernel, library, name);
  if (result == CUDA_SUCCESS) remember_kernel(*kernel, library);
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuLibraryEnumerateKernels)(CUkernel *kernels, unsigned int count,
                                                      CUlibrary library) {
  unsigned int all = 0;
  CUresult result = REAL(cuLibraryEnumerateKernels)(kernels, count, library);
  if (result != CUDA_SUCCESS || REAL(cuLibraryGetKernelCount)(&all, library) != CUDA_SUCCESS) {
    return result;
  }
  for (unsigned int i = 0; i < count && i < all; i++) remember_kernel(kernels[i], library);
  return result;
}

static CUlibrary library_of_kernel(const void *kernel) {
  penstock_object entry;
  return penstock_object_find(PENSTOCK_KERNEL, (uint64_t)(uintptr_t)kernel, &entry)
             ? (CUlibrary)(uintptr_t)entry.detail
             : NULL;
}

bool penstock_is_kernel(CUfunction function) { return library_of_kernel(function) != NULL; }

CUresult penstock_library_use(CUfunction function, CUcontext context, int grant) {
  penstock_object copy;
  bool is_new;
  CUlibrary library = library_of_kernel(function);
  return library ? admit_in(library, context, grant, &copy, &is_new) : CUDA_SUCCESS;
}

CUcontext penstock_function_context(CUfunction function) {
  penstock_object entry;
  uint64_t key = (uint64_t)(uintptr_t)function;
  return penstock_object_find(PENSTOCK_FUNCTION, key, &entry) ? entry.context : NULL;
}

void penstock_function_got(CUfunction function, uint64_t owner, CUcontext context) {
  penstock_object entry = {.key = (uint64_t)(uintptr_t)function,
                           .detail = owner,
                           .context = context,
                           .grant = -1,
                           .kind = PENSTOCK_FUNCTION};
  penstock_object_put(&entry);
  penstock_gate_function_of(function, (const void *)(uintptr_t)owner);
}

static CUresult got_function(CUlibrary library, const CUfunction *function, CUresult result) {
  CUcontext context;
  int grant;
  if (result == CUDA_SUCCESS && library && penstock_here(&context, &grant) == CUDA_SUCCESS) {
    penstock_function_got(*function, (uint64_t)(uintptr_t)library, context);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuKernelGetFunction)(CUfunction *function, CUkernel kernel) {
  CUlibrary library = library_of_kernel(kernel);
  USE(library, got_function(library, function, REAL(cuKernelGetFunction)(function, kernel)));
}

/* Calls that may load a kernel into the current context, because they accept a CUkernel as a
 * CUfunction. */
#define LOADING(symbol, parameters, arguments)       \
  CUresult CUDAAPI HOOK_NAME(symbol) parameters {    \
    CUlibrary library = library_of_kernel(function); \
    if (!library) return REAL(symbol) arguments;     \
    USE(library, REAL(symbol) arguments);            \
  }
LOADING(cuFuncLoad, (CUfunction function), (function))
LOADING(cuFuncGetModule, (CUmodule * module, CUfunction function), (module, function))
LOADING(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function),
        (value, attribute, function))
LOADING(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value),
        (function, attribute, value))
LOADING(cuFuncSetCacheConfig, (CUfunction function, CUfunc_cache config), (function, config))
LOADING(cuFuncSetSharedMemConfig, (CUfunction function, CUsharedconfig config), (function, config))

CUresult CUDAAPI HOOK_NAME(cuLibraryUnload)(CUlibrary library) {
  penstock_object images[PENSTOCK_MAX_DEVICES];
  bool found_image[PENSTOCK_MAX_DEVICES];
  penstock_belongings belongings = {.owner = (uint64_t)(uintptr_t)library};
  for (int grant = 0; grant < PENSTOCK_MAX_DEVICES; grant++) {
    found_image[grant] =
        penstock_object_take(PENSTOCK_LIBRARY, image_key(library, grant), &images[grant]);
  }
  penstock_belongings_take(&belongings, PENSTOCK_LIBRARY_COPY);
  penstock_belongings_take(&belongings, PENSTOCK_GLOBAL);
  penstock_belongings_take(&belongings, PENSTOCK_KERNEL);
  penstock_belongings_take(&belongings, PENSTOCK_FUNCTION);
  CUresult result = REAL(cuLibraryUnload)(library);
  for (int grant = 0; grant < PENSTOCK_MAX_DEVICES; grant++) {
    if (found_image[grant] && result != CUDA_SUCCESS) penstock_object_put(&images[grant]);
  }
  penstock_belongings_left(&belongings, result);
  penstock_functions_go();
  if (result == CUDA_SUCCESS) penstock_gate_forget_functions(library);
  return result;
}
