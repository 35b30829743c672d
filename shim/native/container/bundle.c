#include "container/bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "container/json.h"

/* bytes; a configuration with thousands of mounts is smaller */
#define LONGEST_DOCUMENT (16u << 20)

/* Reads all of `fd` into a string. Returns NULL if it cannot be read or is too long. */
static char *read_all(int fd) {
  size_t size = 0, room = 1 << 16;
  char *text = malloc(room);
  while (text) {
    ssize_t got = read(fd, text + size, room - size - 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      text[size] = 0;
      if (got == 0) return text;
      break;
    }
    size += (size_t)got;
    if (room - size > 1) continue;
    char *more = room < LONGEST_DOCUMENT ? realloc(text, room *= 2) : NULL;
    if (!more) break;
    text = more;
  }
  free(text);
  return NULL;
}

static char *read_file(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NULL;
  char *text = read_all(fd);
  close(fd);
  return text;
}

bool bundle_root(char root[PATH_MAX], const char **wrong) {
  char bundle[PATH_MAX], path[PATH_MAX];
  char *state = read_all(STDIN_FILENO);
  bool found = state && json_find_string(state, "bundle", NULL, bundle, sizeof bundle);
  free(state);
  *wrong = "standard input holds no OCI state that names a bundle";
  if (!found) return false;
  *wrong = "the bundle's config.json names no root";
  if (snprintf(path, sizeof path, "%s/config.json", bundle) >= (int)sizeof path) return false;
  char *config = read_file(path);
  found = config && json_find_string(config, "root", "path", path, sizeof path);
  free(config);
  if (!found) return false;
  int length = path[0] == '/' ? snprintf(root, PATH_MAX, "%s", path)
                              : snprintf(root, PATH_MAX, "%s/%s", bundle, path);
  return length < PATH_MAX;
}
