/* Marks identify an open file description and show whether it is still open anywhere.
 *
 * A driver exports memory as a descriptor of its control device. All such descriptors refer to the
 * same device node, so neither fstat nor the name tells them apart. A mark is an advisory read lock
 * of the kind that belongs to an open file description (F_OFD_SETLK), on one byte at a random
 * offset. The description keeps the lock wherever it goes: through dup and fork, to another process
 * by SCM_RIGHTS, into a socket's queue, or into a kernel driver that keeps the file. The lock is
 * released only when the last reference to the description is closed. A process that has the
 * descriptor reads the mark in its fdinfo. Any other process checks whether the byte is locked,
 * through the same node or in /proc/locks.
 *
 * No other program locks bytes of a device node, and locks on different bytes do not conflict.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PENSTOCK_MARK_PATH_BYTES 16

typedef struct penstock_mark {
  uint64_t offset; /* 0 if none */
  /* hash that identifies the file, 0 if there are several files or it is unknown */
  uint64_t file;
  char path[PENSTOCK_MARK_PATH_BYTES]; /* path of the device node, empty if it is too long */
} penstock_mark;

/* Returns a new random offset for a mark. */
uint64_t penstock_mark_draw(void);

/* Sets `file` and `path` of the mark to those of a descriptor's file. */
void penstock_mark_describe(int descriptor, penstock_mark *mark);

/* Sets the mark on the open file description of `descriptor`. Returns false if the kernel
 * refuses. */
bool penstock_mark_put(int descriptor, uint64_t offset);

/* Returns the offset of the mark on the open file description of `descriptor`, or 0 if it has no
 * mark or several. */
uint64_t penstock_mark_of(int descriptor);

/* State of a check of several marks, which opens and reads each file only once. Must be zeroed
 * first. */
typedef struct penstock_mark_look {
  int descriptor; /* valid if `file` is not 0 */
  uint64_t file;
  bool have_read_locks;
  char *locks; /* contents of /proc/locks, NULL if unreadable */
} penstock_mark_look;

/* Returns whether any open file description has this mark, and true if that cannot be
 * determined. */
bool penstock_mark_is_open(penstock_mark_look *look, const penstock_mark *mark);
void penstock_mark_look_end(penstock_mark_look *look);
