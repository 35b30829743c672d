#include "mechanism/asked.h"

#include <string.h>

/* Returns the FNV-1a hash of kind and name, which is never 0. */
static uint64_t key_of(unsigned kind, const char *name, size_t length) {
  uint64_t hash = (0xcbf29ce484222325u ^ kind) * 0x100000001b3u;
  for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)name[i]) * 0x100000001b3u;
  return hash ? hash : 1;
}

/* Two threads may write the same name at the same time. This is safe, because they write the same
 * words. */
static void write_name(penstock_asked *entry, unsigned kind, const char *name, size_t length) {
  _Static_assert(PENSTOCK_ASKED_NAME_BYTES % 8 == 0, "a name is whole words");
  uint64_t words[PENSTOCK_ASKED_NAME_BYTES / 8] = {0};
  memcpy(words, name, length);
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    __atomic_store_n((uint64_t *)(void *)entry->name + i, words[i], __ATOMIC_RELAXED);
  }
  __atomic_store_n(&entry->kind, kind, __ATOMIC_RELEASE);
}

/* Returns the entry for `key`, claiming a free one if there is none yet, or NULL if the table is
 * full. */
static penstock_asked *find(penstock_usage_page *usage, uint64_t key) {
  for (unsigned i = 0; i < PENSTOCK_ASKED_ENTRIES; i++) {
    penstock_asked *entry = &usage->asked[(key + i) % PENSTOCK_ASKED_ENTRIES];
    uint64_t seen = __atomic_load_n(&entry->key, __ATOMIC_ACQUIRE);
    if (seen == 0 && __atomic_compare_exchange_n(&entry->key, &seen, key, 0, __ATOMIC_ACQ_REL,
                                                 __ATOMIC_ACQUIRE)) {
      return entry;
    }
    if (seen == key) return entry;
  }
  return NULL;
}

void penstock_asked_count(penstock_usage_page *usage, unsigned kind, const char *name,
                          penstock_asked_how how) {
  size_t length = strnlen(name, PENSTOCK_ASKED_NAME_BYTES - 1);
  penstock_asked *entry = find(usage, key_of(kind, name, length));
  if (entry) {
    if (__atomic_load_n(&entry->kind, __ATOMIC_ACQUIRE) != kind) {
      write_name(entry, kind, name, length);
    }
    uint64_t *count = how == PENSTOCK_ASKED_CALL ? &entry->calls : &entry->requests;
    __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
  } else {
    __atomic_fetch_add(&usage->asked_overflow, 1, __ATOMIC_RELAXED);
  }
  __atomic_fetch_add(&usage->asked_changes, 1, __ATOMIC_RELEASE);
}
