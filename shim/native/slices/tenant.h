/* A tenant from the time-slice scheduler's point of view: its pages, its credit and its work. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "mechanism/slice.h"
#include "slices/account.h"
#include "slices/scheduler.h"
#include "slices/sample.h"

typedef struct slice_tenant {
  uint64_t number;
  penstock_quota_page *quota; /* mapped, because the scheduler's process writes it */
  int usage_fd;
  unsigned device;
  bool suspended;
  bool ran_dry;        /* the tenant ran dry in its last slice */
  uint64_t sampled_ns; /* time of the last sample, 0 if there was none */
  uint64_t changed_ns; /* time at which work of the tenant was last seen to have ended */
  penstock_sample sample;
  penstock_account account;
  penstock_scheduler_figures figures;
} slice_tenant;

/* Opens a tenant's pages. Returns 0 or a negative errno; see penstock_scheduler_add. */
int slice_tenant_open(slice_tenant **out, uint64_t number, int quota_fd, int usage_fd,
                      unsigned device);
/* Closes the tenant, which continues without time slices. */
void slice_tenant_close(slice_tenant *tenant);

/* Samples both pages. */
void slice_tenant_sample(slice_tenant *tenant, uint64_t now_ns);
/* Returns true if the tenant has been at work recently. */
bool slice_tenant_is_active(const slice_tenant *tenant, uint64_t now_ns);
/* Returns true if the tenant has been at work within the last few seconds. */
bool slice_tenant_is_awake(const slice_tenant *tenant, uint64_t now_ns);
/* Returns true if a thread of the tenant has waited at the gate recently. If the tenant ran dry in
 * its last slice, only a wait after that slice counts. */
bool slice_tenant_wants(const slice_tenant *tenant, uint64_t now_ns);

/* Publishes that there are time slices and that the current one is not this tenant's. */
void slice_tenant_exclude(slice_tenant *tenant, uint64_t now_ns);
/* Publishes that there are no time slices. */
void slice_tenant_release(slice_tenant *tenant);
