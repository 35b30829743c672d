/* Marks: what tells one open file description from another, and whether it is still open anywhere.
 *
 * A driver hands memory out as a descriptor of its control device. All of these are files of one
 * device node: fstat tells them apart no more than the name does. A mark is a read lock of the kind
 * that belongs to the open file description (F_OFD_SETLK), on one byte at an offset that is drawn
 * at random. The description takes it along wherever it goes: dup, fork, another process by
 * SCM_RIGHTS, a socket's queue, a driver of the kernel that keeps the file. It is gone when the
 * last of these lets go, and by no other's doing. Who has the descriptor reads the mark in its
 * fdinfo; who has none asks whether the byte is locked, through the same node or in /proc/locks.
 *
 * Nobody else locks bytes of a device's node, and the kernel compares no locks of different bytes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PENSTOCK_MARK_PATH_BYTES 16

typedef struct penstock_mark {
  uint64_t offset;                     /* 0: none */
  uint64_t file;                       /* which inode; 0: several, or not known */
  char path[PENSTOCK_MARK_PATH_BYTES]; /* of that inode's node, where it is a short one */
} penstock_mark;

/* An offset that nobody has. */
uint64_t penstock_mark_draw(void);

/* `file` and `path` of a descriptor's file. */
void penstock_mark_describe(int descriptor, penstock_mark *mark);

/* Puts the mark on the description behind `descriptor`. False: the kernel does not take it. */
bool penstock_mark_put(int descriptor, uint64_t offset);

/* The offset of the mark of the description behind `descriptor`. 0: it has none, or several. */
uint64_t penstock_mark_of(int descriptor);

/* One look at several marks: opens and reads what it needs once. Begins zeroed. */
typedef struct penstock_mark_look {
  int descriptor; /* open if `file` is not 0 */
  uint64_t file;
  bool have_read_locks;
  char *locks; /* /proc/locks; NULL: cannot be told */
} penstock_mark_look;

/* Whether any description with this mark is open. True when that cannot be told. */
bool penstock_mark_is_open(penstock_mark_look *look, const penstock_mark *mark);
void penstock_mark_look_end(penstock_mark_look *look);
