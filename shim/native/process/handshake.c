#define _GNU_SOURCE /* for O_PATH */
#include "process/handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "abi/handshake.h"
#include "common/log.h"
#include "mechanism/slots.h"

#define SOCKET "handshake"

/* The socket functions here are direct system calls because libc's functions are cancellation
 * points, and because other preloaded libraries (proxies, tracers) replace socket() and
 * connect(). */
static int make_socket(void) {
  return (int)syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static void close_quietly(int fd) {
  if (fd >= 0) syscall(SYS_close, fd);
}

/* Fills in the socket's address. If the path is too long for an address, the socket is reached
 * through a descriptor of its directory, which the caller closes. */
static bool find_address(struct sockaddr_un *address, const char *directory, int *descriptor) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  int length = snprintf(address->sun_path, sizeof address->sun_path, "%s/" SOCKET, directory);
  if (length > 0 && length < (int)sizeof address->sun_path) return true;
  *descriptor = (int)syscall(SYS_openat, AT_FDCWD, directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (*descriptor < 0) return false;
  snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/" SOCKET, *descriptor);
  return true;
}

static bool send_to(const struct sockaddr_un *address, const penstock_handshake *message) {
  int fd = make_socket();
  if (fd < 0) return false;
  bool sent = syscall(SYS_connect, fd, address, sizeof *address) == 0 &&
              syscall(SYS_sendto, fd, message, sizeof *message, MSG_DONTWAIT | MSG_NOSIGNAL, NULL,
                      0) == (long)sizeof *message;
  int why = errno;
  close_quietly(fd);
  errno = why;
  return sent;
}

void penstock_handshake_send(const penstock_region *region, const char *directory) {
  _Static_assert(sizeof(PENSTOCK_VERSION) <= PENSTOCK_LIBRARY_BYTES, "the release fits its field");
  const penstock_claim *claim = region->claim;
  penstock_handshake message = {
      .magic = PENSTOCK_HANDSHAKE_MAGIC,
      .version = PENSTOCK_HANDSHAKE_VERSION,
      .abi_version = PENSTOCK_ABI_VERSION,
      .owner = claim->owner,
      .start_ticks = claim->identity.start_ticks,
      .slot = claim->slot,
      .pid = claim->identity.pid,
      .library = PENSTOCK_VERSION,
  };
  struct sockaddr_un address;
  int descriptor = -1;
  if (!find_address(&address, directory, &descriptor) || !send_to(&address, &message)) {
    penstock_log("no handshake was sent to an agent (%s); the process continues without it",
                 strerror(errno));
  }
  close_quietly(descriptor);
}
