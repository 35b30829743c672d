/* Counts of driver names that the tenant's programs requested and the shim does not answer itself:
 * a table of fixed size inside the usage page. See mechanism/asked.h.
 */
#pragma once
#define PENSTOCK_ASKED_ENTRIES 512
#define PENSTOCK_ASKED_NAME_BYTES 96

/* REFUSED: an unknown name that may take memory or device time, answered "not found". UNKNOWN:
 * another unknown name, passed on. ABSENT: a name that the driver lacks. FORWARDED: a known name
 * that the shim only forwards, recorded while PENSTOCK_TENANT_RECORD is set. */
#define PENSTOCK_ASKED_REFUSED 1
#define PENSTOCK_ASKED_UNKNOWN 2
#define PENSTOCK_ASKED_ABSENT 3
#define PENSTOCK_ASKED_FORWARDED 4

typedef struct penstock_asked {
  uint64_t key;      /* hash of kind and name; 0: free. Claimed by one compare-and-swap */
  uint64_t kind;     /* PENSTOCK_ASKED_*, written after the name; 0: not written yet */
  uint64_t requests; /* how often requested from cuGetProcAddress */
  uint64_t calls;    /* how often called (ABSENT and without RECORD: once per process) */
  char name[PENSTOCK_ASKED_NAME_BYTES]; /* NUL-terminated; a longer one is cut */
} penstock_asked;
