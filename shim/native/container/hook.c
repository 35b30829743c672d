/* OCI createContainer hook that loads the shim before the libraries in the image's own
 * /etc/ld.so.preload.
 *
 *     penstock-container-hook FOLDER LIBRARY...
 *
 * The runtime starts the hook in the container's mount namespace, before the container's root
 * becomes the root directory, with the OCI state on standard input. FOLDER and LIBRARY are paths in
 * the container. FOLDER is an empty folder inside the mounted shim. The hook mounts a small tmpfs
 * on FOLDER, writes the new preload file there, and mounts that file read-only over
 * /etc/ld.so.preload. It does not change the image, except that it creates an empty
 * /etc/ld.so.preload if there is none, because a bind mount needs a target.
 *
 * If any step fails, the hook fails too, so that no container starts without the shim.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "container/bundle.h"

#define PRELOAD "/etc/ld.so.preload"
/* maximum size of the image's own preload file, which is a list of paths */
#define LONGEST_PRELOAD (64u << 10)
#define HARMLESS (MS_NOSUID | MS_NODEV | MS_NOEXEC)

_Noreturn static void give_up(const char *format, ...) {
  int error = errno;
  va_list arguments;
  va_start(arguments, format);
  fputs("penstock: ", stderr);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  if (error) fprintf(stderr, ": %s", strerror(error));
  fputs("; the container is not started without its quota\n", stderr);
  exit(1);
}

/* Enters the container's root, so that all later paths and symbolic links are resolved inside the
 * container. */
static void enter_root(void) {
  char root[PATH_MAX];
  const char *wrong;
  errno = 0;
  if (!bundle_root(root, &wrong)) give_up("%s", wrong);
  if (chdir(root) || chroot(".")) give_up("cannot enter the container's root %s", root);
}

/* Reads the image's own preload file. Returns its length, 0 if there is no such file. */
static size_t read_own(char *text, size_t size) {
  int fd = open(PRELOAD, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return 0;
  struct stat found;
  if (fd < 0 || fstat(fd, &found)) give_up("cannot read the image's " PRELOAD);
  errno = 0;
  if (!S_ISREG(found.st_mode)) give_up("the image's " PRELOAD " is not a file");
  size_t length = 0;
  while (length < size) {
    ssize_t got = read(fd, text + length, size - length);
    if (got < 0) give_up("cannot read the image's " PRELOAD);
    if (got == 0) break;
    length += (size_t)got;
  }
  if (length == size) give_up("the image's " PRELOAD " is longer than %u bytes", LONGEST_PRELOAD);
  close(fd);
  return length;
}

/* Mounts a tmpfs to hold the new preload file. */
static void mount_folder(const char *folder, const char *file) {
  bool twice = access(file, F_OK) == 0;
  errno = 0;
  if (twice) give_up("two vGPUs in one container; ask for one vGPU that has several devices");
  if (access(folder, F_OK)) give_up("the shim is not mounted at %s", folder);
  if (mount("penstock", folder, "tmpfs", HARMLESS, "size=128k,mode=0755")) {
    give_up("cannot mount a tmpfs on %s", folder);
  }
}

static void write_all(int fd, const char *text, size_t length) {
  while (length) {
    ssize_t put = write(fd, text, length);
    if (put < 0) give_up("cannot write the container's " PRELOAD);
    text += put;
    length -= (size_t)put;
  }
}

static void write_preload(const char *path, char *const *libraries, const char *own,
                          size_t own_length) {
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) give_up("cannot make %s", path);
  for (; *libraries; libraries++) {
    write_all(fd, *libraries, strlen(*libraries));
    write_all(fd, "\n", 1);
  }
  write_all(fd, own, own_length);
  if (fchmod(fd, 0644) || close(fd)) give_up("cannot write %s", path);
}

/* Creates an empty /etc/ld.so.preload as a mount target. */
static void make_place(void) {
  if (mkdir("/etc", 0755) && errno != EEXIST) give_up("the image's root cannot be written");
  int fd = open(PRELOAD, O_RDONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0) give_up("the image has no " PRELOAD " and none can be made");
  close(fd);
}

int main(int argc, char **argv) {
  static char own[LONGEST_PRELOAD];
  char path[PATH_MAX];
  umask(022);
  if (argc < 3 || snprintf(path, sizeof path, "%s/ld.so.preload", argv[1]) >= (int)sizeof path) {
    fputs("usage: penstock-container-hook FOLDER LIBRARY... < OCI state\n", stderr);
    return 2;
  }
  enter_root();
  mount_folder(argv[1], path);
  size_t own_length = read_own(own, sizeof own);
  write_preload(path, argv + 2, own, own_length);
  make_place();
  if (mount(path, PRELOAD, NULL, MS_BIND, NULL)) give_up("cannot mount " PRELOAD);
  if (mount(NULL, PRELOAD, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | HARMLESS, NULL) ||
      mount(NULL, argv[1], NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | HARMLESS, NULL)) {
    give_up("cannot make " PRELOAD " read-only");
  }
  return 0;
}
