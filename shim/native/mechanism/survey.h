/* Sampling of many tenants at once, by their supervisor, about ten times a second: renews
 * heartbeats, and reports the tenants whose pages changed so that they need a full sample.
 *
 * Usage pages are read by pread: a page that its tenant truncates must not end the reader.
 *
 * Plain C without inline code: cffi reads this very file.
 */
#pragma once

#include <stdint.h>

#include "mechanism/region.h"
#include "mechanism/recent.h"
#include "mechanism/watch.h"

/* A process's descriptor shows in every round whether it has ended (watch.h). Processes without one
 * are checked once in REAPS rounds; whether a pid is a zombie or was reused takes a read of /proc,
 * once in THOROUGH rounds. */
#define PENSTOCK_SURVEY_REAPS 4
#define PENSTOCK_SURVEY_THOROUGH 16
/* Of more than MANY tenants, those whose pages have not changed for more than QUIET rounds are
 * asleep: every other round checks whether they have woken, one in ASLEEP rounds reads the whole
 * page, and one in ASLEEP_THOROUGH reads /proc too. */
#define PENSTOCK_SURVEY_MANY 64
#define PENSTOCK_SURVEY_QUIET 32
#define PENSTOCK_SURVEY_ASLEEP 6
#define PENSTOCK_SURVEY_ASLEEP_THOROUGH 18
/* Only /proc shows that a process with a descriptor runs another program by now. */
#define PENSTOCK_SURVEY_PROGRAMS 48

typedef struct penstock_survey_entry {
  int32_t usage_fd; /* below zero: skip the usage page */
  uint32_t devices; /* of the tenant, at most PENSTOCK_MAX_DEVICES */
  /* Page whose heartbeat is renewed; NULL: another process renews it. */
  penstock_quota_page *quota;
  /* Set by each survey: */
  uint64_t digest;      /* changes when anything in the page changes; 0: the page cannot be read */
  uint64_t notable;     /* changes with refusals, requested names and the set of processes */
  uint64_t pulse;       /* changes when memory is charged, or work is admitted or settled */
  uint64_t told;        /* `notable` when the tenant was last listed as stirred; 0: never */
  penstock_watch watch; /* of its processes; only where `quota` is set */
  uint32_t slots;       /* living processes, by the page */
  uint32_t gone;        /* slots to be reaped, as seen from the caller's pid namespace */
  uint32_t active;      /* 1: it had work in the last second, or waited recently, on any device */
  uint32_t quiet;       /* rounds since anything in the page changed, or launches were in flight */
  penstock_recent use[PENSTOCK_MAX_DEVICES];
} penstock_survey_entry;

/* Result of a round: indices of entries. Each array has room for all entries. */
typedef struct penstock_survey_found {
  uint32_t
      *stirred; /* need action: `notable` changed, slots are gone, or the page cannot be read */
  uint32_t stirred_count;
  uint32_t *active; /* tenants at work */
  uint32_t active_count;
} penstock_survey_found;

/* One round at `now_ns`. `room`: the caller's buffer, into which pages are read. `round`: number of
 * this round. `most_watched`: limit of process descriptors, of all entries together. */
void penstock_survey(penstock_survey_entry *const *entries, uint32_t count,
                     penstock_usage_page *room, uint64_t now_ns, uint32_t round,
                     uint32_t most_watched, penstock_survey_found *found);

/* Closes the descriptors that were opened for an entry. */
void penstock_survey_forget(penstock_survey_entry *entry);
