/* Modules and the contents of their images. */
#pragma once
#include "sim/cuda/core.h"

typedef struct sim_kernel {
  char *name;
  unsigned registers, shared_bytes, local_bytes, const_bytes, max_threads;
  uint64_t code_bytes; /* 0 if not in the image; all of its code then belongs to this kernel */
  uint32_t param_count;
  struct {
    uint32_t offset, bytes;
  } *params; /* NULL if not in the image */
  size_t param_bytes;
  struct sim_kernel *next;
} sim_kernel;

typedef struct sim_global {
  char *name;
  uint64_t bytes;
  bool managed;
  struct sim_global *next;
} sim_global;

/* The definitions in an image. */
typedef struct sim_image {
  sim_kernel *kernels;
  sim_global *globals;
  uint64_t bytes; /* size of code and constants, over all kernels */
  bool any_name;  /* true if the image is compressed, so that any kernel name is accepted */
  int references;
} sim_image;

CUresult sim_image_read(const void *data, uint64_t known_bytes, const sim_gpu *gpu,
                        sim_image **image);
CUresult sim_image_read_file(const char *path, const sim_gpu *gpu, sim_image **image);
/* Reads a whole file and appends a NUL. The caller frees the data. */
CUresult sim_file_read(const char *path, char **data, size_t *bytes);
void sim_image_release(sim_image *image);
sim_kernel *sim_image_kernel(sim_image *image, const char *name);
/* ptx.c, elf.c */
CUresult sim_read_ptx(const char *text, uint64_t length, const sim_gpu *gpu, sim_image *image);
CUresult sim_read_elf(const uint8_t *data, uint64_t readable, const sim_gpu *gpu, sim_image *image);
sim_kernel *sim_image_add_kernel(sim_image *image, const char *name, size_t length);
void sim_image_add_global(sim_image *image, const char *name, size_t length, uint64_t bytes,
                          bool managed);

typedef struct sim_module {
  sim_context *ctx;
  sim_image *image;
  /* used if all code fits into a shared slab; NULL if it is large or not loaded */
  sim_alloc *code;
  uint64_t code_bytes; /* size of the kernels that are loaded */
  uint64_t code_taken; /* size of the whole slabs that large code takes */
  bool has_data;       /* true if the variables have memory */
  sim_alloc *data[2];  /* all variables, plain and managed; NULL if there are none */
  sim_function *functions;
  sim_library *library;
  struct sim_module *next;
} sim_module;

struct sim_library {
  sim_image *image;
  sim_function *kernels; /* CUkernel handles */
  struct sim_library *next;
};

/* Returns true unless CUDA_MODULE_LOADING is EAGER. Code is then loaded when it is used. */
bool sim_loads_lazily(void);
/* Takes the memory for this kernel's code (with eager loading, for all code) and for its module's
 * variables. */
CUresult sim_function_load(sim_function *function);

CUresult sim_module_new(sim_context *ctx, sim_image *image, sim_library *library,
                        sim_module **module);
void sim_module_free(sim_module *module);
CUresult sim_module_function(sim_module *module, const char *name, sim_function **function);
/* Finds or makes the library's module in a context. With `load`, its variables are loaded too, and
 * with eager loading also its code. */
CUresult sim_library_module(sim_library *library, sim_context *ctx, bool load, sim_module **module);
/* With eager loading, loads all libraries into a new context. The caller holds the big lock. */
bool sim_libraries_enter(sim_context *ctx);
