/* The usage page: what a tenant uses, to be compared with its quota. The tenant's shims write it
 * lock-free. No process outside the tenant trusts it.
 */
#pragma once
#define PENSTOCK_USAGE_MAGIC 0x45474153554e4550 /* "PENUSAGE", little-endian */
#define PENSTOCK_MAX_PID_NAMESPACES 255

#define PENSTOCK_SLOT_FREE 0
#define PENSTOCK_SLOT_LIVE 1
#define PENSTOCK_SLOT_REAPING 2
#define PENSTOCK_SLOT_SHARED 3 /* no process: memory of several holders, see mechanism/share.h */

typedef struct penstock_slot {
  /* state (2 bits) | pid namespace index (8) | pid (22) | generation (4) | start ticks, low 28
   * bits. It is one word so that one compare-and-swap claims a slot and no half claim exists. The
   * generation counts the slot's owners: a verdict on one owner cannot hit the next. */
  uint64_t owner;
  /* /proc/self/comm when the slot was claimed. SHARED: node of the device with `share_mark` */
  char command[16];
  uint64_t claimed_ns; /* CLOCK_MONOTONIC */
  /* Start of the owner's stack: differs after exec; 0: unknown. SHARED: the inode of that node */
  uint64_t image;
  uint64_t share_key;   /* SHARED: name of the memory; 0: no process can join any more */
  uint64_t share_maker; /* SHARED or being made: index of the slot that made it, plus one */
  uint64_t share_mark;  /* SHARED: of descriptors that may be open (mechanism/mark.h); 0: none */
  penstock_ledger_slot ledger[PENSTOCK_MAX_DEVICES];
  uint64_t ledger_ack[PENSTOCK_MAX_DEVICES];
  uint64_t holders[PENSTOCK_MAX_SLOTS / 64]; /* SHARED: a bit for each slot that holds it */
  penstock_gate_slot gate[PENSTOCK_MAX_DEVICES];
} penstock_slot;

typedef struct penstock_usage_page {
  uint64_t magic;          /* PENSTOCK_USAGE_MAGIC */
  uint32_t version;        /* PENSTOCK_ABI_VERSION */
  uint32_t size_bytes;     /* sizeof(penstock_usage_page) */
  uint64_t slots_high;     /* no slot at or above this index was ever claimed; only grows */
  uint64_t shares_made;    /* ever; 0: no process need search for any */
  uint64_t asked_changes;  /* grows with every change of `asked` */
  uint64_t asked_overflow; /* how often a name found the table full */
  uint64_t reserved[2];
  /* Inode of /proc/self/ns/pid | inode of /proc/self/ns/time << 32 (start times are relative to the
   * reader's time namespace); 0: free; the last entry stays 0: "unknown". */
  uint64_t pid_namespaces[PENSTOCK_MAX_PID_NAMESPACES + 1];
  penstock_ledger_device ledger[PENSTOCK_MAX_DEVICES];
  penstock_gate_device gate[PENSTOCK_MAX_DEVICES];
  penstock_slot slots[PENSTOCK_MAX_SLOTS];
  penstock_asked asked[PENSTOCK_ASKED_ENTRIES];
} penstock_usage_page;
