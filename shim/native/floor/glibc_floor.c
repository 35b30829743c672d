/* System calls that replace glibc functions newer than the oldest glibc we support. They are
 * hidden, so that only this library uses them. floor.cmake does the rest. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Before glibc 2.33, the headers defined these functions inline. */
#if __GLIBC_PREREQ(2, 33)
int stat(const char *path, struct stat *found) {
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, found, 0);
}

int fstat(int fd, struct stat *found) { return (int)syscall(SYS_fstat, fd, found); }
#endif

pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

int memfd_create(const char *name, unsigned flags) {
  return (int)syscall(SYS_memfd_create, name, flags);
}
