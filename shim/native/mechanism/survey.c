#define _GNU_SOURCE
#include "mechanism/survey.h"

#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "mechanism/publish.h"
#include "mechanism/watching.h"

/* FNV-1a over whole words. It has to detect changes, but not to resist deliberate collisions. */
#define SEED 0xcbf29ce484222325u
#define PRIME 0x100000001b3u

/* Everything up to the first device's gate words is contiguous, and most tenants have one device.
 * Reading a tenant therefore takes two reads, and checking whether it is still asleep takes one
 * short read. */
enum {
  GATE_BYTES = offsetof(penstock_gate_device, ring),
  PULSE_OFFSET = offsetof(penstock_usage_page, ledger),
  HEAD_BYTES = offsetof(penstock_usage_page, gate) + GATE_BYTES,
};

typedef struct {
  uint64_t digest, notable;
} digests;

/* The checks to make in this round. */
typedef struct {
  uint64_t now_ns;
  bool reaps, thorough, programs, may_watch;
} pass;

static uint64_t mix(uint64_t digest, const void *data, size_t bytes) {
  const uint64_t *words = data;
  for (size_t i = 0; i < bytes / sizeof *words; i++) digest = (digest ^ words[i]) * PRIME;
  return digest;
}

/* Reads `bytes` of the page to the same offset in `room`. */
static bool fetch(int fd, penstock_usage_page *room, size_t offset, size_t bytes) {
  return pread(fd, (char *)room + offset, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* Returns whether this round's checks show that the owner of slot `i` has ended. */
static bool is_gone(penstock_survey_entry *entry, const penstock_usage_page *room,
                    const penstock_identity *self, const pass *pass, uint32_t i, uint64_t ended) {
  uint64_t owner = room->slots[i].owner;
  bool told = i < PENSTOCK_WATCHED && entry->watch.owners[i] == owner && ended >> i & 1;
  bool watched =
      entry->quota && penstock_watch_slot(&entry->watch, room, self, i, owner, pass->may_watch);
  if (watched ? !told && !pass->programs : !pass->reaps) return false;
  return penstock_slot_is_dead(room, entry->quota, self, i, owner, watched || pass->thorough);
}

/* Samples all slots. Sets `in_flight[i]` if a process has launches in flight on device i. */
static bool sample_slots(penstock_survey_entry *entry, penstock_usage_page *room,
                         const penstock_identity *self, const pass *pass, bool *in_flight,
                         digests *digests) {
  uint64_t high = room->slots_high < PENSTOCK_MAX_SLOTS ? room->slots_high : PENSTOCK_MAX_SLOTS;
  size_t bytes = high * sizeof *room->slots;
  if (!fetch(entry->usage_fd, room, offsetof(penstock_usage_page, slots), bytes)) return false;
  uint64_t ended = penstock_watch_ended(&entry->watch);
  penstock_watch_forget(&entry->watch, (uint32_t)high);
  for (uint64_t i = 0; i < high; i++) {
    const penstock_slot *slot = &room->slots[i];
    uint32_t state = penstock_owner_state(slot->owner);
    digests->notable = mix(digests->notable, &slot->owner, sizeof slot->owner);
    digests->digest = mix(digests->digest, slot, offsetof(penstock_slot, ledger));
    digests->digest = mix(digests->digest, slot->ledger, entry->devices * sizeof *slot->ledger);
    digests->digest = mix(digests->digest, slot->gate, entry->devices * sizeof *slot->gate);
    entry->gone += is_gone(entry, room, self, pass, (uint32_t)i, ended);
    if (state != PENSTOCK_SLOT_LIVE && state != PENSTOCK_SLOT_REAPING) continue;
    entry->slots++;
    for (uint32_t device = 0; device < entry->devices; device++)
      if (slot->gate[device].submitted != slot->gate[device].done) in_flight[device] = true;
  }
  return true;
}

static void sample_device(penstock_survey_entry *entry, const penstock_usage_page *page,
                          uint32_t device, uint64_t now_ns, bool in_flight, digests *digests) {
  const penstock_ledger_device *ledger = &page->ledger[device];
  const penstock_gate_device *gate = &page->gate[device];
  digests->notable = mix(digests->notable, &ledger->refusals, sizeof ledger->refusals);
  penstock_recent *use = &entry->use[device];
  penstock_recent_add(use, now_ns, gate->spent_ns, gate->launches, gate->waits, in_flight);
  if (penstock_recent_is_active(use, now_ns) || penstock_recent_is_asking(use, now_ns))
    entry->active = 1;
}

/* Reads the gate words of the second and further devices. */
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

/* Returns whether a sleeping tenant's page is unchanged and none of its processes has ended. Use of
 * memory changes the ledger, and launches change the gate words. Other changes, such as a slot that
 * was claimed without a charge, are seen at the next full sample. */
static bool is_unchanged(const penstock_survey_entry *entry, penstock_usage_page *room) {
  return !penstock_watch_ended(&entry->watch) &&
         fetch(entry->usage_fd, room, PULSE_OFFSET, HEAD_BYTES - PULSE_OFFSET) &&
         fetch_gates(entry, room) && pulse_of(entry, room) == entry->pulse;
}

static bool read_page(penstock_survey_entry *entry, penstock_usage_page *room,
                      penstock_identity *self, const pass *pass, digests *digests) {
  bool in_flight[PENSTOCK_MAX_DEVICES] = {false};
  if (!fetch(entry->usage_fd, room, 0, HEAD_BYTES) || room->magic != PENSTOCK_USAGE_MAGIC ||
      !penstock_version_is_read(room->version) || room->size_bytes != sizeof *room ||
      !fetch_gates(entry, room))
    return false;
  /* This read finds a page that was truncated after its slots. */
  if (pass->thorough &&
      !fetch(entry->usage_fd, room, sizeof *room - sizeof(uint64_t), sizeof(uint64_t)))
    return false;
  uint64_t first[] = {room->slots_high, room->asked_changes};
  digests->digest = digests->notable = mix(SEED, first, sizeof first);
  entry->pulse = pulse_of(entry, room);
  digests->digest = mix(digests->digest, &entry->pulse, sizeof entry->pulse);
  penstock_identity_find(room, self);
  if (!sample_slots(entry, room, self, pass, in_flight, digests)) return false;
  for (uint32_t i = 0; i < entry->devices; i++)
    sample_device(entry, room, i, pass->now_ns, in_flight[i], digests);
  return true;
}

static void sample(penstock_survey_entry *entry, penstock_usage_page *room, penstock_identity *self,
                   const pass *pass) {
  uint64_t before = entry->digest;
  digests digests = {0, 0};
  entry->slots = entry->gone = entry->active = 0;
  bool read = entry->usage_fd >= 0 && read_page(entry, room, self, pass, &digests);
  if (!read) penstock_survey_forget(entry);
  entry->digest = read ? digests.digest | 1 : 0; /* 0 if the page cannot be read */
  entry->notable = read ? digests.notable | 1 : 0;
  bool calm = entry->digest == before && !entry->active && !entry->gone;
  entry->quiet = calm ? entry->quiet + 1 : 0;
}

static void sample_awake(penstock_survey_entry *entry, penstock_usage_page *room,
                         penstock_identity *self, uint64_t now_ns, uint32_t round, bool may_watch) {
  pass pass = {
      .now_ns = now_ns,
      .reaps = round % PENSTOCK_SURVEY_REAPS == 0,
      .thorough = round % PENSTOCK_SURVEY_THOROUGH == 0,
      .programs = round % PENSTOCK_SURVEY_PROGRAMS == 0,
      .may_watch = may_watch,
  };
  sample(entry, room, self, &pass);
}

/* Samples a sleeping tenant: fully in one of PENSTOCK_SURVEY_ASLEEP rounds, or as soon as it
 * changes. */
static void sample_asleep(penstock_survey_entry *entry, penstock_usage_page *room,
                          penstock_identity *self, uint64_t now_ns, uint32_t round,
                          bool may_watch) {
  bool due = round % PENSTOCK_SURVEY_ASLEEP == 0;
  if (!due && (round % 2 || is_unchanged(entry, room))) return;
  pass pass = {
      .now_ns = now_ns,
      .reaps = due,
      .thorough = round % PENSTOCK_SURVEY_ASLEEP_THOROUGH == 0,
      .programs = round % PENSTOCK_SURVEY_PROGRAMS == 0,
      .may_watch = may_watch,
  };
  sample(entry, room, self, &pass);
}

static void report(penstock_survey_entry *entry, uint32_t index, penstock_survey_found *found) {
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
    (asleep ? sample_asleep : sample_awake)(entry, room, &self, now_ns, i + round, may_watch);
    watched += entry->watch.open;
    report(entry, i, found);
  }
}

void penstock_survey_forget(penstock_survey_entry *entry) {
  penstock_watch_forget(&entry->watch, 0);
}
