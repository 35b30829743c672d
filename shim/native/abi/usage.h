/* The usage page: what a tenant uses. Written by the tenant's shims, lock-free; the record that the
 * quota is compared with. Untrusted by everybody but the tenant itself.
 */
#pragma once
#define PENSTOCK_USAGE_MAGIC 0x45474153554e4550 /* "PENUSAGE", little-endian */
#define PENSTOCK_MAX_PID_NAMESPACES 255

#define PENSTOCK_SLOT_FREE 0
#define PENSTOCK_SLOT_LIVE 1
#define PENSTOCK_SLOT_REAPING 2

typedef struct penstock_slot {
  uint64_t owner;                  /* state (2 bits) | pid namespace index (8) | pid (22) | start ticks, low 32 bits (32) */
  char command[16];                /* /proc/self/comm when the slot was claimed */
  uint64_t claimed_ns;             /* CLOCK_MONOTONIC */
  uint64_t reserved[4];
  penstock_ledger_slot ledger[PENSTOCK_MAX_DEVICES];
  penstock_gate_slot gate[PENSTOCK_MAX_DEVICES];
} penstock_slot;

typedef struct penstock_usage_page {
  uint64_t magic;                  /* PENSTOCK_USAGE_MAGIC */
  uint32_t version;                /* PENSTOCK_ABI_VERSION */
  uint32_t size_bytes;             /* sizeof(penstock_usage_page), modulo 2^32 */
  uint64_t pid_namespaces[PENSTOCK_MAX_PID_NAMESPACES + 1]; /* inode of /proc/self/ns/pid; 0: free; the last one stays 0: "unknown" */
  uint64_t slots_high;             /* no slot at or above this index was ever claimed */
  uint64_t reserved[7];
  penstock_ledger_device ledger[PENSTOCK_MAX_DEVICES];
  penstock_gate_device gate[PENSTOCK_MAX_DEVICES];
  penstock_slot slots[PENSTOCK_MAX_SLOTS];
} penstock_usage_page;
