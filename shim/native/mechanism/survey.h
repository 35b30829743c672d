/* Sampling of many tenants by their supervisor, about ten times a second. A survey renews
 * heartbeats and reports the tenants whose pages have changed in a way that needs action.
 *
 * Usage pages are read by pread, so that a tenant cannot crash the reader by truncating its page.
 *
 * Plain C without inline code, because cffi parses this header.
 */
#pragma once

#include <stdint.h>

#include "mechanism/region.h"
#include "mechanism/recent.h"
#include "mechanism/watch.h"

/* Numbers of rounds between checks. A process descriptor shows in every round whether its process
 * has ended (watch.h). Processes without a descriptor are checked in one of REAPS rounds. To detect
 * a zombie or a reused pid, one of THOROUGH rounds reads /proc too. */
#define PENSTOCK_SURVEY_REAPS 4
#define PENSTOCK_SURVEY_THOROUGH 16
/* If there are more than MANY tenants, those whose pages have not changed for more than QUIET
 * rounds are asleep. Every other round checks whether they have woken, one in ASLEEP rounds reads
 * the whole page, and one in ASLEEP_THOROUGH rounds reads /proc too. */
#define PENSTOCK_SURVEY_MANY 64
#define PENSTOCK_SURVEY_QUIET 32
#define PENSTOCK_SURVEY_ASLEEP 6
#define PENSTOCK_SURVEY_ASLEEP_THOROUGH 18
/* number of rounds between reads of /proc for processes that have a descriptor, because only /proc
 * shows that a process runs another program now */
#define PENSTOCK_SURVEY_PROGRAMS 48

typedef struct penstock_survey_entry {
  int32_t usage_fd; /* negative to skip the usage page */
  uint32_t devices; /* number of the tenant's devices, at most PENSTOCK_MAX_DEVICES */
  /* page whose heartbeat is renewed, NULL if another process renews it */
  penstock_quota_page *quota;
  /* Results of each survey: */
  uint64_t digest;  /* changes when anything in the page changes; 0 if the page cannot be read */
  uint64_t notable; /* changes with refusals, requested names and the set of processes */
  uint64_t pulse;   /* changes when memory is charged, or work is admitted or settled */
  uint64_t told;    /* value of `notable` when the tenant was last reported, 0 if never */
  penstock_watch watch; /* descriptors of the tenant's processes; used only if `quota` is set */
  uint32_t slots;       /* number of living processes, according to the page */
  uint32_t gone;        /* number of slots to be reaped, as seen from the caller's pid namespace */
  /* 1 if the tenant had work in the last second, or waited recently, on any device */
  uint32_t active;
  uint32_t quiet; /* number of rounds since the page last changed or launches were in flight */
  penstock_recent use[PENSTOCK_MAX_DEVICES];
} penstock_survey_entry;

/* Result of a round, as indexes of entries. Each array has room for all entries. */
typedef struct penstock_survey_found {
  /* tenants that need action: `notable` changed, slots are gone, or the page cannot be read */
  uint32_t *stirred;
  uint32_t stirred_count;
  uint32_t *active; /* tenants that are active */
  uint32_t active_count;
} penstock_survey_found;

/* Runs one round, numbered `round`, at `now_ns`. `room` is the caller's buffer, into which pages
 * are read. `most_watched` limits the number of process descriptors over all entries. */
void penstock_survey(penstock_survey_entry *const *entries, uint32_t count,
                     penstock_usage_page *room, uint64_t now_ns, uint32_t round,
                     uint32_t most_watched, penstock_survey_found *found);

/* Closes the descriptors that were opened for an entry. */
void penstock_survey_forget(penstock_survey_entry *entry);
