/* Linking on the host, which takes no device memory. The result is loaded like any image.
 *
 * Only PTX is linked. The result is the text of all inputs instead of machine code, and names that
 * two inputs define are not detected.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"

typedef struct linking {
  const sim_gpu *gpu;
  char *text;
  size_t bytes; /* without the terminating NUL */
  bool complete;
} linking;

CUresult CUDAAPI cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values,
                                 CUlinkState *out) {
  ENTER_CONTEXT("cuLinkCreate");
  REQUIRE(out && (!count || (options && values)), CUDA_ERROR_INVALID_VALUE);
  linking *l = calloc(1, sizeof *l);
  REQUIRE(l, CUDA_ERROR_OUT_OF_MEMORY);
  l->gpu = ctx->gpu;
  sim_handle_add(l, SIM_LINKING);
  *out = (CUlinkState)l;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLinkCreate(unsigned int count, CUjit_option *options, void **values,
                              CUlinkState *out) {
  return cuLinkCreate_v2(count, options, values, out);
}

/* Adds PTX text. Programs pass it with or without the terminating NUL. */
static CUresult add_text(linking *l, const char *text, size_t bytes) {
  bytes = strnlen(text, bytes);
  char *larger = realloc(l->text, l->bytes + bytes + 2);
  REQUIRE(larger, CUDA_ERROR_OUT_OF_MEMORY);
  l->text = larger;
  memcpy(larger + l->bytes, text, bytes);
  l->bytes += bytes;
  larger[l->bytes++] = '\n';
  larger[l->bytes] = 0;
  return CUDA_SUCCESS;
}

static CUresult add(CUlinkState handle, CUjitInputType type, const void *data, size_t bytes) {
  linking *l = (linking *)handle;
  sim_image *image;
  REQUIRE(sim_handle_is(handle, SIM_LINKING), CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(data && bytes && !l->complete, CUDA_ERROR_INVALID_VALUE);
  if (type != CU_JIT_INPUT_PTX) return CUDA_ERROR_NOT_SUPPORTED;
  TRY(sim_image_read(data, bytes, l->gpu, &image));
  sim_image_release(image);
  return add_text(l, data, bytes);
}

CUresult CUDAAPI cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void *data, size_t bytes,
                                  const char *name, unsigned int count, CUjit_option *options,
                                  void **values) {
  ENTER("cuLinkAddData");
  (void)name, (void)count, (void)options, (void)values;
  return add(handle, type, data, bytes);
}
CUresult CUDAAPI cuLinkAddData(CUlinkState handle, CUjitInputType type, void *data, size_t bytes,
                               const char *name, unsigned int count, CUjit_option *options,
                               void **values) {
  return cuLinkAddData_v2(handle, type, data, bytes, name, count, options, values);
}

static CUresult add_file(CUlinkState handle, CUjitInputType type, const char *path) {
  char *data;
  size_t bytes;
  REQUIRE(sim_handle_is(handle, SIM_LINKING), CUDA_ERROR_INVALID_HANDLE);
  TRY(sim_file_read(path, &data, &bytes));
  CUresult result = add(handle, type, data, bytes);
  free(data);
  return result;
}

CUresult CUDAAPI cuLinkAddFile_v2(CUlinkState handle, CUjitInputType type, const char *path,
                                  unsigned int count, CUjit_option *options, void **values) {
  ENTER("cuLinkAddFile");
  (void)count, (void)options, (void)values;
  return add_file(handle, type, path);
}
CUresult CUDAAPI cuLinkAddFile(CUlinkState handle, CUjitInputType type, const char *path,
                               unsigned int count, CUjit_option *options, void **values) {
  return cuLinkAddFile_v2(handle, type, path, count, options, values);
}

CUresult CUDAAPI cuLinkComplete(CUlinkState handle, void **image, size_t *bytes) {
  ENTER("cuLinkComplete");
  linking *l = (linking *)handle;
  REQUIRE(sim_handle_is(handle, SIM_LINKING), CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(image && l->text, CUDA_ERROR_INVALID_VALUE);
  l->complete = true;
  *image = l->text;
  if (bytes) *bytes = l->bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkDestroy(CUlinkState handle) {
  ENTER("cuLinkDestroy");
  linking *l = (linking *)handle;
  REQUIRE(sim_handle_is(handle, SIM_LINKING), CUDA_ERROR_INVALID_HANDLE);
  sim_handle_remove(l);
  free(l->text);
  free(l);
  return CUDA_SUCCESS;
}
