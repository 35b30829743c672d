#define _GNU_SOURCE /* O_PATH */
#include "handshake.h"

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

/* Not by libc's names: a thread could be cancelled in there, and what else is preloaded (proxies,
 * tracers) puts itself in the place of socket() and connect(). */
static int make_socket(void) {
  return (int)syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static void close_quietly(int fd) {
  if (fd >= 0) syscall(SYS_close, fd);
}

/* A longer path than an address holds is reached through the folder's descriptor, left in `folder`
 * for the caller to close. */
static bool find(struct sockaddr_un *address, const char *directory, int *folder) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  int length = snprintf(address->sun_path, sizeof address->sun_path, "%s/" SOCKET, directory);
  if (length > 0 && length < (int)sizeof address->sun_path) return true;
  *folder = (int)syscall(SYS_openat, AT_FDCWD, directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (*folder < 0) return false;
  snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/" SOCKET, *folder);
  return true;
}

static bool send_to(const struct sockaddr_un *address, const penstock_handshake *message) {
  int fd = make_socket();
  if (fd < 0) return false;
  bool said = syscall(SYS_connect, fd, address, sizeof *address) == 0 &&
              syscall(SYS_sendto, fd, message, sizeof *message, MSG_DONTWAIT | MSG_NOSIGNAL, NULL,
                      0) == (long)sizeof *message;
  int why = errno;
  close_quietly(fd);
  errno = why;
  return said;
}

void penstock_handshake_say(const penstock_region *region, const char *directory) {
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
  int folder = -1;
  if (!find(&address, directory, &folder) || !send_to(&address, &message)) {
    penstock_log("no handshake with an agent (%s): goes on without", strerror(errno));
  }
  close_quietly(folder);
}
