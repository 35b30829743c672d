/* A tenant directory for tests: both pages, in the working directory that the runner made. */
#pragma once

#include "mechanism/publish.h"
#include "mechanism/reap.h"

#define MIB ((uint64_t)1 << 20)

/* Creates DIRECTORY with pages for `devices` devices of `limit_bytes` each. */
void tenant_create(const char *directory, unsigned devices, uint64_t limit_bytes);

/* Creates it and opens a region on it. */
penstock_region tenant_open(const char *directory, unsigned devices, uint64_t limit_bytes);

/* A second region of this process over the same mappings with a claim of its own, as a second copy
 * of the library has: every access is seen by the thread sanitizer at one address. */
penstock_region tenant_second(const penstock_region *region);

/* Changes the limit of every device. */
void tenant_set_limit(const char *directory, uint64_t limit_bytes);

/* The writer's own mapping of the quota page. */
penstock_quota_page *tenant_quota(const char *directory);

/* Slots in use. */
unsigned tenant_slots_in_use(const penstock_region *region);

/* Total of a device is zero and no slot holds anything. */
void tenant_check_empty(const penstock_region *region);
