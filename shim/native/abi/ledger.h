/* Words of the memory ledger inside the usage page. mechanism/ledger.h has the protocol.
 *
 * `seq` numbers the operations of a slot without gaps. Each step of an operation is one atomic
 * store or compare-and-swap of a packed word, so that after a kill a reaper can tell whether the
 * step was done:
 *   total   = bytes/512 (36 bits) | slot (10 bits) | seq (18 bits)   last operation applied
 *   charged = bytes/512 (36 bits) | 0 (10 bits) | seq (18 bits)      operations included so far
 *   intent  = delta/512 (36 bits, two's complement) | to (10) | seq  operation in progress; `to` is
 *             nonzero if the bytes move to that slot (a share), which changes no total
 *   ack     = count (46 bits) | seq (18 bits)     slot's newest operation known to be in `total`
 * Every process writes `ack`, but only the slot's owner writes `charged` and `intent`, so `ack` is
 * stored apart from them. 36 bits of 512-byte units allow 32 TiB for each device and tenant.
 */
#pragma once
#define PENSTOCK_LEDGER_UNIT_BYTES 512

typedef struct penstock_ledger_device {
  uint64_t total;
  uint64_t peak_bytes;    /* highest total ever seen; for information only */
  uint64_t refusals;      /* requests that the ledger refused with CUDA_ERROR_OUT_OF_MEMORY */
  uint64_t refused_bytes; /* size of the last refused request */
  uint64_t reserved[4];
} penstock_ledger_device;

typedef struct penstock_ledger_slot {
  uint64_t charged;
  uint64_t intent;
} penstock_ledger_slot;
