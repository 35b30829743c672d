/* The usage page records what a tenant uses, for comparison with its quota. The shims in the
 * tenant's processes write it without locks. No process outside the tenant trusts it.
 */
#pragma once
#define PENSTOCK_USAGE_MAGIC 0x45474153554e4550 /* "PENUSAGE", little-endian */
#define PENSTOCK_MAX_PID_NAMESPACES 255

#define PENSTOCK_SLOT_FREE 0
#define PENSTOCK_SLOT_LIVE 1
#define PENSTOCK_SLOT_REAPING 2
/* belongs to no process: memory of several holders (mechanism/share.h) */
#define PENSTOCK_SLOT_SHARED 3

typedef struct penstock_slot {
  /* state (2 bits) | pid namespace index (8) | pid (22) | generation (4) | start ticks, low 28
   * bits. All of it is one word, so that one compare-and-swap claims a slot completely. The
   * generation counts the slot's owners, so that a finding about one owner is never applied to the
   * next. */
  uint64_t owner;
  /* /proc/self/comm when the slot was claimed; in a SHARED slot, the device node of `share_mark` */
  char command[16];
  uint64_t claimed_ns; /* CLOCK_MONOTONIC time of the claim */
  /* start of the owner's stack, which changes on exec; 0 if unknown. In a SHARED slot, the inode of
   * the device node of `share_mark`. */
  uint64_t image;
  /* in a SHARED slot, the name of the memory; 0 once no process can join it */
  uint64_t share_key;
  /* in a SHARED slot, also while it is being made: index of the slot that made it, plus one */
  uint64_t share_maker;
  /* in a SHARED slot, the mark of descriptors that may be open (mechanism/mark.h), 0 if none */
  uint64_t share_mark;
  penstock_ledger_slot ledger[PENSTOCK_MAX_DEVICES];
  uint64_t ledger_ack[PENSTOCK_MAX_DEVICES];
  /* in a SHARED slot, one bit for each slot that holds it */
  uint64_t holders[PENSTOCK_MAX_SLOTS / 64];
  penstock_gate_slot gate[PENSTOCK_MAX_DEVICES];
} penstock_slot;

typedef struct penstock_usage_page {
  uint64_t magic;      /* PENSTOCK_USAGE_MAGIC */
  uint32_t version;    /* PENSTOCK_ABI_VERSION */
  uint32_t size_bytes; /* sizeof(penstock_usage_page) */
  uint64_t slots_high; /* upper bound of the slots that were ever claimed; only grows */
  /* number of shares ever made; while it is 0, no process needs to search for shares */
  uint64_t shares_made;
  uint64_t asked_changes;  /* increases with every change of `asked` */
  uint64_t asked_overflow; /* number of requests for a name that found the table full */
  uint64_t reserved[2];
  /* Each entry is the inode of /proc/self/ns/pid | inode of /proc/self/ns/time << 32, because start
   * times are relative to the reader's time namespace. A free entry is 0. The last entry is always
   * 0 and means "unknown". */
  uint64_t pid_namespaces[PENSTOCK_MAX_PID_NAMESPACES + 1];
  penstock_ledger_device ledger[PENSTOCK_MAX_DEVICES];
  penstock_gate_device gate[PENSTOCK_MAX_DEVICES];
  penstock_slot slots[PENSTOCK_MAX_SLOTS];
  penstock_asked asked[PENSTOCK_ASKED_ENTRIES];
} penstock_usage_page;
