/* Marks: they identify an open file description, and show whether it is still open anywhere.
 *
 * A driver exports memory as a descriptor of its control device. All of these are files of one
 * device node: neither fstat nor the name tells them apart. A mark is a read lock of the kind that
 * belongs to the open file description (F_OFD_SETLK), on one byte at a random offset. The
 * description keeps it wherever it goes: dup, fork, another process by SCM_RIGHTS, a socket's
 * queue, a kernel driver that keeps the file. The mark goes when the last of these closes the
 * description, and in no other way. A process with the descriptor reads the mark in its fdinfo; any
 * other process checks whether the byte is locked, through the same node or in /proc/locks.
 *
 * No other program locks bytes of a device's node, and the kernel does not compare locks of
 * different bytes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PENSTOCK_MARK_PATH_BYTES 16

typedef struct penstock_mark {
  uint64_t offset;                     /* 0: none */
  uint64_t file;                       /* inode; 0: several, or not known */
  char path[PENSTOCK_MARK_PATH_BYTES]; /* of that inode's node, if short enough */
} penstock_mark;

/* A new random offset. */
uint64_t penstock_mark_draw(void);

/* `file` and `path` of a descriptor's file. */
void penstock_mark_describe(int descriptor, penstock_mark *mark);

/* Puts the mark on the description behind `descriptor`. False: the kernel does not take it. */
bool penstock_mark_put(int descriptor, uint64_t offset);

/* The offset of the mark of the description behind `descriptor`. 0: it has none, or several. */
uint64_t penstock_mark_of(int descriptor);

/* State of a check of several marks: opens and reads each file once. Must begin zeroed. */
typedef struct penstock_mark_look {
  int descriptor; /* open if `file` is not 0 */
  uint64_t file;
  bool have_read_locks;
  char *locks; /* /proc/locks; NULL: unreadable */
} penstock_mark_look;

/* Whether any description with this mark is open. True when that is unknown. */
bool penstock_mark_is_open(penstock_mark_look *look, const penstock_mark *mark);
void penstock_mark_look_end(penstock_mark_look *look);
