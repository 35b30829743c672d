/* A tenant's time slice on a device: the time during which the tenant may have the device to
 * itself. It is part of the quota page.
 *
 * The words lie in copies[0] of the page, whichever copy is current, and one thread writes them in
 * place (slices/scheduler.c), so that a concurrent change of limits can neither lose a time slice
 * nor restore an old one. The words count only while that thread renews `slice_alive_ns`. When the
 * thread has been silent for PENSTOCK_SLICE_SILENT_NS, the tenant continues without time slices.
 *
 * Plain C without inline code, because cffi parses this header. Times are CLOCK_MONOTONIC
 * nanoseconds.
 */
#pragma once

#include <stdint.h>

#include "abi/quota.h"

#define PENSTOCK_SLICE_SILENT_NS 200000000
/* value of `begin_ns` while there are time slices but the current one is not this tenant's */
#define PENSTOCK_SLICE_NONE 1

typedef struct penstock_slice {
  /* 0 if there are no time slices; otherwise unique, so that it identifies the time slice */
  uint64_t begin_ns;
  uint64_t end_ns;
  uint64_t alive_ns; /* time at which the time-slice scheduler last showed that it is alive */
  uint64_t flags;    /* PENSTOCK_SLICE_* */
} penstock_slice;

/* Returns 1 if there are time slices on the device, 0 otherwise. Costs one relaxed load. */
int penstock_slice_any(const penstock_quota_page *page, unsigned device);

/* Makes a consistent copy of the time slice. `begin_ns` of the copy is 0 if the page keeps
 * changing. */
void penstock_slice_read(const penstock_quota_page *page, unsigned device, penstock_slice *out);

/* Functions for the time-slice scheduler. `begin` writes a time slice and wakes the tenant's
 * waiting threads, `end` changes its end, and `off` records that there are no time slices and wakes
 * the threads. */
void penstock_slice_begin(penstock_quota_page *page, unsigned device, const penstock_slice *slice);
void penstock_slice_end(penstock_quota_page *page, unsigned device, uint64_t end_ns);
void penstock_slice_alive(penstock_quota_page *page, unsigned device, uint64_t now_ns);
void penstock_slice_off(penstock_quota_page *page, unsigned device);
