/* Recognition of the driver's file by device and inode rather than by name. */
#pragma once

#include <stdbool.h>

typedef enum penstock_vendor_library { PENSTOCK_LIBCUDA, PENSTOCK_LIBNVML } penstock_vendor_library;

/* Returns true if `path` leads, through any symbolic or hard link, to the driver's library or to a
 * newer one of the program. Costs one stat; the first calls also read the path in the quota page
 * and search for newer drivers. Takes no lock, allocates nothing, keeps errno. */
bool penstock_is_file_below(const char *path, penstock_vendor_library which);
