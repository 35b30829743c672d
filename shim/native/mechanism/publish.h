/* Writing the quota page, and initialising both pages. For the supervisor; the shim only reads. */
#pragma once

#include "mechanism/region.h"

/* Write the headers of new, zeroed pages. The magic is stored last. */
void penstock_quota_init(penstock_quota_page *page, const penstock_limits *limits,
                         const char *tenant, const char *driver_path, const char *nvml_path);
void penstock_usage_init(penstock_usage_page *page);

/* Puts `limits` in force: spare copy, flip, bump, wake. Its generation is set by this call. One
 * writer at a time (the caller holds a file lock). Returns the new generation. */
uint64_t penstock_quota_publish(penstock_quota_page *page, const penstock_limits *limits);

/* Renews the heartbeat (CLOCK_MONOTONIC) and returns it. */
uint64_t penstock_quota_heartbeat(penstock_quota_page *page);

/* Marks the owner `owner` of a slot as dead; 0 clears the mark. */
void penstock_quota_mark_dead(penstock_quota_page *page, uint32_t slot, uint64_t owner);
