/* How large the shim takes a tenant's image to be, as for a file of known length: nothing beyond it
 * may be read, and no sum may come out small by going round. */
#include <stdlib.h>
#include <string.h>

#include "image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *exact = malloc(size ? size : 1); /* so that a byte too far is noticed */
  memcpy(exact, data, size);
  penstock_image_size found = penstock_image_measure_within(exact, size, 90);
  uint32_t magic = 0;
  memcpy(&magic, data, size < 4 ? size : 4);
  if (magic == 0xba55ed50u && size >= 16) { /* one of the entries, or all where there is none */
    if (!found.code_bytes && !found.is_hidden && size > 16 + 64) {
      penstock_image_size other = penstock_image_measure_within(exact, size, 1);
      if (other.code_bytes > size && !other.is_hidden) abort();
    }
  } else if (size >= 4 && magic != 0x466243b1u && memcmp(data, "\177ELF", 4) != 0) {
    if (found.code_bytes > size) abort();
    if (found.data_bytes && !memchr(data, '.', size)) abort();
  }
  free(exact);
  return 0;
}
