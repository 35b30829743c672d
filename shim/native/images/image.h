/* Size of a module's image on the device: an estimate for its code, and the declared size of its
 * variables. The driver does not report either, and compiles some images first; the agent corrects
 * the difference according to the driver's own memory figures. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct penstock_image_size {
  uint64_t code_bytes;    /* size of the image that the device loads, decompressed */
  uint64_t data_bytes;    /* size of its variables */
  uint64_t managed_bytes; /* size of its managed variables */
  bool needs_code;        /* variables may point to code, which is then loaded with them */
  bool is_hidden; /* the image is compressed: `code_bytes` covers everything in it, and variables
                     without initial values are not counted */
} penstock_image_size;

/* Measures an image in memory: a cubin, a fat binary (bare or in its wrapper) or PTX text. The
 * image's length is read from its own headers, as the driver does. Returns all zeros if the format
 * is not recognised. `architecture` is the device's compute capability (90 for 9.0), which selects
 * one image of a fat binary. */
penstock_image_size penstock_image_measure(const void *image, unsigned architecture);

/* Measures an image of which only `readable` bytes can be read. */
penstock_image_size penstock_image_measure_within(const void *image, uint64_t readable,
                                                  unsigned architecture);

/* Reads CUDA_FORCE_PTX_JIT, which the driver also reads when it is initialised. */
void penstock_image_begin(void);

/* Measures an image in a file. Returns all zeros if the file cannot be read. */
penstock_image_size penstock_image_measure_file(const char *path, unsigned architecture);

/* Adds up the variables that PTX text declares (ptx.c). Sums that overflow become UINT64_MAX. */
void penstock_ptx_measure(const char *text, uint64_t length, penstock_image_size *size);
