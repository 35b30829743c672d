/* The quota page holds what a tenant was granted. The agent (or `penstock run`) writes it, and the
 * shim maps it read-only. It is plain C without includes because cffi parses this header.
 *
 * To change the limits, the writer (publish.c) zeroes the generation of copies[current ^ 1], fills
 * that copy, stores its generation, stores `current`, and then increments `change_futex` and wakes
 * its waiters. A writer that is killed at any instruction leaves the old limits in force. A page's
 * devices keep their number and order, because the ledger in the usage page uses the same device
 * indexes. The UUID at an index changes only while the tenant's memory is released, when the driver
 * moves the tenant to another device.
 *
 * A tenant keeps its page version across upgrades. A reader accepts versions from
 * PENSTOCK_ABI_OLDEST to PENSTOCK_ABI_VERSION. PENSTOCK_ABI_OLDEST is either the same version or
 * the one before it; the latter only if both have the same layout and every field that the newer
 * version added was reserved, and zero, in the older one (ADR 21).
 *
 * The words of the time slice are not limits. The time-slice scheduler writes them in place, in
 * copies[0], and they are in force whichever copy is current (mechanism/slice.h). Publishing new
 * limits leaves them unchanged.
 */
#pragma once
#define PENSTOCK_QUOTA_MAGIC 0x41544f55514e4550 /* "PENQUOTA", little-endian */
#define PENSTOCK_ABI_VERSION 3
#define PENSTOCK_ABI_OLDEST 2
#define PENSTOCK_MAX_DEVICES 16
#define PENSTOCK_MAX_SLOTS 1024

#define PENSTOCK_MODE_STRICT 0
#define PENSTOCK_MODE_ELASTIC 1

#define PENSTOCK_TENANT_SUSPENDED 1 /* flag: launches wait until it is cleared */
/* flag: unknown functions that may allocate are forwarded */
#define PENSTOCK_TENANT_ALLOW_UNKNOWN 2
#define PENSTOCK_TENANT_RECORD 4 /* flag: functions that are only forwarded are counted too */

/* flag: the driver has released the tenant's device memory, or is about to. Processes that have not
 * begun to use the driver or a device wait until it is cleared (version 3) */
#define PENSTOCK_TENANT_RELEASED 8

#define PENSTOCK_DEVICE_MIG 1 /* device flag: the UUID is that of a MIG instance */

/* slice flag: work of an earlier time slice may still be running */
#define PENSTOCK_SLICE_SHARED 1

typedef struct penstock_device_limit {
  uint8_t uuid[16];               /* device UUID as cuDeviceGetUuid returns it */
  uint64_t memory_bytes;          /* hard memory limit, enforced by the ledger */
  uint64_t context_reserve_bytes; /* memory charged for every context on this device */
  uint32_t cores_permille;        /* granted share of device time, 1..1000 */
  /* share allowed at the moment: at least cores_permille in elastic mode, otherwise equal to it */
  uint32_t allowance_permille;
  uint32_t sharers; /* number of tenants with a grant on this device, including this one */
  /* number of those that had work in the last second, including this one; 0 if unknown */
  uint32_t busy_sharers;
  /* CLOCK_MONOTONIC start of the time slice, 0 if there are no time slices */
  uint64_t slice_begin_ns;
  /* end of the time slice; not after the start if the slice belongs to another tenant */
  uint64_t slice_end_ns;
  uint32_t device_flags; /* PENSTOCK_DEVICE_* */
  uint32_t reserved_too;
  uint64_t slice_alive_ns; /* CLOCK_MONOTONIC time, renewed by the scheduler while it is alive */
  uint64_t slice_flags;    /* PENSTOCK_SLICE_* */
  uint64_t reserved[1];
} penstock_device_limit;

typedef struct penstock_limits {
  uint64_t generation;   /* increases with every change; 0 while this copy is being written */
  uint32_t mode;         /* PENSTOCK_MODE_* */
  uint32_t flags;        /* PENSTOCK_TENANT_* */
  uint32_t device_count; /* number of granted devices, 1..PENSTOCK_MAX_DEVICES */
  uint32_t reserved;
  /* CLOCK_MONOTONIC time at which device memory was released last: all work of the tenant had ended
   * by then, and the next work begins after it; 0 if it never was (version 3) */
  uint64_t released_ns;
  penstock_device_limit devices[PENSTOCK_MAX_DEVICES];
} penstock_limits;

typedef struct penstock_quota_page {
  uint64_t magic;        /* PENSTOCK_QUOTA_MAGIC */
  uint32_t version;      /* PENSTOCK_ABI_VERSION */
  uint32_t size_bytes;   /* sizeof(penstock_quota_page) */
  uint32_t current;      /* index of the copy in force, 0 or 1 */
  uint32_t change_futex; /* incremented after every change; waiting launches sleep on it */
  uint64_t heartbeat_ns; /* CLOCK_MONOTONIC time, renewed by the writer while it is alive */
  char tenant[64];       /* the tenant's name, NUL-terminated */
  /* absolute path of the driver's libcuda; if empty, the shim searches for it */
  char driver_path[256];
  /* absolute path of the driver's libnvidia-ml; if empty, the shim searches for it */
  char nvml_path[256];
  penstock_limits copies[2];
  /* Owner words of the slots whose process the writer knows to be dead, 0 for all others. The whole
   * word is stored, not one bit, so that an old mark never matches the slot's next owner. */
  uint64_t dead_owners[PENSTOCK_MAX_SLOTS];
} penstock_quota_page;
