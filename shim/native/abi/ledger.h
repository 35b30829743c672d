/* Memory ledger words inside the usage page. See mechanism/ledger.h for the protocol.
 *
 * `seq` numbers the applied operations of a slot without gaps. Words are packed so that each step
 * is one atomic store or compare-and-swap, and a reaper can tell after a kill whether it was done:
 *   total   = bytes/512 (36 bits) | slot (10 bits) | seq (18 bits)   last operation applied
 *   charged = bytes/512 (36 bits) | 0 (10 bits) | seq (18 bits)      operations folded in so far
 *   intent  = delta/512 (36 bits, two's complement) | to (10) | seq  operation under way; `to` is
 *             not 0 when the bytes go to that slot (a share), which changes no total
 *   ack     = count (46 bits) | seq (18 bits)     slot's newest operation known to be in `total`
 * Every process writes `ack`; only the slot's owner writes `charged` and `intent`. They are stored
 * apart. 36 bits of 512 bytes are 32 TiB for each device and tenant.
 */
#pragma once
#define PENSTOCK_LEDGER_UNIT_BYTES 512

typedef struct penstock_ledger_device {
  uint64_t total;
  uint64_t peak_bytes;    /* highest total ever seen; informational */
  uint64_t refusals;      /* requests answered CUDA_ERROR_OUT_OF_MEMORY by the ledger */
  uint64_t refused_bytes; /* size of the last refused request */
  uint64_t reserved[4];
} penstock_ledger_device;

typedef struct penstock_ledger_slot {
  uint64_t charged;
  uint64_t intent;
} penstock_ledger_slot;
