/* A region is the tenant's two pages mapped into this process.
 *
 * A region is opened once and stays mapped, because pages are changed in place and never replaced.
 * Opening a region closes its file descriptors again before it returns, because some programs close
 * all descriptors. The region itself survives a fork. The claim (slots.h) lies in a page of its own
 * that the kernel wipes in the child, so that the child owns no slot.
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
  PENSTOCK_E_MISSING,       /* the file or directory does not exist */
  PENSTOCK_E_UNREADABLE,    /* no permission, or another error of open, fstat or mmap; see errno */
  PENSTOCK_E_NOT_A_FILE,    /* it is a directory, a symbolic link or a device */
  PENSTOCK_E_TRUNCATED,     /* it is shorter than the page should be */
  PENSTOCK_E_WRONG_MAGIC,   /* it is not a page of this kind */
  PENSTOCK_E_OTHER_VERSION, /* it is a page of another version */
  PENSTOCK_E_INVALID,       /* a field is out of bounds */
  PENSTOCK_E_NO_MEMORY,     /* there is no memory left, or the page's file system is full */
  PENSTOCK_E_READ_ONLY,     /* a view cannot reserve or claim */
  PENSTOCK_E_NO_SLOT,       /* living processes hold every slot */
  PENSTOCK_E_OVER_LIMIT,    /* the reservation would exceed the limit */
  PENSTOCK_E_UNWRITABLE,    /* the usage page can be read but not written */
} penstock_error;

typedef struct penstock_claim penstock_claim; /* see slots.h */

typedef struct penstock_region {
  const penstock_quota_page *quota; /* mapped read-only */
  penstock_usage_page *usage;       /* shared with the tenant's processes; read-only in a view */
  penstock_claim *claim;            /* wiped on fork; NULL in a view */
  /* Callback for a new claim, or NULL. The thread that claims a slot calls it after each claim,
   * without holding a lock. Set it after opening the region and before other threads use it. */
  void (*claimed)(const struct penstock_region *region);
} penstock_region;

/* Returns the meaning of an error as a verb phrase, such as "is shorter than the page it should
 * hold". */
const char *penstock_error_text(penstock_error error);

/* Writes a sentence about the pages in DIRECTORY that explains the error and says what to do. For a
 * page of another version, it names both versions. */
void penstock_region_explain(penstock_error error, const char *directory, char *out, size_t size);

/* Maps DIRECTORY/quota read-only and DIRECTORY/usage read-write. Claims no slot. On failure, the
 * region is zeroed and nothing stays mapped. */
penstock_error penstock_region_open(penstock_region *region, const char *directory);

/* Opens a view, which maps both pages read-only, for the NVML view and for tools. */
penstock_error penstock_region_open_view(penstock_region *region, const char *directory);

/* Unmaps the region. Does not release the slot; penstock_slot_release does. */
void penstock_region_close(penstock_region *region);

/* Returns the limits in force. The pointer stays readable for ever. Each field read through it is a
 * whole value, because a copy is rewritten only by the change after the next one. Call again to see
 * changes. */
static inline const penstock_limits *penstock_region_limits(const penstock_region *region) {
  return &region->quota->copies[__atomic_load_n(&region->quota->current, __ATOMIC_ACQUIRE) & 1];
}

/* Makes a consistent copy of one device's limits, for readers of several related fields; slice.h
 * has the time slice. Returns false if there is no such device. */
bool penstock_region_device_limit(const penstock_region *region, unsigned device,
                                  penstock_device_limit *out);

/* Returns the number of granted devices, at most PENSTOCK_MAX_DEVICES. */
static inline unsigned penstock_region_device_count(const penstock_region *region) {
  uint32_t count = __atomic_load_n(&penstock_region_limits(region)->device_count, __ATOMIC_RELAXED);
  return count < PENSTOCK_MAX_DEVICES ? count : PENSTOCK_MAX_DEVICES;
}

/* Returns whether this release can read pages of this version. */
bool penstock_version_is_read(uint32_t version);

/* Checks that an open file holds a page of this magic, a readable version and `size` bytes. */
penstock_error penstock_page_check(int fd, uint64_t magic, uint64_t size);
