/* CUDA arrays: linear memory with a shape. */
#pragma once
#include "sim/cuda/core.h"

typedef struct sim_array {
  CUDA_ARRAY3D_DESCRIPTOR shape;
  sim_alloc *alloc; /* NULL for a level of a mipmapped array, which owns the memory itself */
  uint64_t address, pitch, slice;
  sim_context *ctx;
  struct sim_array *next;
} sim_array;

unsigned sim_format_bytes(CUarray_format format);
