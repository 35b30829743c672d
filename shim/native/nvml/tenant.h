/* The tenant's pages, mapped read-only for the tenant's view of NVML. The view claims no slot,
 * takes no lock and keeps no state that a fork could corrupt. */
#pragma once

#include <nvml.h>
#include <stdbool.h>

#include "mechanism/region.h"

/* Returns the pages of this process's tenant, which the first call opens, or NULL if there is no
 * tenant or a page is not readable. */
const penstock_region *penstock_nvml_tenant(void);

/* The tenant's processes as this process knows them. The driver reports pids in the pid namespace
 * of the calling process, so only slots that were claimed in the same namespace can be compared. */
typedef struct penstock_nvml_members {
  const penstock_region *region;
  uint32_t pid_namespace; /* inode, 0 if unknown */
} penstock_nvml_members;

penstock_nvml_members penstock_nvml_members_of(const penstock_region *region);

/* Returns true if `pid` holds a slot, which means that it has used the driver under this tenant and
 * has not been reaped. */
bool penstock_nvml_is_member(const penstock_nvml_members *members, unsigned pid);

/* Returns the index in the grant of the device that a handle of the real library refers to, or -1
 * if it is not granted. */
int penstock_nvml_grant_of(const penstock_region *region, nvmlDevice_t device);

/* Looks up the real library's handle of a granted device. */
nvmlReturn_t penstock_nvml_granted(const penstock_region *region, unsigned grant,
                                   nvmlDevice_t *device);

/* First line of a hook. Makes the hook fail if there is no tenant. */
#define TENANT_OR_REFUSE(region)                          \
  const penstock_region *region = penstock_nvml_tenant(); \
  if (!region) return NVML_ERROR_NO_PERMISSION

/* First line of a hook for one device. Makes the hook fail for a device that was not granted, no
 * matter how the program obtained its handle. For an invalid handle, the hook returns NVML's own
 * error. */
#define GRANT_OR_REFUSE(region, grant, device)        \
  TENANT_OR_REFUSE(region);                           \
  int grant = penstock_nvml_grant_of(region, device); \
  if (grant < 0) return penstock_nvml_refusal(device)

/* Returns the reason why `device` is not a granted device: the real library's error for the handle
 * if there is one, otherwise "not found". */
nvmlReturn_t penstock_nvml_refusal(nvmlDevice_t device);
