/* Memory ledger words inside the usage page. See ledger.h for the protocol.
 *
 * Every operation on a slot's charge has a number `seq`. Words are packed so that each step is one
 * atomic store or compare-and-swap, and a step can be told done or not done after a kill:
 *   total   = bytes/512 (40 bits) | slot (10 bits) | seq (14 bits)   last operation applied
 *   charged = bytes/512 (40 bits) | 0 (10 bits)    | seq (14 bits)   operations folded in so far
 *   intent  = delta/512 (40 bits, two's complement) | 0 | seq        operation under way
 *   ack     = seq of the newest operation of this slot that is known to be in `total`
 */
#pragma once
#define PENSTOCK_LEDGER_UNIT_BYTES 512

typedef struct penstock_ledger_device {
  uint64_t total;
  uint64_t peak_bytes;             /* highest total ever seen; informational */
  uint64_t refusals;               /* requests answered CUDA_ERROR_OUT_OF_MEMORY by the ledger */
  uint64_t refused_bytes;          /* size of the last refused request */
  uint64_t reserved[4];
} penstock_ledger_device;

typedef struct penstock_ledger_slot {
  uint64_t charged;
  uint64_t intent;
  uint64_t ack;
  uint64_t reserved;
} penstock_ledger_slot;
