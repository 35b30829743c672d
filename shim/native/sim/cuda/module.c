/* Modules: loading, functions and globals. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"

static sim_module *modules; /* all modules of this process, guarded by the big lock */
static sim_library *libraries;

#define MOST_ALIGN 256

/* Returns the natural alignment of a variable of this size. */
static uint64_t align_of(uint64_t bytes) {
  uint64_t align = bytes & -bytes;
  return align && align < MOST_ALIGN ? align : MOST_ALIGN;
}

/* Returns the offset of a variable in the data of its kind, or the size of all that data if `end`
 * is NULL. */
static uint64_t data_offset(const sim_image *image, bool managed, const sim_global *end) {
  uint64_t at = 0;
  for (const sim_global *g = image->globals; g && g != end; g = g->next) {
    if (g->managed != managed) continue;
    uint64_t align = align_of(g->bytes);
    at = (at + align - 1) / align * align;
    if (__builtin_add_overflow(at, g->bytes, &at) || at > UINT64_MAX - MOST_ALIGN)
      return UINT64_MAX;
  }
  if (end) at = (at + align_of(end->bytes) - 1) / align_of(end->bytes) * align_of(end->bytes);
  return at;
}

/* ---- loading of code and data (the caller holds the big lock) ----
 *
 * Lazy loading is the default since CUDA 12.2. A module's variables get their memory when the
 * module is loaded. Its code is loaded kernel by kernel, when cuModuleGetFunction or a launch
 * requests a kernel. A library's module is loaded into a context when the context first needs one
 * of its kernels or variables. With eager loading, everything is loaded at once, and a library is
 * loaded into every context.
 *
 * Code no larger than half a slab shares a slab with other code. Larger code takes whole slabs, in
 * which the kernels that are loaded lie one after another. */

bool sim_loads_lazily(void) { return sim_here.loads_lazily; }

static bool load_data(sim_module *m) {
  sim_context *ctx = m->ctx;
  for (int managed = 0; managed < 2; managed++) {
    uint64_t bytes = data_offset(m->image, managed, NULL);
    if (!bytes || m->data[managed]) continue;
    m->data[managed] = sim_alloc_new(ctx->gpu, ctx, bytes, managed ? SIM_MANAGED : SIM_GLOBAL);
    if (!m->data[managed]) return false;
  }
  m->has_data = true;
  return true;
}

/* Returns the size of the code that the kernels share, which is loaded with the first kernel. */
static uint64_t shared_code_bytes(const sim_image *image) {
  uint64_t bytes = image->bytes;
  for (const sim_kernel *k = image->kernels; k; k = k->next)
    bytes -= k->code_bytes < bytes ? k->code_bytes : bytes;
  return bytes;
}

static bool load_code(sim_module *m, uint64_t bytes) {
  sim_gpu *gpu = m->ctx->gpu;
  uint64_t all = m->image->bytes ? m->image->bytes : 4096, slab = gpu->profile->slab_bytes;
  if (all <= slab / 2) {
    if (!m->code) m->code = sim_alloc_new(gpu, m->ctx, all, SIM_GLOBAL);
    return m->code != NULL;
  }
  if (!m->code_bytes) bytes += shared_code_bytes(m->image);
  uint64_t loaded = bytes < all - m->code_bytes ? m->code_bytes + bytes : all;
  uint64_t more = (loaded + slab - 1) / slab * slab - m->code_taken;
  if (loaded > UINT64_MAX - slab ||
      (more && (sim_fault_hits(sim_here.machine, gpu->device, SIM_FAULT_OUT_OF_MEMORY,
                               sim_self.call, NULL) ||
                !sim_memory_take(sim_here.machine, gpu->device, gpu->client, more))))
    return false;
  m->code_bytes = loaded;
  m->code_taken += more;
  return true;
}

static bool load_all(sim_module *m) { return load_data(m) && load_code(m, m->image->bytes); }

static bool load_function(sim_function *f) {
  if (f->loaded) return true;
  sim_module *m = f->module;
  uint64_t bytes = f->kernel->code_bytes ? f->kernel->code_bytes : m->image->bytes;
  f->loaded = (m->has_data || load_data(m)) && load_code(m, bytes);
  return f->loaded;
}

static void displace(sim_module *m) {
  sim_gpu *gpu = m->ctx->gpu;
  if (m->data[1]) sim_alloc_free(m->data[1]);
  if (m->data[0]) sim_alloc_free(m->data[0]);
  if (m->code) sim_alloc_free(m->code);
  if (m->code_taken) sim_memory_give(sim_here.machine, gpu->device, gpu->client, m->code_taken);
}

static sim_module *new_module(sim_context *ctx, sim_image *image, sim_library *library, bool load) {
  sim_module *m = calloc(1, sizeof *m);
  if (!m) return NULL;
  *m = (sim_module){.ctx = ctx, .library = library, .image = image};
  if (load && !(sim_loads_lazily() ? load_data(m) : load_all(m))) {
    displace(m);
    free(m);
    return NULL;
  }
  image->references++;
  m->next = modules;
  modules = m;
  sim_handle_add(m, SIM_MODULE);
  return m;
}

static sim_module *module_in(const sim_library *library, const sim_context *ctx) {
  sim_module *m = modules;
  while (m && !(m->library == library && m->ctx == ctx)) m = m->next;
  return m;
}

bool sim_libraries_enter(sim_context *ctx) {
  if (sim_loads_lazily()) return true;
  for (sim_library *library = libraries; library; library = library->next)
    if (!module_in(library, ctx) && !new_module(ctx, library->image, library, true)) return false;
  return true;
}

static bool enter_contexts(sim_library *library) {
  for (sim_context *ctx = sim_contexts(); ctx; ctx = ctx->next)
    if (ctx->alive && !ctx->green_of && !new_module(ctx, library->image, library, true))
      return false;
  return true;
}

CUresult sim_function_load(sim_function *f) {
  sim_big_lock();
  bool loaded = load_function(f);
  sim_big_unlock();
  return loaded ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_module_new(sim_context *ctx, sim_image *image, sim_library *library,
                        sim_module **out) {
  sim_big_lock();
  *out = new_module(ctx, image, library, true);
  sim_big_unlock();
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Frees a module. The caller holds the big lock. */
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

CUresult sim_library_module(sim_library *library, sim_context *ctx, bool load, sim_module **out) {
  sim_big_lock();
  sim_module *m = module_in(library, ctx);
  if (!m) m = new_module(ctx, library->image, library, load);
  bool ready = m && (!load || m->has_data || load_data(m));
  sim_big_unlock();
  if (!ready) return CUDA_ERROR_OUT_OF_MEMORY;
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
                          .loaded = m->has_data && !sim_loads_lazily(),
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
  *mode = sim_loads_lazily() ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
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
  TRY(sim_function_load(f));
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
    TRY(sim_function_load(f));
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

static void leave_contexts(sim_library *library) {
  for (sim_module *m = modules, *next; m; m = next) {
    next = m->next;
    if (m->library == library) sim_module_free(m);
  }
}

static CUresult add_library(sim_image *image, CUlibrary *out) {
  sim_library *library = calloc(1, sizeof *library);
  if (!library) {
    sim_image_release(image);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  library->image = image;
  sim_big_lock();
  bool entered = sim_loads_lazily() || enter_contexts(library);
  if (entered) {
    library->next = libraries;
    libraries = library;
    sim_handle_add(library, SIM_LIBRARY);
  } else {
    leave_contexts(library);
    sim_image_release(image);
    free(library);
  }
  sim_big_unlock();
  if (!entered) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = (CUlibrary)library;
  return CUDA_SUCCESS;
}

/* Returns the device to check a library's code against: the current one, or else the first. A
 * library itself belongs to no context. */
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
  leave_contexts(library);
  for (sim_library **link = &libraries; *link; link = &(*link)->next) {
    if (*link != library) continue;
    *link = library->next;
    break;
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
  TRY(sim_library_module(library, ctx, true, &m));
  *out = (CUmodule)m;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary handle,
                                    const char *name) {
  ENTER_CONTEXT("cuLibraryGetGlobal");
  sim_library *library;
  sim_module *m;
  TRY(library_of(handle, &library));
  TRY(sim_library_module(library, ctx, true, &m));
  return find_global(m, name, false, address, bytes);
}
CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary handle,
                                     const char *name) {
  ENTER_CONTEXT("cuLibraryGetManaged");
  sim_library *library;
  sim_module *m;
  TRY(library_of(handle, &library));
  TRY(sim_library_module(library, ctx, true, &m));
  return find_global(m, name, true, address, bytes);
}
