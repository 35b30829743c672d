/* The tenant as its NVML view sees it: both pages, read-only. The view claims no slot, takes no
 * lock and keeps nothing that a fork could break.
 */
#pragma once

#include <nvml.h>
#include <stdbool.h>

#include "mechanism/region.h"

/* The pages of this process's tenant, opened at the first call; NULL when there is no tenant or a
 * page is not readable. */
const penstock_region *penstock_nvml_tenant(void);

/* The tenant's processes as this process knows them: the driver names pids in the pid namespace of
 * the process that asks, so only slots claimed in the same one can be compared. */
typedef struct penstock_nvml_members {
  const penstock_region *region;
  uint32_t pid_namespace; /* inode; 0: unknown */
} penstock_nvml_members;

penstock_nvml_members penstock_nvml_members_of(const penstock_region *region);

/* True when `pid` holds a slot: it has used the driver under this tenant and was not reaped. */
bool penstock_nvml_is_member(const penstock_nvml_members *members, unsigned pid);

/* Index of the grant for a handle of the real library; -1: not granted. */
int penstock_nvml_grant_of(const penstock_region *region, nvmlDevice_t device);

/* The real library's handle of a granted device. */
nvmlReturn_t penstock_nvml_granted(const penstock_region *region, unsigned grant,
                                   nvmlDevice_t *device);

/* Begins a hook: the tenant, or the answer to everything without one. */
#define TENANT_OR_REFUSE(region)                          \
  const penstock_region *region = penstock_nvml_tenant(); \
  if (!region) return NVML_ERROR_NO_PERMISSION

/* Begins a hook on one device: no other tenant's device is let through, however its handle was
 * come by. NVML's own answer for a bad handle comes from NVML. */
#define GRANT_OR_REFUSE(region, grant, device)        \
  TENANT_OR_REFUSE(region);                           \
  int grant = penstock_nvml_grant_of(region, device); \
  if (grant < 0) return penstock_nvml_refusal(device)

/* Why `device` is no granted device: the real library's error for the handle, else "not found". */
nvmlReturn_t penstock_nvml_refusal(nvmlDevice_t device);
