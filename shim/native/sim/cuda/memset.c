/* cuMemset*: simulated as kernels that only write memory. */
#include <string.h>

#include "sim/cuda/work.h"

CUresult sim_set_work(sim_context *ctx, const CUDA_MEMSET_NODE_PARAMS *g, sim_work *work) {
  *work = (sim_work){.type = CU_GRAPH_NODE_TYPE_MEMSET, .set = {.as_given = *g, .ctx = ctx}};
  REQUIRE(g->elementSize == 1 || g->elementSize == 2 || g->elementSize == 4,
          CUDA_ERROR_INVALID_VALUE);
  uint64_t row = g->width * g->elementSize, rows = g->height ? g->height : 1;
  uint64_t pitch = rows > 1 ? g->pitch : row;
  REQUIRE(g->dst % g->elementSize == 0 && (rows == 1 || pitch >= row), CUDA_ERROR_INVALID_VALUE);
  if (!row) return CUDA_SUCCESS;
  sim_big_lock();
  sim_alloc *alloc = sim_alloc_find(g->dst);
  bool fine = alloc && sim_alloc_find(g->dst + (rows - 1) * pitch + row - 1);
  sim_big_unlock();
  REQUIRE(fine, CUDA_ERROR_INVALID_VALUE);
  work->set.move = (struct sim_move){.to = g->dst,
                                     .bytes = row,
                                     .rows = rows,
                                     .to_pitch = pitch,
                                     .value = g->value,
                                     .value_bytes = (uint8_t)g->elementSize};
  return CUDA_SUCCESS;
}

static CUresult set(sim_context *ctx, CUdeviceptr to, size_t pitch, unsigned value,
                    unsigned element, size_t width, size_t height, CUstream handle) {
  sim_stream *stream;
  sim_work work;
  CUDA_MEMSET_NODE_PARAMS g = {.dst = to,
                               .pitch = pitch,
                               .value = value,
                               .elementSize = element,
                               .width = width,
                               .height = height};
  TRY(sim_stream_of(handle, ctx, &stream));
  TRY(sim_set_work(ctx, &g, &work));
  if (!width || !height) return CUDA_SUCCESS;
  TRY(sim_issue(stream, &work));
  sim_spend(ctx->gpu->profile->launch_ns);
  return CUDA_SUCCESS;
}

#define SET(bits, type)                                                                           \
  CUresult CUDAAPI cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count) {               \
    ENTER_CONTEXT("cuMemsetD" #bits);                                                             \
    return set(ctx, to, 0, value, bits / 8, count, 1, NULL);                                      \
  }                                                                                               \
  CUresult CUDAAPI cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count,               \
                                          CUstream stream) {                                      \
    ENTER_CONTEXT("cuMemsetD" #bits "Async");                                                     \
    return set(ctx, to, 0, value, bits / 8, count, 1, stream);                                    \
  }                                                                                               \
  CUresult CUDAAPI cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, \
                                          size_t height) {                                        \
    ENTER_CONTEXT("cuMemsetD2D" #bits);                                                           \
    return set(ctx, to, pitch, value, bits / 8, width, height, NULL);                             \
  }                                                                                               \
  CUresult CUDAAPI cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value,             \
                                            size_t width, size_t height, CUstream stream) {       \
    ENTER_CONTEXT("cuMemsetD2D" #bits "Async");                                                   \
    return set(ctx, to, pitch, value, bits / 8, width, height, stream);                           \
  }
SET(8, unsigned char)
SET(16, unsigned short)
SET(32, unsigned int)
