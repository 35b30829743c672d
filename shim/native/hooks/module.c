/* Modules: code and global data take device memory. Charged with the size of their image, as an
 * estimate (image.h). What is loaded through the driver's private tables is not seen here. */
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
