/* Modules: loading, functions, globals. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"

static sim_module *modules; /* all of this process; big lock */

#define VARIABLE_ALIGN 256

/* How far into the data of its kind a variable lies; `end` NULL: how much data there is. */
static uint64_t data_offset(const sim_image *image, bool managed, const sim_global *end) {
  uint64_t at = 0;
  for (const sim_global *g = image->globals; g && g != end; g = g->next) {
    if (g->managed != managed) continue;
    if (__builtin_add_overflow(at, g->bytes, &at) || at > UINT64_MAX - VARIABLE_ALIGN)
      return UINT64_MAX;
    at = (at + VARIABLE_ALIGN - 1) / VARIABLE_ALIGN * VARIABLE_ALIGN;
  }
  return at;
}

/* Code and variables have their memory from the start. Big lock held. */
static bool place(sim_module *m, sim_image *image) {
  sim_context *ctx = m->ctx;
  m->code = sim_alloc_new(ctx->gpu, ctx, image->bytes ? image->bytes : 4096, SIM_GLOBAL);
  if (!m->code) return false;
  for (int managed = 0; managed < 2; managed++) {
    uint64_t bytes = data_offset(image, managed, NULL);
    if (!bytes) continue;
    m->data[managed] = sim_alloc_new(ctx->gpu, ctx, bytes, managed ? SIM_MANAGED : SIM_GLOBAL);
    if (!m->data[managed]) return false;
  }
  return true;
}

static void displace(sim_module *m) {
  if (m->data[1]) sim_alloc_free(m->data[1]);
  if (m->data[0]) sim_alloc_free(m->data[0]);
  if (m->code) sim_alloc_free(m->code);
}

CUresult sim_module_new(sim_context *ctx, sim_image *image, sim_library *library,
                        sim_module **out) {
  sim_module *m = calloc(1, sizeof *m);
  REQUIRE(m, CUDA_ERROR_OUT_OF_MEMORY);
  sim_big_lock();
  m->ctx = ctx;
  m->library = library;
  bool placed = place(m, image);
  if (placed) {
    m->image = image;
    image->references++;
    m->next = modules;
    modules = m;
    sim_handle_add(m, SIM_MODULE);
  } else {
    displace(m);
  }
  sim_big_unlock();
  if (!placed) {
    free(m);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = m;
  return CUDA_SUCCESS;
}

/* Big lock held. */
void sim_module_free(sim_module *m) {
  sim_handle_remove(m);
  for (sim_module **link = &modules; *link; link = &(*link)->next) {
    if (*link != m) continue;
    *link = m->next;
    break;
  }
  while (m->functions) {
    sim_function *f = m->functions;
    m->functions = f->next;
    sim_handle_remove(f);
    free(f->old_launch);
    free(f);
  }
  displace(m);
  sim_image_release(m->image);
  free(m);
}

void sim_modules_of_context(sim_context *ctx) {
  for (sim_module *m = modules, *next; m; m = next) {
    next = m->next;
    if (m->ctx == ctx) sim_module_free(m);
  }
}

CUresult sim_library_module(sim_library *library, sim_context *ctx, sim_module **out) {
  sim_big_lock();
  sim_module *m = modules;
  while (m && !(m->library == library && m->ctx == ctx)) m = m->next;
  sim_big_unlock();
  if (!m) return sim_module_new(ctx, library->image, library, out);
  *out = m;
  return CUDA_SUCCESS;
}

CUresult sim_module_function(sim_module *m, const char *name, sim_function **out) {
  sim_big_lock();
  sim_kernel *kernel = sim_image_kernel(m->image, name);
  sim_function *f = NULL;
  if (kernel) {
    for (f = m->functions; f && f->kernel != kernel;) f = f->next;
    if (!f && (f = calloc(1, sizeof *f))) {
      *f = (sim_function){.module = m,
                          .kernel = kernel,
                          .ctx = m->ctx,
                          .max_dynamic_shared = 49152,
                          .carveout = -1,
                          .next = m->functions};
      m->functions = f;
      sim_handle_add(f, SIM_FUNCTION);
    }
  }
  sim_big_unlock();
  *out = f;
  return f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult find_global(sim_module *m, const char *name, bool managed_only,
                            CUdeviceptr *address, size_t *bytes) {
  REQUIRE(name, CUDA_ERROR_INVALID_VALUE);
  for (sim_global *g = m->image->globals; g; g = g->next) {
    if (strcmp(g->name, name) || (managed_only && !g->managed)) continue;
    if (address) *address = m->data[g->managed]->address + data_offset(m->image, g->managed, g);
    if (bytes) *bytes = g->bytes;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

/* ---- modules ---- */

static CUresult load(sim_context *ctx, sim_image *image, CUmodule *out) {
  sim_module *m;
  CUresult result = sim_module_new(ctx, image, NULL, &m);
  sim_image_release(image);
  if (result == CUDA_SUCCESS) *out = (CUmodule)m;
  return result;
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *out, const void *data, unsigned int count,
                                    CUjit_option *options, void **values) {
  ENTER_CONTEXT("cuModuleLoadDataEx");
  (void)count, (void)options, (void)values;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_capture_forbids(ctx));
  sim_image *image;
  TRY(sim_image_read(data, 0, ctx->gpu, &image));
  return load(ctx, image, out);
}
CUresult CUDAAPI cuModuleLoadData(CUmodule *out, const void *data) {
  ENTER_CONTEXT("cuModuleLoadData");
  (void)ctx;
  return cuModuleLoadDataEx(out, data, 0, NULL, NULL);
}
CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *out, const void *data) {
  ENTER_CONTEXT("cuModuleLoadFatBinary");
  (void)ctx;
  return cuModuleLoadDataEx(out, data, 0, NULL, NULL);
}
CUresult CUDAAPI cuModuleLoad(CUmodule *out, const char *path) {
  ENTER_CONTEXT("cuModuleLoad");
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_capture_forbids(ctx));
  sim_image *image;
  TRY(sim_image_read_file(path, ctx->gpu, &image));
  return load(ctx, image, out);
}

static CUresult module_of(CUmodule handle, sim_module **m) {
  if (!sim_handle_is(handle, SIM_MODULE)) return CUDA_ERROR_INVALID_HANDLE;
  *m = (sim_module *)handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
  ENTER_CONTEXT("cuModuleUnload");
  sim_module *m;
  TRY(module_of(handle, &m));
  REQUIRE(!m->library, CUDA_ERROR_NOT_PERMITTED);
  TRY(sim_capture_forbids(ctx));
  TRY(sim_synchronize_context(m->ctx));
  sim_big_lock();
  sim_module_free(m);
  sim_big_unlock();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
  ENTER("cuModuleGetLoadingMode");
  REQUIRE(mode, CUDA_ERROR_INVALID_VALUE);
  *mode = CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
  ENTER_CONTEXT("cuModuleGetFunction");
  (void)ctx;
  sim_module *m;
  sim_function *f;
  REQUIRE(out && name && *name, CUDA_ERROR_INVALID_VALUE);
  TRY(module_of(handle, &m));
  TRY(sim_module_function(m, name, &f));
  *out = (CUfunction)f;
  return CUDA_SUCCESS;
}

static unsigned count_kernels(const sim_image *image) {
  unsigned n = 0;
  for (const sim_kernel *k = image->kernels; k; k = k->next) n++;
  return n;
}
CUresult CUDAAPI cuModuleGetFunctionCount(unsigned int *count, CUmodule handle) {
  ENTER_CONTEXT("cuModuleGetFunctionCount");
  (void)ctx;
  sim_module *m;
  REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
  TRY(module_of(handle, &m));
  *count = count_kernels(m->image);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction *out, unsigned int room, CUmodule handle) {
  ENTER_CONTEXT("cuModuleEnumerateFunctions");
  (void)ctx;
  sim_module *m;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(module_of(handle, &m));
  unsigned n = 0;
  for (sim_kernel *k = m->image->kernels; k && n < room; k = k->next) {
    sim_function *f;
    TRY(sim_module_function(m, k->name, &f));
    out[n++] = (CUfunction)f;
  }
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule handle,
                                      const char *name) {
  ENTER_CONTEXT("cuModuleGetGlobal");
  (void)ctx;
  sim_module *m;
  TRY(module_of(handle, &m));
  return find_global(m, name, false, address, bytes);
}

/* ---- libraries ---- */

static CUresult library_of(CUlibrary handle, sim_library **library) {
  if (!sim_handle_is(handle, SIM_LIBRARY)) return CUDA_ERROR_INVALID_HANDLE;
  *library = (sim_library *)handle;
  return CUDA_SUCCESS;
}

static CUresult add_library(sim_image *image, CUlibrary *out) {
  sim_library *library = calloc(1, sizeof *library);
  if (!library) {
    sim_image_release(image);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  library->image = image;
  sim_handle_add(library, SIM_LIBRARY);
  *out = (CUlibrary)library;
  return CUDA_SUCCESS;
}

/* A library belongs to no context; its code is checked against the current or first device. */
static sim_gpu *any_gpu(void) {
  sim_context *ctx = sim_current();
  return ctx ? ctx->gpu : &sim_here.gpus[0];
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary *out, const void *data, CUjit_option *jit,
                                   void **jit_values, unsigned int jit_count,
                                   CUlibraryOption *options, void **values, unsigned int count) {
  ENTER("cuLibraryLoadData");
  (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  sim_image *image;
  TRY(sim_image_read(data, 0, any_gpu(), &image));
  return add_library(image, out);
}
CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *jit,
                                       void **jit_values, unsigned int jit_count,
                                       CUlibraryOption *options, void **values,
                                       unsigned int count) {
  ENTER("cuLibraryLoadFromFile");
  (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  sim_image *image;
  TRY(sim_image_read_file(path, any_gpu(), &image));
  return add_library(image, out);
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary handle) {
  ENTER("cuLibraryUnload");
  sim_library *library;
  TRY(library_of(handle, &library));
  for (int i = 0; i < sim_here.gpu_count; i++)
    if (sim_here.gpus[i].client != SIM_NONE)
      sim_wait_all(sim_here.machine, sim_here.gpus[i].device, sim_here.gpus[i].client);
  sim_big_lock();
  for (sim_module *m = modules, *next; m; m = next) {
    next = m->next;
    if (m->library == library) sim_module_free(m);
  }
  while (library->kernels) {
    sim_function *f = library->kernels;
    library->kernels = f->next;
    sim_handle_remove(f);
    free(f->old_launch);
    free(f);
  }
  sim_handle_remove(library);
  sim_image_release(library->image);
  sim_big_unlock();
  free(library);
  return CUDA_SUCCESS;
}

static CUresult library_kernel(sim_library *library, const char *name, CUkernel *out) {
  sim_big_lock();
  sim_kernel *kernel = sim_image_kernel(library->image, name);
  sim_function *f = NULL;
  if (kernel) {
    for (f = library->kernels; f && f->kernel != kernel;) f = f->next;
    if (!f && (f = calloc(1, sizeof *f))) {
      *f = (sim_function){.library = library,
                          .kernel = kernel,
                          .max_dynamic_shared = 49152,
                          .carveout = -1,
                          .next = library->kernels};
      library->kernels = f;
      sim_handle_add(f, SIM_FUNCTION);
    }
  }
  sim_big_unlock();
  if (f) *out = (CUkernel)f;
  return f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult CUDAAPI cuLibraryGetKernel(CUkernel *out, CUlibrary handle, const char *name) {
  ENTER("cuLibraryGetKernel");
  sim_library *library;
  REQUIRE(out && name && *name, CUDA_ERROR_INVALID_VALUE);
  TRY(library_of(handle, &library));
  return library_kernel(library, name, out);
}
CUresult CUDAAPI cuLibraryGetKernelCount(unsigned int *count, CUlibrary handle) {
  ENTER("cuLibraryGetKernelCount");
  sim_library *library;
  REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
  TRY(library_of(handle, &library));
  *count = count_kernels(library->image);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel *out, unsigned int room, CUlibrary handle) {
  ENTER("cuLibraryEnumerateKernels");
  sim_library *library;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(library_of(handle, &library));
  unsigned n = 0;
  for (sim_kernel *k = library->image->kernels; k && n < room; k = k->next)
    TRY(library_kernel(library, k->name, &out[n++]));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryGetModule(CUmodule *out, CUlibrary handle) {
  ENTER_CONTEXT("cuLibraryGetModule");
  sim_library *library;
  sim_module *m;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(library_of(handle, &library));
  TRY(sim_library_module(library, ctx, &m));
  *out = (CUmodule)m;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary handle,
                                    const char *name) {
  ENTER_CONTEXT("cuLibraryGetGlobal");
  sim_library *library;
  sim_module *m;
  TRY(library_of(handle, &library));
  TRY(sim_library_module(library, ctx, &m));
  return find_global(m, name, false, address, bytes);
}
CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary handle,
                                     const char *name) {
  ENTER_CONTEXT("cuLibraryGetManaged");
  sim_library *library;
  sim_module *m;
  TRY(library_of(handle, &library));
  TRY(sim_library_module(library, ctx, &m));
  return find_global(m, name, true, address, bytes);
}
