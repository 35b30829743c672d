/* The shim's measurement of an image, as for a file of known length: nothing beyond the file may be
 * read, for any entry of a fat binary, and text is as long as the file. */
#include <stdlib.h>
#include <string.h>

#include "images/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *exact = malloc(size ? size : 1); /* so that a byte too far is noticed */
  memcpy(exact, data, size);
  penstock_image_size found = penstock_image_measure_within(exact, size, 90);
  uint32_t magic = 0;
  memcpy(&magic, data, size < 4 ? size : 4);
  bool is_text = magic != 0xba55ed50u && magic != 0x466243b1u;
  if (size >= 4 && is_text && memcmp(data, "\177ELF", 4) != 0) {
    if (found.code_bytes > size) abort();
    if (found.data_bytes && !memchr(data, '.', size)) abort();
  }
  free(exact);
  return 0;
}
