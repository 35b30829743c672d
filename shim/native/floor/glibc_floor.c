/* Functions that glibc has had as exports only since a release above our floor, as the kernel's
 * calls that they are. Hidden: for this library alone. The other half of the floor is floor.cmake.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Until 2.33 the headers had these inline. */
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
