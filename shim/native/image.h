/* How large a module's image is: an estimate of what its code and data take on the device. The
 * driver does not say, and compiles some of it; the agent settles the rest by the driver's own
 * figures. */
#pragma once

#include <stdint.h>

/* An image in memory: cubin, fat binary (bare or in its wrapper), PTX text. 0: not recognised. */
uint64_t penstock_image_bytes(const void *image);

/* A file; 0 when it cannot be read. */
uint64_t penstock_image_file_bytes(const char *path);
