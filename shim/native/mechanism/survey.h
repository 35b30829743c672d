/* A look at many tenants at once, about ten times a second, by whoever supervises them: renews
 * heartbeats, and tells whose page has anything that is worth a closer look.
 *
 * Usage pages are read by pread: one that its tenant truncates must not take the reader with it.
 *
 * Plain C without inline code: cffi reads this very file.
 */
#pragma once

#include <stdint.h>

#include "mechanism/region.h"
#include "mechanism/recent.h"
#include "mechanism/watch.h"

/* That a process has ended its descriptor tells in every look (watch.h). Whether those without one
 * are still there is looked at once in so many rounds; whether one is a zombie, or another one
 * under its number, takes a look into /proc. */
#define PENSTOCK_SURVEY_REAPS 4
#define PENSTOCK_SURVEY_THOROUGH 16
/* Of many tenants, those in whose pages nothing has moved for so many rounds are asleep: in every
 * other round it is looked whether they have woken, in one of so many all is looked at. */
#define PENSTOCK_SURVEY_MANY 64
#define PENSTOCK_SURVEY_QUIET 32
#define PENSTOCK_SURVEY_ASLEEP 6
#define PENSTOCK_SURVEY_ASLEEP_THOROUGH 18
/* Of those with one, /proc alone tells that they run another program by now. */
#define PENSTOCK_SURVEY_PROGRAMS 48

typedef struct penstock_survey_entry {
  int32_t usage_fd; /* below zero: leave the usage page out */
  uint32_t devices; /* of the tenant, at most PENSTOCK_MAX_DEVICES */
  /* Whose heartbeat is renewed; NULL: it is somebody else's. */
  penstock_quota_page *quota;
  /* Told by each survey: */
  uint64_t digest;      /* another number when anything in the page is new; 0: it cannot be read */
  uint64_t notable;     /* another number for new refusals, names asked for, other processes */
  uint64_t pulse;       /* another number when memory was charged, or work admitted or settled */
  uint64_t told;        /* `notable` as of when it was last listed as stirred; 0: never */
  penstock_watch watch; /* of its processes; only where `quota` is there */
  uint32_t slots;       /* living processes, as they say */
  uint32_t gone;        /* slots to be reaped, as far as the caller's pid namespace tells */
  uint32_t active;      /* 1: it had work in the last second, or waited lately, on any device */
  uint32_t quiet;       /* rounds since anything in the page was new, or launches were under way */
  penstock_recent use[PENSTOCK_MAX_DEVICES];
} penstock_survey_entry;

/* What a round found: indices of entries, in room for as many as there are. */
typedef struct penstock_survey_found {
  uint32_t
      *stirred; /* something to act on: `notable` is new, slots are gone, the page cannot be read */
  uint32_t stirred_count;
  uint32_t *active; /* those at work */
  uint32_t active_count;
} penstock_survey_found;

/* One round at `now_ns`. `room`: where pages are read to, the caller's. `round`: counts.
 * `most_watched`: descriptors of processes, of all entries together. */
void penstock_survey(penstock_survey_entry *const *entries, uint32_t count,
                     penstock_usage_page *room, uint64_t now_ns, uint32_t round,
                     uint32_t most_watched, penstock_survey_found *found);

/* Closes what was opened for an entry. */
void penstock_survey_forget(penstock_survey_entry *entry);
