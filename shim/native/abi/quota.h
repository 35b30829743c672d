/* The quota page: what a tenant was granted. The agent (or `penstock run`) writes it; the shim maps
 * it read-only. Plain C without includes, so that cffi reads this very file.
 *
 * Writing (publish.c): zero the generation of copies[current ^ 1], fill that copy, store its
 * generation, then store `current`, then bump and wake `change_futex`. A writer that is killed at
 * any instruction leaves the old limits in force. Device i is the same device in every copy: the
 * ledger of the usage page has the same indexes, so a page's devices never change.
 *
 * A tenant keeps over upgrades the page version that it began with. A reader accepts this version
 * and PENSTOCK_ABI_OLDEST: the same, or the one before if both have one layout and the fields that
 * the newer version added were reserved, and zero, before (ADR 21).
 *
 * The turn words (time slices) are not limits. The time-slice scheduler writes those of copies[0]
 * in place. They are in force whichever copy is current (mechanism/turn.h), and publishing leaves
 * them alone.
 */
#pragma once
#define PENSTOCK_QUOTA_MAGIC 0x41544f55514e4550 /* "PENQUOTA", little-endian */
#define PENSTOCK_ABI_VERSION 2
#define PENSTOCK_ABI_OLDEST 2
#define PENSTOCK_MAX_DEVICES 16
#define PENSTOCK_MAX_SLOTS 1024

#define PENSTOCK_MODE_STRICT 0
#define PENSTOCK_MODE_ELASTIC 1

#define PENSTOCK_TENANT_SUSPENDED 1     /* flags: launches wait until this is cleared */
#define PENSTOCK_TENANT_ALLOW_UNKNOWN 2 /* flags: unknown allocation-like names are forwarded */
#define PENSTOCK_TENANT_RECORD 4        /* flags: names that are only forwarded are counted too */

#define PENSTOCK_DEVICE_MIG 1 /* device_flags: the UUID is that of a MIG instance */

#define PENSTOCK_TURN_SHARED 1 /* turn_flags: work of an earlier time slice may still run */

typedef struct penstock_device_limit {
  uint8_t uuid[16];               /* as cuDeviceGetUuid returns it */
  uint64_t memory_bytes;          /* hard limit of the ledger */
  uint64_t context_reserve_bytes; /* charged for every context on this device */
  uint32_t cores_permille;        /* granted share of device time, 1..1000 */
  uint32_t allowance_permille; /* share allowed right now: >= cores in elastic mode, else equal */
  uint32_t sharers;            /* tenants with a grant on this device, this one included */
  uint32_t busy_sharers; /* of those, with work in the last second, this one included; 0: unknown */
  uint64_t turn_begin_ns; /* CLOCK_MONOTONIC; 0: there are no time slices */
  uint64_t turn_end_ns;   /* not after the begin: the time slice is not this tenant's */
  uint32_t device_flags;  /* PENSTOCK_DEVICE_* */
  uint32_t reserved_too;
  uint64_t turn_alive_ns; /* CLOCK_MONOTONIC, renewed by the scheduler while it lives */
  uint64_t turn_flags;    /* PENSTOCK_TURN_* */
  uint64_t reserved[1];
} penstock_device_limit;

typedef struct penstock_limits {
  uint64_t generation;   /* grows with every change; 0 while this copy is being written */
  uint32_t mode;         /* PENSTOCK_MODE_* */
  uint32_t flags;        /* PENSTOCK_TENANT_* */
  uint32_t device_count; /* granted devices, 1..PENSTOCK_MAX_DEVICES */
  uint32_t reserved[3];
  penstock_device_limit devices[PENSTOCK_MAX_DEVICES];
} penstock_limits;

typedef struct penstock_quota_page {
  uint64_t magic;        /* PENSTOCK_QUOTA_MAGIC */
  uint32_t version;      /* PENSTOCK_ABI_VERSION */
  uint32_t size_bytes;   /* sizeof(penstock_quota_page) */
  uint32_t current;      /* index of the copy in force: 0 or 1 */
  uint32_t change_futex; /* bumped after every change; gates sleep on it */
  uint64_t heartbeat_ns; /* CLOCK_MONOTONIC, renewed by the writer while it lives */
  char tenant[64];       /* name, NUL-terminated */
  char driver_path[256]; /* absolute path of the driver's libcuda; empty: search */
  char nvml_path[256];   /* absolute path of the driver's libnvidia-ml; empty: search */
  penstock_limits copies[2];
  /* Owner words of slots whose process the writer knows to be dead. A mark is the whole word, not a
   * bit: the slot's next owner has another word, so an old mark can never hit it. 0: none. */
  uint64_t dead_owners[PENSTOCK_MAX_SLOTS];
} penstock_quota_page;
