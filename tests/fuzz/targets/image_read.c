/* The simulated driver's readers of PTX, cubins and fat binaries, as for a file of known length. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"

sim_process sim_here; /* PTX is neither forbidden nor forced */
static sim_profile profile = {.compute_major = 9, .sm_count = 4};

static void check(const sim_image *image) {
  for (const sim_kernel *k = image->kernels; k; k = k->next) {
    if (!k->name) abort();
    /* A launch copies each parameter to its offset in a buffer of param_bytes. */
    for (uint32_t i = 0; k->params && i < k->param_count; i++) {
      if ((uint64_t)k->params[i].offset + k->params[i].bytes > k->param_bytes) abort();
    }
  }
  for (const sim_global *g = image->globals; g; g = g->next) {
    if (!g->name || !g->bytes) abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  sim_gpu gpu = {.profile = &profile};
  sim_image *image = NULL;
  if (!size) return 0;
  uint8_t *exact = malloc(size); /* so that a byte too far is noticed */
  memcpy(exact, data, size);
  if (sim_image_read(exact, size, &gpu, &image) == CUDA_SUCCESS) {
    check(image);
    sim_image_kernel(image, "spin");
    sim_image_release(image);
  }
  free(exact);
  return 0;
}
