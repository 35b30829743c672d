/* Launches by the first CUDA API, in which block shape, shared memory and parameters are part of
 * the function's state. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"
#include "sim/cuda/work.h"

#define MOST_BYTES 4096

typedef struct sim_old_launch {
  unsigned block[3], shared_bytes;
  size_t bytes;
  char params[MOST_BYTES];
} sim_old_launch;

static CUresult state_of(sim_context *ctx, CUfunction handle, sim_function **f,
                         sim_old_launch **state) {
  TRY(sim_function_of(handle, ctx, f));
  if (!(*f)->old_launch) (*f)->old_launch = calloc(1, sizeof **state);
  *state = (*f)->old_launch;
  return *state ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

#define ENTER_STATE(call) \
  ENTER_CONTEXT(call);    \
  sim_function *f;        \
  sim_old_launch *state;  \
  TRY(state_of(ctx, handle, &f, &state))

CUresult CUDAAPI cuFuncSetBlockShape(CUfunction handle, int x, int y, int z) {
  ENTER_STATE("cuFuncSetBlockShape");
  REQUIRE(x > 0 && y > 0 && z > 0, CUDA_ERROR_INVALID_VALUE);
  state->block[0] = (unsigned)x;
  state->block[1] = (unsigned)y;
  state->block[2] = (unsigned)z;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncSetSharedSize(CUfunction handle, unsigned int bytes) {
  ENTER_STATE("cuFuncSetSharedSize");
  state->shared_bytes = bytes;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuParamSetSize(CUfunction handle, unsigned int bytes) {
  ENTER_STATE("cuParamSetSize");
  REQUIRE(bytes <= MOST_BYTES, CUDA_ERROR_INVALID_VALUE);
  state->bytes = bytes;
  return CUDA_SUCCESS;
}

static CUresult put(sim_old_launch *state, int offset, const void *value, unsigned bytes) {
  REQUIRE(offset >= 0 && value && bytes <= MOST_BYTES && (unsigned)offset <= MOST_BYTES - bytes,
          CUDA_ERROR_INVALID_VALUE);
  memcpy(state->params + offset, value, bytes);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuParamSetv(CUfunction handle, int offset, void *value, unsigned int bytes) {
  ENTER_STATE("cuParamSetv");
  return put(state, offset, value, bytes);
}
CUresult CUDAAPI cuParamSeti(CUfunction handle, int offset, unsigned int value) {
  ENTER_STATE("cuParamSeti");
  return put(state, offset, &value, sizeof value);
}
CUresult CUDAAPI cuParamSetf(CUfunction handle, int offset, float value) {
  ENTER_STATE("cuParamSetf");
  return put(state, offset, &value, sizeof value);
}

static CUresult launch(sim_context *ctx, CUfunction handle, int width, int height,
                       CUstream stream) {
  sim_function *f;
  sim_old_launch *state;
  TRY(state_of(ctx, handle, &f, &state));
  REQUIRE(width > 0 && height > 0, CUDA_ERROR_INVALID_VALUE);
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, state->params, CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &state->bytes, CU_LAUNCH_PARAM_END};
  return cuLaunchKernel((CUfunction)f, (unsigned)width, (unsigned)height, 1, state->block[0],
                        state->block[1], state->block[2], state->shared_bytes, stream, NULL, extra);
}
CUresult CUDAAPI cuLaunch(CUfunction handle) {
  ENTER_CONTEXT("cuLaunch");
  return launch(ctx, handle, 1, 1, NULL);
}
CUresult CUDAAPI cuLaunchGrid(CUfunction handle, int width, int height) {
  ENTER_CONTEXT("cuLaunchGrid");
  return launch(ctx, handle, width, height, NULL);
}
CUresult CUDAAPI cuLaunchGridAsync(CUfunction handle, int width, int height, CUstream stream) {
  ENTER_CONTEXT("cuLaunchGridAsync");
  return launch(ctx, handle, width, height, stream);
}
