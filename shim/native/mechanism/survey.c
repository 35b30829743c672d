#define _GNU_SOURCE
#include "mechanism/survey.h"

#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "mechanism/publish.h"
#include "mechanism/slots.h"

/* FNV-1a over whole words: a change is what matters, not who can make one that goes unseen. */
#define SEED 0xcbf29ce484222325u
#define PRIME 0x100000001b3u

/* All up to the words of the first device's gate lies together, and most tenants have one device:
 * two reads a tenant. */
enum {
  GATE_BYTES = offsetof(penstock_gate_device, ring),
  HEAD_BYTES = offsetof(penstock_usage_page, gate) + GATE_BYTES,
};

typedef struct {
  uint64_t digest, notable;
} marks;

static uint64_t mix(uint64_t digest, const void *data, size_t bytes) {
  const uint64_t *words = data;
  for (size_t i = 0; i < bytes / sizeof *words; i++) digest = (digest ^ words[i]) * PRIME;
  return digest;
}

/* Reads `bytes` of the page to where they lie in `room`. */
static bool fetch(int fd, penstock_usage_page *room, size_t offset, size_t bytes) {
  return pread(fd, (char *)room + offset, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* Looks at all slots. `in_flight[i]`: some process has launches under way on device i. */
static bool look_at_slots(penstock_survey_entry *entry, penstock_usage_page *room,
                          const penstock_identity *self, uint32_t turn, bool *in_flight,
                          marks *marks) {
  uint64_t high = room->slots_high < PENSTOCK_MAX_SLOTS ? room->slots_high : PENSTOCK_MAX_SLOTS;
  size_t bytes = high * sizeof *room->slots;
  if (!fetch(entry->usage_fd, room, offsetof(penstock_usage_page, slots), bytes)) return false;
  bool reaps = turn % PENSTOCK_SURVEY_REAPS == 0, thorough = turn % PENSTOCK_SURVEY_THOROUGH == 0;
  for (uint64_t i = 0; i < high; i++) {
    const penstock_slot *slot = &room->slots[i];
    uint32_t state = penstock_owner_state(slot->owner);
    marks->notable = mix(marks->notable, &slot->owner, sizeof slot->owner);
    marks->digest = mix(marks->digest, slot, offsetof(penstock_slot, ledger));
    marks->digest = mix(marks->digest, slot->ledger, entry->devices * sizeof *slot->ledger);
    marks->digest = mix(marks->digest, slot->gate, entry->devices * sizeof *slot->gate);
    if (reaps)
      entry->gone +=
          penstock_slot_is_dead(room, entry->quota, self, (uint32_t)i, slot->owner, thorough);
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
  marks->digest = mix(mix(marks->digest, ledger, sizeof *ledger), gate, GATE_BYTES);
  marks->notable = mix(marks->notable, &ledger->refusals, sizeof ledger->refusals);
  penstock_recent *use = &entry->use[device];
  penstock_recent_add(use, now_ns, gate->spent_ns, gate->launches, gate->waits, in_flight);
  if (penstock_recent_is_active(use, now_ns) || penstock_recent_is_asking(use, now_ns))
    entry->active = 1;
}

static bool look(penstock_survey_entry *entry, penstock_usage_page *room, uint64_t now_ns,
                 penstock_identity *self, uint32_t turn, marks *marks) {
  bool in_flight[PENSTOCK_MAX_DEVICES] = {false};
  if (!fetch(entry->usage_fd, room, 0, HEAD_BYTES) || room->magic != PENSTOCK_USAGE_MAGIC ||
      !penstock_version_is_read(room->version) || room->size_bytes != sizeof *room)
    return false;
  for (uint32_t i = 1; i < entry->devices; i++) {
    size_t offset = offsetof(penstock_usage_page, gate) + i * sizeof *room->gate;
    if (!fetch(entry->usage_fd, room, offset, GATE_BYTES)) return false;
  }
  /* Nothing else reads the end of a page that was cut off behind its slots. */
  if (turn % PENSTOCK_SURVEY_THOROUGH == 0 &&
      !fetch(entry->usage_fd, room, sizeof *room - sizeof(uint64_t), sizeof(uint64_t)))
    return false;
  uint64_t first[] = {room->slots_high, room->asked_changes};
  marks->digest = marks->notable = mix(SEED, first, sizeof first);
  penstock_identity_find(room, self);
  if (!look_at_slots(entry, room, self, turn, in_flight, marks)) return false;
  for (uint32_t i = 0; i < entry->devices; i++)
    look_at_device(entry, room, i, now_ns, in_flight[i], marks);
  return true;
}

static void look_anew(penstock_survey_entry *entry, penstock_usage_page *room, uint64_t now_ns,
                      penstock_identity *self, uint32_t turn) {
  uint64_t before = entry->digest;
  marks marks = {0, 0};
  entry->slots = entry->gone = entry->active = 0;
  bool read = entry->usage_fd >= 0 && look(entry, room, now_ns, self, turn, &marks);
  entry->digest = read ? marks.digest | 1 : 0; /* 0 says that it cannot be read */
  entry->notable = read ? marks.notable | 1 : 0;
  bool calm = entry->digest == before && !entry->active && !entry->gone;
  entry->quiet = calm ? entry->quiet + 1 : 0;
}

void penstock_survey(penstock_survey_entry *const *entries, uint32_t count,
                     penstock_usage_page *room, uint64_t now_ns, uint32_t round) {
  penstock_identity self;
  penstock_identity_read(room, &self);
  for (uint32_t i = 0; i < count; i++) {
    penstock_survey_entry *entry = entries[i];
    if (entry->quota) penstock_quota_heartbeat(entry->quota);
    if (entry->devices > PENSTOCK_MAX_DEVICES) entry->devices = PENSTOCK_MAX_DEVICES;
    bool passed_over = count > PENSTOCK_SURVEY_MANY && entry->quiet > PENSTOCK_SURVEY_QUIET &&
                       entry->usage_fd >= 0 && (i + round) % 2;
    if (!passed_over) look_anew(entry, room, now_ns, &self, i + round);
  }
}
