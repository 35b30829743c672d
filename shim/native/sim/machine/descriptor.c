/* Descriptors that keep memory. A driver's descriptors are files of one character device, which
 * only an ioctl tells apart. They keep their memory while any copy is open, in any process or
 * socket. Here they are master ends of pseudo-terminals: the window size identifies the memory, and
 * a slave whose master is closed cannot be opened. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/machine/model.h"

#define NODE "/dev/ptmx"
#define FOLDER "/dev/pts"
#define ID_BITS 40
#define MAGIC 0xd5u

_Static_assert(sizeof(struct winsize) == 8, "is one word");

static uint64_t label_of(uint32_t device, uint64_t shared, uint8_t kind) {
  return (uint64_t)MAGIC << 56 | (uint64_t)kind << 48 | (uint64_t)(device & 0xff) << ID_BITS |
         (shared & (((uint64_t)1 << ID_BITS) - 1));
}

static bool read_label(int terminal, uint64_t *label) {
  struct winsize size;
  if (ioctl(terminal, TIOCGWINSZ, &size)) return false;
  memcpy(label, &size, sizeof size);
  return *label >> 56 == MAGIC;
}

static uint64_t folder(void) {
  struct stat status;
  return stat(FOLDER, &status) == 0 ? (uint64_t)status.st_dev : 0;
}

static int open_terminal(uint64_t label, uint32_t *number) {
  struct winsize size;
  int unlocked = 0, terminal = open(NODE, O_RDWR | O_NOCTTY | O_CLOEXEC);
  memcpy(&size, &label, sizeof size);
  if (terminal >= 0 && !ioctl(terminal, TIOCGPTN, number) &&
      !ioctl(terminal, TIOCSPTLCK, &unlocked) && !ioctl(terminal, TIOCSWINSZ, &size))
    return terminal;
  if (terminal >= 0) close(terminal);
  return -1;
}

int sim_descriptor_make(sim_machine *m, uint32_t device, uint64_t shared, uint8_t kind) {
  uint32_t number;
  int made = open_terminal(label_of(device, shared, kind), &number);
  if (made < 0 || !shared) return made; /* without shared memory, the descriptor keeps nothing */
  sim_device *d = sim_lock(m, device);
  if (d->descriptor_count == SIM_DESCRIPTORS) sim_descriptors_look(d);
  bool found = false;
  for (int i = 0; i < SIM_DESCRIPTORS && !found; i++) {
    if (d->descriptors[i].shared) continue;
    d->descriptors[i] = (sim_descriptor){shared, folder(), number};
    d->descriptor_count++;
    sim_shared_described(d, shared, 1);
    found = true;
  }
  sim_unlock(d);
  if (found) return made;
  close(made);
  return -1;
}

bool sim_descriptor_read(int descriptor, uint8_t kind, uint32_t *device, uint64_t *shared) {
  uint64_t label;
  struct stat status;
  if (fstat(descriptor, &status) || !S_ISCHR(status.st_mode) || !read_label(descriptor, &label))
    return false;
  *device = (uint32_t)(label >> ID_BITS & 0xff);
  *shared = label & (((uint64_t)1 << ID_BITS) - 1);
  return label == label_of(*device, *shared, kind);
}

/* Returns whether a copy of the descriptor is open anywhere. Returns true if that is unknown,
 * because another devpts may be mounted here or the terminal may belong to another user. */
static bool is_open(const sim_descriptor *one) {
  char path[40];
  uint64_t label;
  if (one->folder != folder()) return true;
  snprintf(path, sizeof path, FOLDER "/%u", one->number);
  int terminal = open(path, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (terminal < 0) return errno != ENOENT && errno != EIO;
  bool same =
      read_label(terminal, &label) && (label & (((uint64_t)1 << ID_BITS) - 1)) == one->shared;
  close(terminal);
  return same;
}

void sim_descriptors_look(sim_device *d) {
  uint32_t left = d->descriptor_count;
  for (int i = 0; left && i < SIM_DESCRIPTORS; i++) {
    sim_descriptor *one = &d->descriptors[i];
    if (!one->shared) continue;
    left--;
    if (is_open(one)) continue;
    uint64_t shared = one->shared;
    one->shared = 0;
    d->descriptor_count--;
    sim_shared_described(d, shared, -1);
  }
}
