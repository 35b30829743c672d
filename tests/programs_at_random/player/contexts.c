/* Contexts: primary ones retained and released, others made and destroyed; modules. */
#include "player.h"

#define ENTRY(name) ".visible .entry " name "(.param .u64 nanoseconds)\n{ ret; }\n"
#define HEAD ".version 8.0\n.target sm_80\n.address_size 64\n"
static const char kernels[] = HEAD ENTRY("spin0") ENTRY("spin1") ENTRY("spin2") ENTRY("spin3")
    ".visible .entry meet(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)\n{ ret; }\n";
static const char *const images[] = {
    HEAD ENTRY("spin0"), HEAD ".visible .global .align 8 .b8 blob[0x600000];\n" ENTRY("spin0"),
    HEAD ".visible .global .attribute(.managed) .align 4 .b8 blob[4194304];\n" ENTRY("spin0")};

typedef struct functions {
  CUfunction spin[SPINS], meet;
} functions;
static functions loaded[MOST_THINGS]; /* by context */

CUfunction spin_of(int context, long kind) { return loaded[context].spin[kind % SPINS]; }
CUfunction meet_of(int context) { return loaded[context].meet; }

static CUresult made(call *c, CUresult result, CUcontext context) {
  static uint64_t last;
  memset(&loaded[c->n[0]], 0, sizeof loaded[0]);
  *c->t[0] = (thing){.context = -1,
                     .device = (int)c->n[1],
                     .handle = (uint64_t)context,
                     .bytes = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED)};
  return result;
}

static CUresult retain(call *c) {
  CUcontext context = NULL;
  CUresult result = cuDevicePrimaryCtxRetain(&context, (CUdevice)c->n[1]);
  return made(c, result, context);
}

static CUresult release(call *c) { return cuDevicePrimaryCtxRelease(c->t[0]->device); }

static CUresult create(call *c) {
  CUcontext context = NULL, popped;
  CUctxCreateParams none = {0};
  CUresult result = cuCtxCreate(&context, &none, 0, (CUdevice)c->n[1]);
  if (result == CUDA_SUCCESS) result = cuCtxPopCurrent(&popped);
  return made(c, result, context);
}

static CUresult destroy(call *c) { return cuCtxDestroy((CUcontext)c->t[0]->handle); }

static CUresult synchronize(call *c) {
  (void)c;
  return cuCtxSynchronize();
}

/* The kernels that all operations of this context use. */
static CUresult load_kernels(call *c) {
  static const char *const names[] = {"spin0", "spin1", "spin2", "spin3"};
  functions *f = &loaded[c->n[0]];
  CUmodule module;
  CUresult result = cuModuleLoadData(&module, kernels);
  for (int i = 0; i < SPINS && result == CUDA_SUCCESS; i++)
    result = cuModuleGetFunction(&f->spin[i], module, names[i]);
  if (result == CUDA_SUCCESS) result = cuModuleGetFunction(&f->meet, module, "meet");
  if (result != CUDA_SUCCESS) memset(f, 0, sizeof *f);
  return result;
}

static CUresult load_module(call *c) {
  CUmodule module;
  CUresult result = cuModuleLoadData(&module, images[c->n[2] % 3]);
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = (uint64_t)module};
  return result;
}

static CUresult unload_module(call *c) { return cuModuleUnload((CUmodule)c->t[0]->handle); }

static CUresult load_library(call *c) {
  CUlibrary library;
  CUresult result = cuLibraryLoadData(&library, images[c->n[2] % 3], NULL, NULL, 0, NULL, NULL, 0);
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = (uint64_t)library};
  return result;
}

static CUresult unload_library(call *c) { return cuLibraryUnload((CUlibrary)c->t[0]->handle); }

static CUresult limit_heap(call *c) {
  return cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, (size_t)c->n[1] << 20);
}

const operation context_operations[] = {
    {"retain", "Cn", retain},         {"release", "!c", release},
    {"create", "Cn", create},         {"destroy", "!c", destroy},
    {"csync", "c", synchronize},      {"kernels", "c", load_kernels},
    {"module", "Mcn", load_module},   {"unload", "!m", unload_module},
    {"library", "Lcn", load_library}, {"lunload", "!l", unload_library},
    {"heap", "cn", limit_heap},       {0}};
