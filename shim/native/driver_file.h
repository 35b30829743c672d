/* The driver's own file, told by what it is and not by its name. */
#pragma once

#include <stdbool.h>

typedef enum penstock_vendor_library { PENSTOCK_LIBCUDA, PENSTOCK_LIBNVML } penstock_vendor_library;

/* True when `path` leads to the file of the library below, or of a newer driver that the program
 * brings along, through whatever symbolic or hard link. One stat; the first ones also read the
 * quota page's path and look for newer drivers. No lock, no allocation, errno as it was.
 */
bool penstock_is_file_below(const char *path, penstock_vendor_library which);
