/* Modules: code and global data take device memory. Charged with the size of their image, as an
 * estimate, and of the variables that it declares (image.h). What is loaded through the driver's
 * private tables is not seen here. */
#include "charge.h"
#include "hooks/global.h"
#include "hooks/hook.h"
#include "hooks/launch.h"
#include "image.h"
#include "common/log.h"

/* A module lives and dies with its context. `detail`: the largest variable that is paid for. */
static void remember(CUmodule module, int grant, penstock_image_size size, CUcontext context) {
  penstock_object object = {.key = (uint64_t)(uintptr_t)module,
                            .bytes = penstock_image_charge(size),
                            .detail = penstock_image_covers(size),
                            .context = context,
                            .grant = (int16_t)grant,
                            .kind = PENSTOCK_MODULE};
  if (!penstock_object_put(&object)) penstock_log("no memory to remember a module");
}

#define LOAD_MODULE(module, measure, call)                                                      \
  do {                                                                                          \
    CUcontext context;                                                                          \
    int grant;                                                                                  \
    CUresult result = penstock_here(&context, &grant);                                          \
    if (result != CUDA_SUCCESS) return result;                                                  \
    const penstock_image_size size = (measure);                                                 \
    result = penstock_charge_hidden(grant, penstock_image_charge(size), PENSTOCK_IMAGE_BLOCKS); \
    if (result != CUDA_SUCCESS) return result;                                                  \
    result = call;                                                                              \
    if (result == CUDA_SUCCESS) {                                                               \
      remember(*(module), grant, size, context);                                                \
    } else {                                                                                    \
      penstock_uncharge_hidden(grant, penstock_image_charge(size), PENSTOCK_IMAGE_BLOCKS);      \
    }                                                                                           \
    return result;                                                                              \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuModuleLoad)(CUmodule *module, const char *file) {
  if (!module || !file) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_measure_file(file), REAL(cuModuleLoad)(module, file));
}

CUresult CUDAAPI HOOK_NAME(cuModuleLoadData)(CUmodule *module, const void *image) {
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_measure(image), REAL(cuModuleLoadData)(module, image));
}

CUresult CUDAAPI HOOK_NAME(cuModuleLoadDataEx)(CUmodule *module, const void *image,
                                               unsigned int count, CUjit_option *options,
                                               void **values) {
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_measure(image),
              REAL(cuModuleLoadDataEx)(module, image, count, options, values));
}

CUresult CUDAAPI HOOK_NAME(cuModuleLoadFatBinary)(CUmodule *module, const void *image) {
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_measure(image), REAL(cuModuleLoadFatBinary)(module, image));
}

CUresult CUDAAPI HOOK_NAME(cuModuleUnload)(CUmodule module) {
  penstock_freeing freeing = penstock_free_begin(PENSTOCK_MODULE, (uint64_t)(uintptr_t)module);
  penstock_globals globals = penstock_globals_leave((uint64_t)(uintptr_t)module);
  CUresult result = penstock_free_end(&freeing, REAL(cuModuleUnload)(module));
  penstock_globals_left(&globals, result);
  if (result == CUDA_SUCCESS) penstock_gate_forget_functions(module);
  return result;
}
