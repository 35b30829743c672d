/* builds: plain address */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "mechanism/mark.h"

static bool is_open(const penstock_mark *mark) {
  penstock_mark_look look = {0};
  bool open = penstock_mark_is_open(&look, mark);
  penstock_mark_look_end(&look);
  return open;
}

/* A file of a device's node, as a driver's descriptors are; and one without a name. */
static int device(void) { return open("/dev/zero", O_RDWR | O_CLOEXEC); }
static int nameless(void) { return memfd_create("nameless", MFD_CLOEXEC); }

static penstock_mark put(int descriptor) {
  penstock_mark mark = {.offset = penstock_mark_draw()};
  penstock_mark_describe(descriptor, &mark);
  CHECK(penstock_mark_put(descriptor, mark.offset));
  return mark;
}

TEST(a_mark_tells_files_of_one_device_apart) {
  int first = device(), second = device(), unmarked = device();
  penstock_mark one = put(first), two = put(second);
  CHECK(one.file == two.file && one.offset != two.offset);
  CHECK(strcmp(one.path, "/dev/zero") == 0);
  CHECK_EQUAL(penstock_mark_of(first), one.offset);
  CHECK_EQUAL(penstock_mark_of(second), two.offset);
  CHECK_EQUAL(penstock_mark_of(unmarked), 0);
  close(first);
  CHECK(!is_open(&one) && is_open(&two));
  close(second);
  close(unmarked);
  CHECK(!is_open(&two));
}

static void goes_along_with_every_copy(int (*make)(void)) {
  int descriptor = make(), copy = dup(descriptor), ends[2];
  penstock_mark mark = put(descriptor);
  close(descriptor);
  CHECK(is_open(&mark));
  CHECK_EQUAL(penstock_mark_of(copy), mark.offset);
  CHECK(pipe(ends) == 0);
  pid_t child = fork();
  if (child == 0) { /* has the copy, and the memory of nobody */
    char byte;
    close(ends[1]);
    _exit(read(ends[0], &byte, 1) == 0 && penstock_mark_of(copy) == mark.offset ? 0 : 1);
  }
  close(copy);
  CHECK(is_open(&mark));
  close(ends[1]);
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  close(ends[0]);
  CHECK(!is_open(&mark));
}

static void lies_in_a_queue(int (*make)(void)) {
  int descriptor = make(), sockets[2];
  penstock_mark mark = put(descriptor);
  char byte = 'x', control[CMSG_SPACE(sizeof descriptor)] = {0};
  struct msghdr message = {.msg_iov = &(struct iovec){&byte, 1},
                           .msg_iovlen = 1,
                           .msg_control = control,
                           .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  *header = (struct cmsghdr){CMSG_LEN(sizeof descriptor), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  CHECK(sendmsg(sockets[0], &message, 0) == 1);
  close(descriptor);
  close(sockets[0]);
  CHECK(is_open(&mark));
  close(sockets[1]);
  CHECK(!is_open(&mark));
}

/* What a program does to files without knowing of marks leaves them alone. */
TEST(a_mark_is_lost_by_unlocking_the_description_and_by_nothing_else) {
  int descriptor = device(), copy = dup(descriptor), other = device();
  penstock_mark mark = put(descriptor);
  struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
  CHECK(fcntl(copy, F_SETLK, &all) == 0); /* of the process's own kind */
  CHECK(fcntl(other, F_OFD_SETLK, &all) == 0);
  CHECK(flock(copy, LOCK_EX) == 0 && flock(copy, LOCK_UN) == 0);
  close(copy);
  close(other);
  CHECK(is_open(&mark));
  pid_t child = fork();
  if (child == 0) _exit(fcntl(descriptor, F_OFD_SETLK, &all) == 0 ? 0 : 1);
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(!is_open(&mark)); /* for all its holders */
  close(descriptor);
}

/* More locks than the kernel lists in one go. */
TEST(a_mark_is_found_among_more_locks_than_are_listed_in_one_go) {
  enum { MANY = 300 };
  int others[MANY], descriptor = nameless();
  penstock_mark mark = put(descriptor);
  CHECK(mark.path[0] == 0);
  for (int i = 0; i < MANY; i++) put(others[i] = device());
  CHECK(is_open(&mark));
  close(descriptor);
  for (int i = 0; i < 200 && is_open(&mark); i++) usleep(1000); /* others' locks come and go */
  CHECK(!is_open(&mark));
  for (int i = 0; i < MANY; i++) close(others[i]);
}

TEST(a_file_in_doubt_counts_as_open_and_bears_no_mark) {
  int descriptor = device();
  penstock_mark mark = put(descriptor);
  struct flock theirs = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 7, .l_len = 1};
  CHECK(fcntl(descriptor, F_OFD_SETLK, &theirs) == 0); /* the program's own */
  CHECK_EQUAL(penstock_mark_of(descriptor), mark.offset);
  put(descriptor);
  CHECK_EQUAL(penstock_mark_of(descriptor), 0); /* two marks tell nothing */
  mark.file ^= 2;                               /* as if the node of that name were another here */
  CHECK(is_open(&mark));
  close(descriptor);
  for (int i = 0; i < 200 && is_open(&mark); i++) usleep(1000);
  CHECK(!is_open(&mark));
  CHECK(!penstock_mark_put(-1, mark.offset));
  CHECK_EQUAL(penstock_mark_of(-1), 0);
}

TEST(a_mark_goes_along_with_every_copy_of_a_descriptor) {
  goes_along_with_every_copy(device);
  goes_along_with_every_copy(nameless);
}

TEST(a_mark_stays_while_its_file_lies_in_a_sockets_queue) {
  lies_in_a_queue(device);
  lies_in_a_queue(nameless);
}
