/* The functions of the mechanism that Python calls; cffi reads this header as its cdef. They are
 * implemented in binding.c and in the files named below. Those files include this header, so that
 * the compiler checks prototypes that are declared twice. */
#pragma once

/* region.c */
int penstock_binding_page_check(int fd, int is_quota);
const char *penstock_binding_error_text(int error);

/* publish.c */
void penstock_quota_init(penstock_quota_page *page, const penstock_limits *limits,
                         const char *tenant, const char *driver_path, const char *nvml_path);
void penstock_usage_init(penstock_usage_page *page);
uint64_t penstock_quota_publish(penstock_quota_page *page, const penstock_limits *limits);
uint64_t penstock_quota_heartbeat(penstock_quota_page *page);
void penstock_quota_mark_dead(penstock_quota_page *page, uint32_t slot, uint64_t owner);

/* reap.c */
unsigned penstock_reap_all(penstock_usage_page *usage, const penstock_quota_page *quota);

/* lost_page.c. After the first call to penstock_survive_lost_pages, a page of a mapped file that
 * has been lost is replaced by an empty one and counted; without it, SIGBUS would end the process.
 * Returns 0, or -1 with errno. */
int penstock_survive_lost_pages(void);
unsigned penstock_lost_pages(void);

/* Step-by-step execution for tests. A penstock_steps is a reservation (delta > 0), a release (delta
 * < 0) or a reaping by the fictitious owner `reaper`. `next` runs one step and returns 0 while
 * steps are left, 1 at the end, and 2 if the operation was refused or lost to another reaper.
 * `name` returns the name of the next step. */
typedef struct penstock_steps penstock_steps;
penstock_steps *penstock_steps_ledger(penstock_usage_page *usage, unsigned device, uint32_t slot,
                                      int64_t delta_units, uint64_t limit_units);
penstock_steps *penstock_steps_reap(penstock_usage_page *usage, uint32_t slot, uint64_t victim,
                                    uint64_t reaper);
int penstock_steps_next(penstock_steps *steps);
const char *penstock_steps_name(const penstock_steps *steps);
void penstock_steps_free(penstock_steps *steps);
