#define _GNU_SOURCE
#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/files.h"

#define LINE_BYTES 512

static void write_line(const char *target, const char *line, size_t length) {
  if (strcmp(target, "1") == 0 || strcmp(target, "stderr") == 0) {
    ssize_t ignored = penstock_file_write(STDERR_FILENO, line, length);
    (void)ignored;
    return;
  }
  /* The file is opened for each line because a host program may close every descriptor that it does
   * not know. */
  int fd = penstock_file_open(target, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return;
  ssize_t ignored = penstock_file_write(fd, line, length);
  (void)ignored;
  penstock_file_close(fd);
}

void penstock_log(const char *format, ...) {
  const char *target = secure_getenv("PENSTOCK_LOG");
  if (!target || !*target) return;
  int saved_errno = errno;
  char line[LINE_BYTES];
  int length = snprintf(line, sizeof line, "penstock[%d]: ", (int)getpid());
  va_list arguments;
  va_start(arguments, format);
  length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
  va_end(arguments);
  if (length > LINE_BYTES - 2) length = LINE_BYTES - 2;
  line[length++] = '\n';
  write_line(target, line, (size_t)length);
  errno = saved_errno;
}
