/* Modules and libraries: code and global data take device memory. Charged with the size of their
 * image, as an estimate (image.h). */
#include "charge.h"
#include "hooks/hook.h"
#include "hooks/launch.h"
#include "image.h"

/* A module lives and dies with its context. */
#define LOAD_MODULE(module, bytes_needed, call)                                             \
  do {                                                                                      \
    CUcontext context;                                                                      \
    int grant;                                                                              \
    const uint64_t bytes = (bytes_needed);                                                  \
    CUresult result = PENSTOCK_BELOW(penstock_here(&context, &grant));                      \
    if (result == CUDA_SUCCESS) result = penstock_charge(grant, bytes);                     \
    if (result != CUDA_SUCCESS) return result;                                              \
    result = PENSTOCK_BELOW(call);                                                          \
    if (result != CUDA_SUCCESS) {                                                           \
      penstock_uncharge(grant, bytes);                                                      \
      return result;                                                                        \
    }                                                                                       \
    penstock_object_remember(PENSTOCK_MODULE, (uint64_t)(uintptr_t)*(module), grant, bytes, \
                             context);                                                      \
    return CUDA_SUCCESS;                                                                    \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuModuleLoad)(CUmodule *module, const char *file) {
  PENSTOCK_PASS(cuModuleLoad, module, file);
  if (!module || !file) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_file_bytes(file), REAL(cuModuleLoad)(module, file));
}

CUresult CUDAAPI HOOK_NAME(cuModuleLoadData)(CUmodule *module, const void *image) {
  PENSTOCK_PASS(cuModuleLoadData, module, image);
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_bytes(image), REAL(cuModuleLoadData)(module, image));
}

CUresult CUDAAPI HOOK_NAME(cuModuleLoadDataEx)(CUmodule *module, const void *image,
                                               unsigned int count, CUjit_option *options,
                                               void **values) {
  PENSTOCK_PASS(cuModuleLoadDataEx, module, image, count, options, values);
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_bytes(image),
              REAL(cuModuleLoadDataEx)(module, image, count, options, values));
}

CUresult CUDAAPI HOOK_NAME(cuModuleLoadFatBinary)(CUmodule *module, const void *image) {
  PENSTOCK_PASS(cuModuleLoadFatBinary, module, image);
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_bytes(image), REAL(cuModuleLoadFatBinary)(module, image));
}

CUresult CUDAAPI HOOK_NAME(cuModuleUnload)(CUmodule module) {
  PENSTOCK_PASS(cuModuleUnload, module);
  penstock_freeing freeing = penstock_free_begin(PENSTOCK_MODULE, (uint64_t)(uintptr_t)module);
  CUresult result = penstock_free_end(&freeing, PENSTOCK_BELOW(REAL(cuModuleUnload)(module)));
  if (result == CUDA_SUCCESS) penstock_gate_forget_functions();
  return result;
}

/* A library belongs to no context; it goes to each device as it is used there. Charged once: to the
 * current device, or without a context to the first one granted. */
static int grant_of_library(void) {
  CUcontext context = NULL;
  int grant = -1, count = 0;
  if (penstock_here(&context, &grant) == CUDA_SUCCESS) return grant;
  if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) return -1;
  for (CUdevice device = 0; device < count && grant < 0; device++) {
    grant = penstock_grant_of(device);
  }
  return grant;
}

#define LOAD_LIBRARY(library, bytes_needed, call)                                               \
  do {                                                                                          \
    int grant = PENSTOCK_BELOW(grant_of_library());                                             \
    const uint64_t bytes = (bytes_needed);                                                      \
    CUresult result = grant < 0 ? CUDA_SUCCESS : penstock_charge(grant, bytes);                 \
    if (result != CUDA_SUCCESS) return result;                                                  \
    result = PENSTOCK_BELOW(call);                                                              \
    if (result == CUDA_SUCCESS && grant >= 0) {                                                 \
      penstock_object_remember(PENSTOCK_LIBRARY, (uint64_t)(uintptr_t)*(library), grant, bytes, \
                               NULL);                                                           \
    } else {                                                                                    \
      penstock_uncharge(grant, bytes);                                                          \
    }                                                                                           \
    return result;                                                                              \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuLibraryLoadData)(CUlibrary *library, const void *image,
                                              CUjit_option *jit_options, void **jit_values,
                                              unsigned int jit_count, CUlibraryOption *options,
                                              void **values, unsigned int count) {
  PENSTOCK_PASS(cuLibraryLoadData, library, image, jit_options, jit_values, jit_count, options,
                values, count);
  if (!library || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD_LIBRARY(library, penstock_image_bytes(image),
               REAL(cuLibraryLoadData)(library, image, jit_options, jit_values, jit_count, options,
                                       values, count));
}

CUresult CUDAAPI HOOK_NAME(cuLibraryLoadFromFile)(CUlibrary *library, const char *file,
                                                  CUjit_option *jit_options, void **jit_values,
                                                  unsigned int jit_count, CUlibraryOption *options,
                                                  void **values, unsigned int count) {
  PENSTOCK_PASS(cuLibraryLoadFromFile, library, file, jit_options, jit_values, jit_count, options,
                values, count);
  if (!library || !file) return CUDA_ERROR_INVALID_VALUE;
  LOAD_LIBRARY(library, penstock_image_file_bytes(file),
               REAL(cuLibraryLoadFromFile)(library, file, jit_options, jit_values, jit_count,
                                           options, values, count));
}

CUresult CUDAAPI HOOK_NAME(cuLibraryUnload)(CUlibrary library) {
  PENSTOCK_PASS(cuLibraryUnload, library);
  penstock_freeing freeing = penstock_free_begin(PENSTOCK_LIBRARY, (uint64_t)(uintptr_t)library);
  CUresult result = penstock_free_end(&freeing, PENSTOCK_BELOW(REAL(cuLibraryUnload)(library)));
  if (result == CUDA_SUCCESS) penstock_gate_forget_functions();
  return result;
}
