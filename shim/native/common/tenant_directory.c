#define _GNU_SOURCE /* for secure_getenv */
#include "common/tenant_directory.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

const char *penstock_tenant_directory(void) {
  if (access(PENSTOCK_MOUNTED_DIRECTORY "/quota", F_OK) == 0 ||
      (errno != ENOENT && errno != ENOTDIR)) {
    return PENSTOCK_MOUNTED_DIRECTORY;
  }
  return secure_getenv("PENSTOCK_TENANT_DIR");
}
