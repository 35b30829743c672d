/* How large a module's image is: an estimate of what its code takes on the device, and what its
 * variables take as it declares them. The driver does not say, and compiles some of it; the agent
 * settles the rest by the driver's own figures. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct penstock_image_size {
  uint64_t code_bytes;    /* of the one image that the device takes, unpacked */
  uint64_t data_bytes;    /* of its variables */
  uint64_t managed_bytes; /* of its managed variables */
  bool needs_code;        /* variables may point to code, which is loaded with them then */
  bool is_hidden;         /* it is compressed: `code_bytes` are of all that is in it, its variables
                             without initial values are not counted */
} penstock_image_size;

/* An image in memory: cubin, fat binary (bare or in its wrapper), PTX text. Without a length it is
 * read as far as it says itself, as the driver does. Nothing: not recognised. `architecture` is the
 * device's compute capability, 90 for 9.0: of a fat binary it takes one image. */
penstock_image_size penstock_image_measure(const void *image, unsigned architecture);

/* The same of an image that can be read so far. */
penstock_image_size penstock_image_measure_within(const void *image, uint64_t readable,
                                                  unsigned architecture);

/* When the driver is initialised: how it takes images in this process (CUDA_FORCE_PTX_JIT),
 * whatever the environment says later. */
void penstock_image_begin(void);

/* A file; nothing when it cannot be read. */
penstock_image_size penstock_image_measure_file(const char *path, unsigned architecture);

/* The variables that PTX text declares (image_ptx.c). As large as can be when they are more than a
 * number holds. */
void penstock_ptx_measure(const char *text, uint64_t length, penstock_image_size *size);
