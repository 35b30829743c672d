/* Modules, whose code and variables use device memory. The charge is an estimate from the size of
 * the image that the device loads and of the variables that the image declares (image.h). Variables
 * are charged when the module is loaded. Code is charged at the same time or, with lazy loading,
 * when the first function is looked up. The shim does not see modules that are loaded through the
 * driver's private tables. */
#include "contexts/contexts.h"
#include "memory/charge.h"
#include "hooks/global.h"
#include "hooks/hook.h"
#include "hooks/launch.h"
#include "hooks/library.h"
#include "hooks/local_memory.h"
#include "images/image.h"
#include "common/log.h"

/* A module that is being loaded. */
typedef struct loading {
  CUcontext context;
  int grant;
  uint64_t code, data;
  uint64_t covers;
  bool with_code; /* the module's code is charged at once */
} loading;

static unsigned architecture_here(void) {
  CUdevice device;
  return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? penstock_architecture_of(device) : 0;
}

/* Charges a module before it is loaded. A compressed image may contain any variables, so all of it
 * is charged at once. */
static CUresult admit(loading *l, const penstock_image_size *size) {
  l->code = penstock_code_charge(size);
  l->data = penstock_data_charge(size);
  l->covers = penstock_image_covers(size);
  l->with_code = size->is_hidden || size->needs_code || !penstock_loads_lazily();
  CUresult result = penstock_charge_urgent(l->grant, l->data, PENSTOCK_IMAGE_PART_BLOCKS);
  if (result != CUDA_SUCCESS || !l->with_code) return result;
  result = penstock_charge_urgent(l->grant, l->code, PENSTOCK_IMAGE_PART_BLOCKS);
  if (result != CUDA_SUCCESS) {
    penstock_uncharge_hidden(l->grant, l->data, PENSTOCK_IMAGE_PART_BLOCKS);
  }
  return result;
}

/* Records a loaded module, which ends with its context. */
static void remember(CUmodule module, const loading *l) {
  penstock_object data = {.key = (uint64_t)(uintptr_t)module,
                          .bytes = l->data,
                          .detail = l->covers,
                          .context = l->context,
                          .grant = (int16_t)l->grant,
                          .kind = PENSTOCK_MODULE};
  penstock_object code = data;
  code.bytes = l->code;
  code.detail = l->with_code;
  code.kind = l->with_code ? PENSTOCK_MODULE_CODE : PENSTOCK_MODULE_UNLOADED;
  if (!l->with_code) code.grant = -1; /* the code is not charged yet */
  if (!penstock_object_put(&data) || !penstock_object_put(&code)) {
    penstock_log("no host memory left to record a module");
  }
}

static CUresult loaded(const loading *l, CUmodule *module, CUresult result) {
  if (result == CUDA_SUCCESS) {
    remember(*module, l);
  } else {
    penstock_uncharge_hidden(l->grant, l->data, PENSTOCK_IMAGE_PART_BLOCKS);
    if (l->with_code) {
      penstock_uncharge_hidden(l->grant, l->code, PENSTOCK_IMAGE_PART_BLOCKS);
    }
  }
  return result;
}

#define LOAD_MODULE(module, measure, call)                       \
  do {                                                           \
    loading load;                                                \
    CUresult result = penstock_here(&load.context, &load.grant); \
    if (result != CUDA_SUCCESS) return result;                   \
    const penstock_image_size size = (measure);                  \
    result = admit(&load, &size);                                \
    if (result != CUDA_SUCCESS) return result;                   \
    return loaded(&load, module, call);                          \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuModuleLoad)(CUmodule *module, const char *file) {
  if (!module || !file) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_measure_file(file, architecture_here()),
              REAL(cuModuleLoad)(module, file));
}

CUresult CUDAAPI HOOK_NAME(cuModuleLoadData)(CUmodule *module, const void *image) {
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_measure(image, architecture_here()),
              REAL(cuModuleLoadData)(module, image));
}

CUresult CUDAAPI HOOK_NAME(cuModuleLoadDataEx)(CUmodule *module, const void *image,
                                               unsigned int count, CUjit_option *options,
                                               void **values) {
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_measure(image, architecture_here()),
              REAL(cuModuleLoadDataEx)(module, image, count, options, values));
}

CUresult CUDAAPI HOOK_NAME(cuModuleLoadFatBinary)(CUmodule *module, const void *image) {
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  LOAD_MODULE(module, penstock_image_measure(image, architecture_here()),
              REAL(cuModuleLoadFatBinary)(module, image));
}

/* Notes that a function of the module was found, so that a thread whose lookup fails does not
 * uncharge the code. Returns false if the code is not charged. */
static bool join(uint64_t key) {
  penstock_object code;
  while (penstock_object_find(PENSTOCK_MODULE_CODE, key, &code)) {
    penstock_object used = code;
    used.detail = 1;
    if (code.detail || penstock_object_replace(&code, &used)) return true;
  }
  return false;
}

/* Charges all code of a module that was not loaded so far, because the driver does not report the
 * size of a kernel. */
static CUresult admit_code(CUmodule module, penstock_object *code, bool *is_new) {
  uint64_t key = (uint64_t)(uintptr_t)module;
  *is_new = false;
  if (join(key) || !penstock_object_find(PENSTOCK_MODULE_UNLOADED, key, code)) return CUDA_SUCCESS;
  int grant = penstock_current_grant();
  penstock_object context;
  if (penstock_object_find(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)code->context, &context)) {
    grant = context.grant;
  }
  CUresult result = penstock_charge_urgent(grant, code->bytes, PENSTOCK_IMAGE_PART_BLOCKS);
  if (result != CUDA_SUCCESS) return join(key) ? CUDA_SUCCESS : result;
  code->kind = PENSTOCK_MODULE_CODE;
  code->grant = (int16_t)grant;
  code->detail = 0;
  *is_new = penstock_object_add(code);
  if (!*is_new) {
    penstock_give_back(code); /* another thread has charged the code first */
    join(key);
  }
  return CUDA_SUCCESS;
}

static CUresult settle_code(CUmodule module, const penstock_object *code, bool is_new,
                            CUresult result) {
  if (!is_new) return result;
  if (result == CUDA_SUCCESS) {
    join((uint64_t)(uintptr_t)module);
  } else if (penstock_object_replace(code, NULL)) {
    penstock_give_back(code);
  }
  return result;
}

static void remember_functions(CUmodule module, const CUfunction *functions, unsigned int count) {
  penstock_object entry;
  uint64_t owner = (uint64_t)(uintptr_t)module;
  if (!penstock_object_find(PENSTOCK_MODULE, owner, &entry)) return;
  for (unsigned int i = 0; i < count; i++) {
    penstock_function_got(functions[i], owner, entry.context);
  }
}

CUresult CUDAAPI HOOK_NAME(cuModuleGetFunction)(CUfunction *function, CUmodule module,
                                                const char *name) {
  penstock_object code;
  bool is_new;
  CUresult result = admit_code(module, &code, &is_new);
  if (result != CUDA_SUCCESS) return result;
  result = REAL(cuModuleGetFunction)(function, module, name);
  if (result == CUDA_SUCCESS) remember_functions(module, function, 1);
  return settle_code(module, &code, is_new, result);
}

CUresult CUDAAPI HOOK_NAME(cuModuleEnumerateFunctions)(CUfunction *functions, unsigned int count,
                                                       CUmodule module) {
  penstock_object code;
  bool is_new;
  unsigned int all = 0;
  CUresult result = admit_code(module, &code, &is_new);
  if (result != CUDA_SUCCESS) return result;
  result = REAL(cuModuleEnumerateFunctions)(functions, count, module);
  if (result == CUDA_SUCCESS && REAL(cuModuleGetFunctionCount)(&all, module) == CUDA_SUCCESS) {
    remember_functions(module, functions, count < all ? count : all);
  }
  return settle_code(module, &code, is_new, result);
}

CUresult CUDAAPI HOOK_NAME(cuModuleUnload)(CUmodule module) {
  uint64_t key = (uint64_t)(uintptr_t)module;
  penstock_freeing data = penstock_free_begin(PENSTOCK_MODULE, key);
  penstock_freeing code = penstock_free_begin(PENSTOCK_MODULE_CODE, key);
  penstock_freeing unloaded = penstock_free_begin(PENSTOCK_MODULE_UNLOADED, key);
  penstock_belongings belongings = {.owner = key};
  penstock_belongings_take(&belongings, PENSTOCK_GLOBAL);
  penstock_belongings_take(&belongings, PENSTOCK_FUNCTION);
  CUresult result = REAL(cuModuleUnload)(module);
  penstock_free_end(&data, result);
  penstock_free_end(&code, result);
  penstock_free_end(&unloaded, result);
  penstock_belongings_left(&belongings, result);
  penstock_functions_go();
  if (result == CUDA_SUCCESS) penstock_gate_forget_functions(module);
  return result;
}
