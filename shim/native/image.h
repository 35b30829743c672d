/* How large a module's image is: an estimate of what its code and data take on the device. The
 * driver does not say, and compiles some of it. Variables without contents (`__device__` arrays)
 * take memory and no room in the image: they are not in it. The agent settles the rest by the
 * driver's own figures. */
#pragma once

#include <stdint.h>

/* An image in memory: cubin, fat binary (bare or in its wrapper), PTX text. 0: not recognised. */
uint64_t penstock_image_bytes(const void *image);

/* A file; 0 when it cannot be read. */
uint64_t penstock_image_file_bytes(const char *path);
