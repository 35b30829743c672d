/* The tenant's two pages in this process's memory.
 *
 * A region is opened once and stays mapped: pages are changed in place, never replaced. Opening
 * closes its file descriptors at once (programs close all of theirs). The region itself
 * survives a fork; the claim (slots.h) lies in a page of its own that the kernel wipes in the
 * child, so that the child of a fork owns no slot.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/quota.h"
#include "abi/ledger.h"
#include "abi/gate.h"
#include "abi/asked.h"
#include "abi/usage.h"

typedef enum penstock_error {
  PENSTOCK_OK = 0,
  PENSTOCK_E_MISSING,       /* no such file or directory */
  PENSTOCK_E_UNREADABLE,    /* permission or another error of open, fstat, mmap; see errno */
  PENSTOCK_E_NOT_A_FILE,    /* a directory, a symbolic link, a device */
  PENSTOCK_E_TRUNCATED,     /* shorter than the page it should hold */
  PENSTOCK_E_WRONG_MAGIC,   /* not a page of this kind */
  PENSTOCK_E_OTHER_VERSION, /* a page of another version */
  PENSTOCK_E_INVALID,       /* a field is out of bounds */
  PENSTOCK_E_NO_MEMORY,     /* no memory, or the page's file system is full */
  PENSTOCK_E_READ_ONLY,     /* a view cannot reserve or claim */
  PENSTOCK_E_NO_SLOT,       /* every slot is held by a living process */
  PENSTOCK_E_OVER_LIMIT,    /* the reservation would exceed the limit */
  PENSTOCK_E_UNWRITABLE,    /* the usage page may be read, but its users must write it */
} penstock_error;

typedef struct penstock_claim penstock_claim; /* slots.h */

typedef struct penstock_region {
  const penstock_quota_page *quota; /* mapped read-only */
  penstock_usage_page *usage;       /* shared with the tenant's processes; read-only in a view */
  penstock_claim *claim;            /* wiped on fork; NULL in a view */
  /* The thread that claims a slot calls this after each claim, without a lock held. NULL: no
   * callback. Set it after opening, before the region is shared with other threads. */
  void (*claimed)(const struct penstock_region *region);
} penstock_region;

/* Meaning of the error, as the end of a sentence: "is shorter than the page it should hold". */
const char *penstock_error_text(penstock_error error);

/* Meaning of the error as a whole sentence about the pages in DIRECTORY, with what to do. For a
 * page of another version it names both versions. */
void penstock_region_explain(penstock_error error, const char *directory, char *out, size_t size);

/* Maps DIRECTORY/quota read-only and DIRECTORY/usage read-write. Claims no slot. On an error the
 * region is all zero and nothing stays mapped. */
penstock_error penstock_region_open(penstock_region *region, const char *directory);

/* Opens a view, with both pages read-only, for readers: NVML view, tools. */
penstock_error penstock_region_open_view(penstock_region *region, const char *directory);

/* Unmaps. Does not hand the slot back: see penstock_slot_release. */
void penstock_region_close(penstock_region *region);

/* The limits in force. The pointer stays readable for ever; each field read is a whole value, and
 * the copy is rewritten only by the change after the next. Call again to see changes. */
static inline const penstock_limits *penstock_region_limits(const penstock_region *region) {
  return &region->quota->copies[__atomic_load_n(&region->quota->current, __ATOMIC_ACQUIRE) & 1];
}

/* A consistent copy of one device's limit, for readers of several fields that belong together; for
 * its time slice see turn.h. False when there is no such device. */
bool penstock_region_device_limit(const penstock_region *region, unsigned device,
                                  penstock_device_limit *out);

/* Devices granted, never above PENSTOCK_MAX_DEVICES. */
static inline unsigned penstock_region_device_count(const penstock_region *region) {
  uint32_t count = __atomic_load_n(&penstock_region_limits(region)->device_count, __ATOMIC_RELAXED);
  return count < PENSTOCK_MAX_DEVICES ? count : PENSTOCK_MAX_DEVICES;
}

/* Whether this release reads pages of this version. */
bool penstock_version_is_read(uint32_t version);

/* Checks that an open file holds a page of this magic, this version and `size` bytes. */
penstock_error penstock_page_check(int fd, uint64_t magic, uint64_t size);
