/* Counts of the driver functions that a tenant's programs requested by name and that the shim does
 * not implement. The counts form a table of fixed size inside the usage page (mechanism/asked.h).
 */
#pragma once
#define PENSTOCK_ASKED_ENTRIES 512
#define PENSTOCK_ASKED_NAME_BYTES 96

/* Kinds of requested names. REFUSED is an unknown name that may take memory or device time, so the
 * shim reports it as not found. UNKNOWN is any other unknown name, passed on to the driver. ABSENT
 * is a name that the driver lacks. FORWARDED is a known name that the shim only forwards; it is
 * recorded only while PENSTOCK_TENANT_RECORD is set. */
#define PENSTOCK_ASKED_REFUSED 1
#define PENSTOCK_ASKED_UNKNOWN 2
#define PENSTOCK_ASKED_ABSENT 3
#define PENSTOCK_ASKED_FORWARDED 4

typedef struct penstock_asked {
  uint64_t key;  /* hash of kind and name, 0 if the entry is free; set by one compare-and-swap */
  uint64_t kind; /* PENSTOCK_ASKED_*, written after the name; 0 until then */
  uint64_t requests; /* number of times that programs requested the name from cuGetProcAddress */
  uint64_t calls;    /* number of calls (for ABSENT, and without RECORD, at most one per process) */
  char name[PENSTOCK_ASKED_NAME_BYTES]; /* NUL-terminated; longer names are truncated */
} penstock_asked;
