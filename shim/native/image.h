/* How large a module's image is: an estimate of what its code takes on the device, and what its
 * variables take as it declares them. The driver does not say, and compiles some of it; the agent
 * settles the rest by the driver's own figures. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct penstock_image_size {
  uint64_t code_bytes; /* of the image itself, initialised variables included */
  uint64_t data_bytes; /* of variables that are declared only */
  bool is_hidden;      /* a part is compressed: its variables are not counted */
} penstock_image_size;

/* An image in memory: cubin, fat binary (bare or in its wrapper), PTX text. Without a length it is
 * read as far as it says itself, as the driver does. Nothing: not recognised. */
penstock_image_size penstock_image_measure(const void *image);

/* The same of an image that can be read so far. */
penstock_image_size penstock_image_measure_within(const void *image, uint64_t readable);

/* A file; nothing when it cannot be read. */
penstock_image_size penstock_image_measure_file(const char *path);

/* Of the variables that PTX text declares (image_ptx.c). As large as can be when they are more than
 * a number holds. */
uint64_t penstock_ptx_data_bytes(const char *text, uint64_t length);
