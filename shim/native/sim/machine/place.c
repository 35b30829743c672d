#define _GNU_SOURCE /* for dladdr */
#include "sim/machine/place.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONGEST_PATH 4096

/* Finds `file` in the directory of this library. Returns false if there is no such file. */
static bool beside(const char *file, char *path, size_t size) {
  Dl_info self;
  if (!dladdr(&beside, &self) || !self.dli_fname) return false;
  const char *slash = strrchr(self.dli_fname, '/');
  if (!slash) return false;
  int length = snprintf(path, size, "%.*s/%s", (int)(slash - self.dli_fname), self.dli_fname, file);
  return length > 0 && (size_t)length < size && access(path, F_OK) == 0;
}

static const char *variable(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

const char *sim_place_machine(char *buffer, size_t size) {
  return beside("machine", buffer, size) ? buffer : variable("PENSTOCK_SIM_MACHINE");
}

const char *sim_place_tag(char *buffer, size_t size) {
  char path[LONGEST_PATH];
  int fd = beside("tag", path, sizeof path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return variable("PENSTOCK_SIM_TAG");
  ssize_t got = read(fd, buffer, size - 1);
  close(fd);
  if (got <= 0) return variable("PENSTOCK_SIM_TAG");
  buffer[got] = 0;
  buffer[strcspn(buffer, "\n")] = 0;
  return buffer;
}
