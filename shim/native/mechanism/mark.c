#define _GNU_SOURCE
#include "mechanism/mark.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/files.h"
#include "mechanism/random.h"

#ifndef F_OFD_GETLK /* not defined in older headers */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define LOWEST_OFFSET ((uint64_t)1 << 61) /* beyond the end of any file */
#define ONE_READ_BYTES 4096 /* maximum length of a list that the kernel returns in one read */
#define MOST_LOCKS_BYTES ((size_t)4 << 20)
#define MOST_READINGS 6

/* Calls fcntl as a system call, for the reason given in common/files.h. */
static long lock_call(int descriptor, int command, struct flock *lock) {
  return syscall(SYS_fcntl, descriptor, command, lock);
}

static struct flock byte_at(uint64_t offset, short type) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = 1};
}

uint64_t penstock_mark_draw(void) {
  return LOWEST_OFFSET | (penstock_random() & (LOWEST_OFFSET - 1));
}

static uint64_t file_of(int descriptor) {
  struct stat file;
  if (fstat(descriptor, &file) != 0) return 0;
  return penstock_mix((uint64_t)file.st_dev << 32 ^ penstock_mix(file.st_ino)) | 1;
}

static void link_to(int descriptor, const char *folder, char path[40]) {
  snprintf(path, 40, "/proc/self/%s/%d", folder, descriptor);
}

void penstock_mark_describe(int descriptor, penstock_mark *mark) {
  char link[40], path[PENSTOCK_MARK_PATH_BYTES] = {0};
  struct stat file;
  int saved_errno = errno;
  link_to(descriptor, "fd", link);
  mark->file = file_of(descriptor);
  ssize_t length = readlink(link, path, sizeof path);
  bool is_node = fstat(descriptor, &file) == 0 && S_ISCHR(file.st_mode);
  if (!is_node || length < 0 || length == (ssize_t)sizeof path || path[0] != '/') path[0] = 0;
  memcpy(mark->path, path, sizeof path);
  errno = saved_errno;
}

bool penstock_mark_put(int descriptor, uint64_t offset) {
  int saved_errno = errno;
  struct flock lock = byte_at(offset, F_RDLCK);
  bool is_put = lock_call(descriptor, F_OFD_SETLK, &lock) == 0;
  errno = saved_errno;
  return is_put;
}

/* Reads a whole file in /proc and counts the reads in `pieces`. Returns NULL on failure. */
static char *read_whole(const char *path, unsigned *pieces) {
  size_t room = 0, length = 0;
  char *text = NULL;
  int file = penstock_file_open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  ssize_t got = file < 0 ? -1 : 1;
  *pieces = 0;
  while (got > 0) {
    if (room - length <= ONE_READ_BYTES) {
      room = room ? room * 2 : 4 * ONE_READ_BYTES;
      char *larger = room <= MOST_LOCKS_BYTES ? realloc(text, room) : NULL;
      got = larger ? got : -1;
      if (!larger) break;
      text = larger;
    }
    got = penstock_file_read(file, text + length, room - length - 1);
    if (got < 0 && errno == EINTR)
      got = 1;
    else if (got > 0)
      length += (size_t)got, ++*pieces;
  }
  if (file >= 0) penstock_file_close(file);
  if (got < 0) {
    free(text);
    return NULL;
  }
  text[length] = 0;
  return text;
}

static uint64_t number_at(const char *text) {
  uint64_t number = 0;
  for (; *text >= '0' && *text <= '9'; text++) number = number * 10 + (uint64_t)(*text - '0');
  return number;
}

/* Returns the offset in an fdinfo line such as "lock:\t1: OFDLCK ADVISORY  READ -1 00:06:91 FIRST
 * LAST", or 0 if the line shows no mark. */
static uint64_t offset_in(const char *line, const char *end) {
  const char *words[2] = {end, end}; /* the last two words of the line, last one first */
  if (!memmem(line, (size_t)(end - line), "OFDLCK", 6)) return 0;
  for (int i = 0; i < 2; i++) {
    while (words[i] > line && words[i][-1] != ' ') words[i]--;
    if (i == 0 && words[0] > line) words[1] = words[0] - 1;
  }
  uint64_t last = number_at(words[0]), first = number_at(words[1]);
  return first == last && first >= LOWEST_OFFSET ? first : 0;
}

uint64_t penstock_mark_of(int descriptor) {
  char path[40];
  unsigned pieces, found = 0;
  uint64_t offset = 0;
  int saved_errno = errno;
  link_to(descriptor, "fdinfo", path);
  char *text = read_whole(path, &pieces);
  for (const char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
    uint64_t here = strncmp(line, "lock:", 5) == 0 ? offset_in(line, end) : 0;
    found += here != 0;
    if (here) offset = here;
  }
  free(text);
  errno = saved_errno;
  return found == 1 ? offset : 0;
}

/* Returns the contents of /proc/locks, or NULL if it cannot be read completely. If reading takes
 * several reads, a line that was present all the time may be missed because an earlier line is
 * removed between two reads. The file is therefore read until two readings are equal. */
static char *read_locks(void) {
  char *before = NULL;
  for (int reading = 0; reading < MOST_READINGS; reading++) {
    unsigned pieces;
    char *now = read_whole("/proc/locks", &pieces);
    bool is_whole = now && (pieces <= 1 || (before && strcmp(before, now) == 0));
    free(before);
    if (is_whole || !now) return now;
    before = now;
  }
  free(before);
  return NULL;
}

static bool is_listed(penstock_mark_look *look, uint64_t offset) {
  char bytes[56];
  if (!look->have_read_locks) look->locks = read_locks();
  look->have_read_locks = true;
  if (!look->locks) return true;
  snprintf(bytes, sizeof bytes, " %llu %llu\n", (unsigned long long)offset,
           (unsigned long long)offset);
  return strstr(look->locks, bytes) != NULL;
}

/* Opens the mark's device node anew. Returns false if that is not possible. */
static bool open_node(penstock_mark_look *look, const penstock_mark *mark) {
  char path[PENSTOCK_MARK_PATH_BYTES + 1] = {0};
  if (!mark->file || !mark->path[0]) return false;
  if (look->file == mark->file) return true;
  memcpy(path, mark->path, PENSTOCK_MARK_PATH_BYTES);
  int node = penstock_file_open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (node < 0) return false;
  if (file_of(node) != mark->file) { /* the path names another node, as in another container */
    penstock_file_close(node);
    return false;
  }
  if (look->file) penstock_file_close(look->descriptor);
  look->descriptor = node;
  look->file = mark->file;
  return true;
}

bool penstock_mark_is_open(penstock_mark_look *look, const penstock_mark *mark) {
  if (!mark->offset) return false;
  int saved_errno = errno;
  struct flock lock = byte_at(mark->offset, F_WRLCK);
  bool is_known = open_node(look, mark) && lock_call(look->descriptor, F_OFD_GETLK, &lock) == 0;
  bool is_open = is_known ? lock.l_type != F_UNLCK : is_listed(look, mark->offset);
  errno = saved_errno;
  return is_open;
}

void penstock_mark_look_end(penstock_mark_look *look) {
  int saved_errno = errno;
  if (look->file) penstock_file_close(look->descriptor);
  free(look->locks);
  *look = (penstock_mark_look){0};
  errno = saved_errno;
}
