/* File access by direct system calls. libc's functions are not used because they are cancellation
 * points, which must not be reached while a lock is held, and because a program may define
 * functions with the same names. */
#pragma once

#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static inline int penstock_file_open(const char *path, int flags) {
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0600);
}

static inline ssize_t penstock_file_read(int file, void *buffer, size_t bytes) {
  return (ssize_t)syscall(SYS_read, file, buffer, bytes);
}

static inline ssize_t penstock_file_write(int file, const void *buffer, size_t bytes) {
  return (ssize_t)syscall(SYS_write, file, buffer, bytes);
}

static inline void penstock_file_close(int file) { syscall(SYS_close, file); }
