/* Kernels, by several calls; kernels and streams that wait for words in memory. */
#include "player.h"

static CUresult launch(CUfunction f, CUstream stream, unsigned grid, unsigned block, long how,
                       void **parameters) {
  CUlaunchConfig config = {.gridDimX = grid,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = block,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .hStream = stream};
  switch (how) {
    case 1:
      return cuLaunchKernelEx(&config, f, parameters, NULL);
    case 2:
      return cuLaunchCooperativeKernel(f, grid, 1, 1, block, 1, 1, 0, stream, parameters);
    default:
      return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, stream, parameters, NULL);
  }
}

/* stream, microseconds, blocks, threads, kind, by which call */
static CUresult spin(call *c) {
  CUfunction f = spin_of(c->t[0]->context, c->n[4]);
  uint64_t ns = 1000 * (uint64_t)c->n[1];
  void *parameters[] = {&ns};
  if (!f) return skip(c);
  return launch(f, (CUstream)c->t[0]->handle, (unsigned)c->n[2], (unsigned)c->n[3], c->n[5],
                parameters);
}

static CUresult spin_of_module(call *c) {
  CUfunction f;
  uint64_t ns = 1000 * (uint64_t)c->n[2];
  void *parameters[] = {&ns};
  if (c->t[0]->context != c->t[1]->context) return skip(c);
  CUresult result = cuModuleGetFunction(&f, (CUmodule)c->t[1]->handle, "spin0");
  if (result != CUDA_SUCCESS) return result;
  return launch(f, (CUstream)c->t[0]->handle, 1, 64, 0, parameters);
}

static CUresult spin_of_library(call *c) {
  CUkernel kernel;
  uint64_t ns = 1000 * (uint64_t)c->n[2];
  void *parameters[] = {&ns};
  CUresult result = cuLibraryGetKernel(&kernel, (CUlibrary)c->t[1]->handle, "spin0");
  if (result != CUDA_SUCCESS) return result;
  return launch((CUfunction)kernel, (CUstream)c->t[0]->handle, 1, 64, 0, parameters);
}

/* stream, until words[index] >= value; as it begins it stores words[index] = value (index -1: no)
 */
static CUresult meet(call *c) {
  CUfunction f = meet_of(c->t[0]->context);
  uint64_t until_at = word_of(c->t[1], c->n[2]), until = (uint64_t)c->n[3];
  uint64_t store_at = c->n[5] < 0 ? 0 : word_of(c->t[4], c->n[5]), store = (uint64_t)c->n[6];
  void *parameters[] = {&until_at, &until, &store_at, &store};
  if (!f) return skip(c);
  return launch(f, (CUstream)c->t[0]->handle, 1, 32, 0, parameters);
}

static CUresult wait_value(call *c) {
  CUstream s = (CUstream)c->t[0]->handle;
  CUdeviceptr at = word_of(c->t[1], c->n[2]);
  return c->n[4] ? cuStreamWaitValue64(s, at, (cuuint64_t)c->n[3], CU_STREAM_WAIT_VALUE_GEQ)
                 : cuStreamWaitValue32(s, at, (cuuint32_t)c->n[3], CU_STREAM_WAIT_VALUE_GEQ);
}

static CUresult write_value(call *c) {
  CUstream s = (CUstream)c->t[0]->handle;
  CUdeviceptr at = word_of(c->t[1], c->n[2]);
  return c->n[4] ? cuStreamWriteValue64(s, at, (cuuint64_t)c->n[3], 0)
                 : cuStreamWriteValue32(s, at, (cuuint32_t)c->n[3], 0);
}

const operation kernel_operations[] = {{"spin", "snnnnn", spin},
                                       {"mspin", "smn", spin_of_module},
                                       {"lspin", "sln", spin_of_library},
                                       {"meet", "sbnnbnn", meet},
                                       {"waitv", "sbnnn", wait_value},
                                       {"writev", "sbnnn", write_value},
                                       {0}};
