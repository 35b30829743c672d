#define _GNU_SOURCE
#include "mechanism/survey.h"

#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "mechanism/publish.h"
#include "mechanism/watching.h"

/* FNV-1a over whole words: a change is what matters, not who can make one that goes unseen. */
#define SEED 0xcbf29ce484222325u
#define PRIME 0x100000001b3u

/* All up to the words of the first device's gate lies together, and most tenants have one device:
 * two reads a tenant, and one of a third of the first to see whether it is still asleep. */
enum {
  GATE_BYTES = offsetof(penstock_gate_device, ring),
  PULSE_OFFSET = offsetof(penstock_usage_page, ledger),
  HEAD_BYTES = offsetof(penstock_usage_page, gate) + GATE_BYTES,
};

typedef struct {
  uint64_t digest, notable;
} marks;

/* What is to be done now: of processes that are not watched, and of those that are. */
typedef struct {
  uint64_t now_ns;
  bool reaps, thorough, programs, may_watch;
} pass;

static uint64_t mix(uint64_t digest, const void *data, size_t bytes) {
  const uint64_t *words = data;
  for (size_t i = 0; i < bytes / sizeof *words; i++) digest = (digest ^ words[i]) * PRIME;
  return digest;
}

/* Reads `bytes` of the page to where they lie in `room`. */
static bool fetch(int fd, penstock_usage_page *room, size_t offset, size_t bytes) {
  return pread(fd, (char *)room + offset, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* Whether the owner of slot `i` has gone, as far as it is to be told now. */
static bool is_gone(penstock_survey_entry *entry, const penstock_usage_page *room,
                    const penstock_identity *self, const pass *pass, uint32_t i, uint64_t ended) {
  uint64_t owner = room->slots[i].owner;
  bool told = i < PENSTOCK_WATCHED && entry->watch.owners[i] == owner && ended >> i & 1;
  bool watched =
      entry->quota && penstock_watch_slot(&entry->watch, room, self, i, owner, pass->may_watch);
  if (watched ? !told && !pass->programs : !pass->reaps) return false;
  return penstock_slot_is_dead(room, entry->quota, self, i, owner, watched || pass->thorough);
}

/* Looks at all slots. `in_flight[i]`: some process has launches under way on device i. */
static bool look_at_slots(penstock_survey_entry *entry, penstock_usage_page *room,
                          const penstock_identity *self, const pass *pass, bool *in_flight,
                          marks *marks) {
  uint64_t high = room->slots_high < PENSTOCK_MAX_SLOTS ? room->slots_high : PENSTOCK_MAX_SLOTS;
  size_t bytes = high * sizeof *room->slots;
  if (!fetch(entry->usage_fd, room, offsetof(penstock_usage_page, slots), bytes)) return false;
  uint64_t ended = penstock_watch_ended(&entry->watch);
  penstock_watch_forget(&entry->watch, (uint32_t)high);
  for (uint64_t i = 0; i < high; i++) {
    const penstock_slot *slot = &room->slots[i];
    uint32_t state = penstock_owner_state(slot->owner);
    marks->notable = mix(marks->notable, &slot->owner, sizeof slot->owner);
    marks->digest = mix(marks->digest, slot, offsetof(penstock_slot, ledger));
    marks->digest = mix(marks->digest, slot->ledger, entry->devices * sizeof *slot->ledger);
    marks->digest = mix(marks->digest, slot->gate, entry->devices * sizeof *slot->gate);
    entry->gone += is_gone(entry, room, self, pass, (uint32_t)i, ended);
    if (state != PENSTOCK_SLOT_LIVE && state != PENSTOCK_SLOT_REAPING) continue;
    entry->slots++;
    for (uint32_t device = 0; device < entry->devices; device++)
      if (slot->gate[device].submitted != slot->gate[device].done) in_flight[device] = true;
  }
  return true;
}

static void look_at_device(penstock_survey_entry *entry, const penstock_usage_page *page,
                           uint32_t device, uint64_t now_ns, bool in_flight, marks *marks) {
  const penstock_ledger_device *ledger = &page->ledger[device];
  const penstock_gate_device *gate = &page->gate[device];
  marks->notable = mix(marks->notable, &ledger->refusals, sizeof ledger->refusals);
  penstock_recent *use = &entry->use[device];
  penstock_recent_add(use, now_ns, gate->spent_ns, gate->launches, gate->waits, in_flight);
  if (penstock_recent_is_active(use, now_ns) || penstock_recent_is_asking(use, now_ns))
    entry->active = 1;
}

/* The further gates, of a tenant with several devices. */
static bool fetch_gates(const penstock_survey_entry *entry, penstock_usage_page *room) {
  for (uint32_t i = 1; i < entry->devices; i++) {
    size_t offset = offsetof(penstock_usage_page, gate) + i * sizeof *room->gate;
    if (!fetch(entry->usage_fd, room, offset, GATE_BYTES)) return false;
  }
  return true;
}

static uint64_t pulse_of(const penstock_survey_entry *entry, const penstock_usage_page *room) {
  uint64_t pulse = mix(SEED, room->ledger, entry->devices * sizeof *room->ledger);
  for (uint32_t i = 0; i < entry->devices; i++) pulse = mix(pulse, &room->gate[i], GATE_BYTES);
  return pulse;
}

/* Whether nobody has ended, and nothing has moved in a page in which nothing moved for long.
 * Whoever takes memory changes its ledger; whose share is bounded, or lies beside others', pays for
 * the pause at its first launch; what else there may be (a slot claimed and nothing charged) can
 * wait for the next look.
 */
static bool is_still(const penstock_survey_entry *entry, penstock_usage_page *room) {
  return !penstock_watch_ended(&entry->watch) &&
         fetch(entry->usage_fd, room, PULSE_OFFSET, HEAD_BYTES - PULSE_OFFSET) &&
         fetch_gates(entry, room) && pulse_of(entry, room) == entry->pulse;
}

static bool look(penstock_survey_entry *entry, penstock_usage_page *room, penstock_identity *self,
                 const pass *pass, marks *marks) {
  bool in_flight[PENSTOCK_MAX_DEVICES] = {false};
  if (!fetch(entry->usage_fd, room, 0, HEAD_BYTES) || room->magic != PENSTOCK_USAGE_MAGIC ||
      !penstock_version_is_read(room->version) || room->size_bytes != sizeof *room ||
      !fetch_gates(entry, room))
    return false;
  /* Nothing else reads the end of a page that was cut off behind its slots. */
  if (pass->thorough &&
      !fetch(entry->usage_fd, room, sizeof *room - sizeof(uint64_t), sizeof(uint64_t)))
    return false;
  uint64_t first[] = {room->slots_high, room->asked_changes};
  marks->digest = marks->notable = mix(SEED, first, sizeof first);
  entry->pulse = pulse_of(entry, room);
  marks->digest = mix(marks->digest, &entry->pulse, sizeof entry->pulse);
  penstock_identity_find(room, self);
  if (!look_at_slots(entry, room, self, pass, in_flight, marks)) return false;
  for (uint32_t i = 0; i < entry->devices; i++)
    look_at_device(entry, room, i, pass->now_ns, in_flight[i], marks);
  return true;
}

static void look_anew(penstock_survey_entry *entry, penstock_usage_page *room,
                      penstock_identity *self, const pass *pass) {
  uint64_t before = entry->digest;
  marks marks = {0, 0};
  entry->slots = entry->gone = entry->active = 0;
  bool read = entry->usage_fd >= 0 && look(entry, room, self, pass, &marks);
  if (!read) penstock_survey_forget(entry);
  entry->digest = read ? marks.digest | 1 : 0; /* 0 says that it cannot be read */
  entry->notable = read ? marks.notable | 1 : 0;
  bool calm = entry->digest == before && !entry->active && !entry->gone;
  entry->quiet = calm ? entry->quiet + 1 : 0;
}

static void look_in_turn(penstock_survey_entry *entry, penstock_usage_page *room,
                         penstock_identity *self, uint64_t now_ns, uint32_t turn, bool may_watch) {
  pass pass = {
      .now_ns = now_ns,
      .reaps = turn % PENSTOCK_SURVEY_REAPS == 0,
      .thorough = turn % PENSTOCK_SURVEY_THOROUGH == 0,
      .programs = turn % PENSTOCK_SURVEY_PROGRAMS == 0,
      .may_watch = may_watch,
  };
  look_anew(entry, room, self, &pass);
}

/* All of it once in so many rounds; what has moved since is looked at as soon as it is seen. */
static void look_asleep(penstock_survey_entry *entry, penstock_usage_page *room,
                        penstock_identity *self, uint64_t now_ns, uint32_t turn, bool may_watch) {
  bool due = turn % PENSTOCK_SURVEY_ASLEEP == 0;
  if (!due && (turn % 2 || is_still(entry, room))) return;
  pass pass = {
      .now_ns = now_ns,
      .reaps = due,
      .thorough = turn % PENSTOCK_SURVEY_ASLEEP_THOROUGH == 0,
      .programs = turn % PENSTOCK_SURVEY_PROGRAMS == 0,
      .may_watch = may_watch,
  };
  look_anew(entry, room, self, &pass);
}

static void tell(penstock_survey_entry *entry, uint32_t index, penstock_survey_found *found) {
  bool lost = entry->usage_fd >= 0 && entry->notable == 0;
  if (entry->notable != entry->told || entry->gone || lost) {
    found->stirred[found->stirred_count++] = index;
    entry->told = entry->notable;
  }
  if (entry->active) found->active[found->active_count++] = index;
}

void penstock_survey(penstock_survey_entry *const *entries, uint32_t count,
                     penstock_usage_page *room, uint64_t now_ns, uint32_t round,
                     uint32_t most_watched, penstock_survey_found *found) {
  penstock_identity self;
  penstock_identity_read(room, &self);
  found->stirred_count = found->active_count = 0;
  uint32_t watched = 0;
  for (uint32_t i = 0; i < count; i++) watched += entries[i]->watch.open;
  for (uint32_t i = 0; i < count; i++) {
    penstock_survey_entry *entry = entries[i];
    if (entry->quota) penstock_quota_heartbeat(entry->quota);
    if (entry->devices > PENSTOCK_MAX_DEVICES) entry->devices = PENSTOCK_MAX_DEVICES;
    bool asleep = count > PENSTOCK_SURVEY_MANY && entry->quiet > PENSTOCK_SURVEY_QUIET &&
                  entry->usage_fd >= 0 && entry->digest;
    bool may_watch = watched + PENSTOCK_WATCHED <= most_watched;
    watched -= entry->watch.open;
    (asleep ? look_asleep : look_in_turn)(entry, room, &self, now_ns, i + round, may_watch);
    watched += entry->watch.open;
    tell(entry, i, found);
  }
}

void penstock_survey_forget(penstock_survey_entry *entry) {
  penstock_watch_forget(&entry->watch, 0);
}
