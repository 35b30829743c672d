/* Modules and what images hold. */
#pragma once
#include "sim/cuda/core.h"

typedef struct sim_kernel {
  char *name;
  unsigned registers, shared_bytes, local_bytes, const_bytes, max_threads;
  uint64_t code_bytes; /* 0: the image does not say, all of its code is this kernel's */
  uint32_t param_count;
  struct {
    uint32_t offset, bytes;
  } *params; /* NULL: the image does not say */
  size_t param_bytes;
  struct sim_kernel *next;
} sim_kernel;

typedef struct sim_global {
  char *name;
  uint64_t bytes;
  bool managed;
  struct sim_global *next;
} sim_global;

/* What an image defines. */
typedef struct sim_image {
  sim_kernel *kernels;
  sim_global *globals;
  uint64_t bytes; /* of code and constants, all kernels together */
  bool any_name;  /* compressed: every kernel name is taken for granted */
  int references;
} sim_image;

CUresult sim_image_read(const void *data, uint64_t known_bytes, const sim_gpu *gpu,
                        sim_image **image);
CUresult sim_image_read_file(const char *path, const sim_gpu *gpu, sim_image **image);
/* A whole file, to be freed; a 0 follows its bytes. */
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
  sim_alloc *code; /* where all of it fits into a slab with others; NULL: not loaded, or large */
  uint64_t code_bytes; /* of the kernels that are loaded */
  uint64_t code_taken; /* of the device for large code: whole slabs */
  bool has_data;       /* the variables have their memory */
  sim_alloc *data[2];  /* all variables: plain, managed; NULL: none */
  sim_function *functions;
  sim_library *library;
  struct sim_module *next;
} sim_module;

struct sim_library {
  sim_image *image;
  sim_function *kernels; /* CUkernel handles */
  struct sim_library *next;
};

/* CUDA_MODULE_LOADING: code is loaded as it is used, unless that says EAGER. */
bool sim_loads_lazily(void);
/* Takes what the code of this kernel (all of it when loading is eager) and the variables of its
 * module need. */
CUresult sim_function_load(sim_function *function);

CUresult sim_module_new(sim_context *ctx, sim_image *image, sim_library *library,
                        sim_module **module);
void sim_module_free(sim_module *module);
CUresult sim_module_function(sim_module *module, const char *name, sim_function **function);
/* The library's module in a context; `load`: with its variables, as far as loading goes. */
CUresult sim_library_module(sim_library *library, sim_context *ctx, bool load, sim_module **module);
/* What eager loading puts into a context that is new. Big lock held. */
bool sim_libraries_enter(sim_context *ctx);
