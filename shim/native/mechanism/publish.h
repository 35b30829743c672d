/* Functions that initialise both pages and write the quota page. The supervisor uses them; the shim
 * only reads the quota page. */
#pragma once

#include "mechanism/region.h"

/* Write the headers of new, zeroed pages. The magic is stored last, so that no reader accepts an
 * unfinished page. */
void penstock_quota_init(penstock_quota_page *page, const penstock_limits *limits,
                         const char *tenant, const char *driver_path, const char *nvml_path);
void penstock_usage_init(penstock_usage_page *page);

/* Puts `limits` in force: fills the spare copy, makes it current, and wakes the waiters. Sets the
 * generation and returns it. Only one process may write at a time, so the caller holds a file
 * lock. */
uint64_t penstock_quota_publish(penstock_quota_page *page, const penstock_limits *limits);

/* Renews the heartbeat (CLOCK_MONOTONIC) and returns its value. */
uint64_t penstock_quota_heartbeat(penstock_quota_page *page);

/* Marks the owner `owner` of a slot as dead, or clears the mark if `owner` is 0. */
void penstock_quota_mark_dead(penstock_quota_page *page, uint32_t slot, uint64_t owner);
