#include "memory/slabs.h"

#include <stdlib.h>
#include <string.h>

#include "abi/quota.h"
#include "mechanism/lock.h"
#include "memory/hidden.h"
#include "process/fork_wiped.h"

#define UNIT_BYTES 512u /* the ledger's unit; a driver's alignment is a multiple of it */
#define UNITS (PENSTOCK_SLAB_BYTES / UNIT_BYTES)
#define WORDS (UNITS / 64)
#define FIRST_BUCKETS 64
#define ANY_ROOM UINT32_MAX /* value of `no_room` when any size may fit */

typedef struct slab {
  struct slab *next;
  uint64_t number;  /* address divided by the size of a slab */
  uint32_t blocks;  /* number of blocks, 0 while an empty slab is kept for unreserved allocations in
                       flight */
  uint32_t no_room; /* length of a run of free units that the slab is known not to have */
  uint8_t phase;    /* phase in which the slab became empty */
  bool is_managed;
  uint64_t hidden_made; /* number of hidden blocks ever allocated when the slab was opened */
  uint64_t taken[WORDS];
} slab;

/* The slabs of one grant. */
typedef struct table {
  uint32_t lock;          /* never held across a driver call */
  uint32_t unreserved[2]; /* number of unreserved allocations in flight, by phase */
  uint32_t empty[2];      /* number of slabs that are kept for these allocations, by phase */
  uint8_t phase;
  bool managed_is_apart; /* the driver puts each managed block into a slab of its own */
  uint32_t no_room[2];   /* length of a run of free units that no slab has: [0] unmanaged slabs, [1]
                            managed ones */
  slab *freed_last;      /* slab that is likely to have room */
  penstock_hidden hidden;
  uint64_t count;
  uint64_t bucket_count; /* a power of two, 0 while there are no buckets */
  slab **buckets;
} table;

static table *table_of(int grant) {
  static penstock_fork_wiped memory;
  if (grant < 0 || grant >= PENSTOCK_MAX_DEVICES) return NULL;
  table *all = penstock_fork_wiped_get(&memory, PENSTOCK_MAX_DEVICES * sizeof(table));
  return all ? &all[grant] : NULL;
}

static slab **bucket_of(const table *t, uint64_t number) {
  uint64_t h = number * 0x9e3779b97f4a7c15u;
  return &t->buckets[h >> 32 & (t->bucket_count - 1)];
}

static slab *find(const table *t, uint64_t number) {
  slab *s = t->bucket_count ? *bucket_of(t, number) : NULL;
  while (s && s->number != number) s = s->next;
  return s;
}

/* Doubles the number of buckets when chains get long. Without memory for more buckets, the table
 * stays as it is. */
static void grow(table *t) {
  table larger = {.bucket_count = t->bucket_count ? t->bucket_count * 2 : FIRST_BUCKETS};
  larger.buckets = calloc(larger.bucket_count, sizeof *larger.buckets);
  if (!larger.buckets) return;
  for (uint64_t i = 0; i < t->bucket_count; i++) {
    for (slab *s = t->buckets[i], *next; s; s = next) {
      next = s->next;
      slab **head = bucket_of(&larger, s->number);
      s->next = *head;
      *head = s;
    }
  }
  free(t->buckets);
  t->buckets = larger.buckets;
  t->bucket_count = larger.bucket_count;
}

static bool add(table *t, slab *s) {
  if (t->count >= t->bucket_count) grow(t);
  if (!t->bucket_count) return false;
  slab **head = bucket_of(t, s->number);
  s->next = *head;
  *head = s;
  t->count++;
  t->no_room[s->is_managed] = ANY_ROOM;
  return true;
}

/* Removes a slab from the table. Returns how many slabs to uncharge. */
static uint64_t drop(table *t, slab *s) {
  bool is_kept = penstock_hidden_keep_slab(&t->hidden, s->hidden_made);
  slab **link = bucket_of(t, s->number);
  while (*link != s) link = &(*link)->next;
  *link = s->next;
  t->count--;
  if (t->freed_last == s) t->freed_last = NULL;
  free(s);
  return !is_kept;
}

/* Marks the whole units that the block covers as taken or free. */
static void mark(slab *s, uint64_t address, uint64_t bytes, bool taken) {
  uint64_t offset = address % PENSTOCK_SLAB_BYTES, end = offset + bytes;
  uint64_t from = (offset + UNIT_BYTES - 1) / UNIT_BYTES;
  uint64_t to = (end + (offset % UNIT_BYTES ? 0 : UNIT_BYTES - 1)) / UNIT_BYTES;
  if (to > UNITS) to = UNITS;
  while (from < to) {
    uint64_t first = from % 64, count = to - from < 64 - first ? to - from : 64 - first;
    uint64_t mask = (count == 64 ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1) << first;
    if (taken) {
      s->taken[from / 64] |= mask;
    } else {
      s->taken[from / 64] &= ~mask;
    }
    from += count;
  }
}

static bool has_run(const slab *s, uint32_t units) {
  uint32_t run = 0;
  for (uint32_t word = 0; word < WORDS; word++) {
    uint64_t taken = s->taken[word];
    for (uint32_t left = 64; left;) {
      uint32_t open = taken ? (uint32_t)__builtin_ctzll(taken) : left;
      if (open > left) open = left;
      run += open;
      if (run >= units) return true;
      left -= open;
      if (!left) break;
      taken >>= open;
      uint32_t shut = ~taken ? (uint32_t)__builtin_ctzll(~taken) : left;
      if (shut > left) shut = left;
      run = 0;
      left -= shut;
      taken = shut < 64 ? taken >> shut : 0;
    }
  }
  return false;
}

static bool has_room(slab *s, uint32_t units, bool is_managed) {
  if (s->is_managed != is_managed || units >= s->no_room) return false;
  if (has_run(s, units)) return true;
  s->no_room = units;
  return false;
}

static bool any_has_room(table *t, uint32_t units, bool is_managed) {
  if (units >= t->no_room[is_managed] || (is_managed && t->managed_is_apart)) return false;
  if (t->freed_last && has_room(t->freed_last, units, is_managed)) return true;
  for (uint64_t i = 0; i < t->bucket_count; i++) {
    for (slab *s = t->buckets[i]; s; s = s->next) {
      if (has_room(s, units, is_managed)) return true;
    }
  }
  t->no_room[is_managed] = units;
  return false;
}

static uint32_t to_units(uint64_t bytes) {
  return (uint32_t)((bytes + UNIT_BYTES - 1) / UNIT_BYTES);
}

/* Enters the block if its slab is open. The caller holds the lock. */
static bool join(table *t, uint64_t address, uint64_t bytes) {
  slab *s = find(t, address / PENSTOCK_SLAB_BYTES);
  if (!s) return false;
  if (s->blocks++ == 0) t->empty[s->phase]--;
  mark(s, address, bytes, true);
  return true;
}

static slab *new_slab(uint64_t address, uint64_t bytes, bool is_managed) {
  slab *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->number = address / PENSTOCK_SLAB_BYTES;
  s->blocks = 1;
  s->no_room = ANY_ROOM;
  s->is_managed = is_managed;
  mark(s, address, bytes, true);
  return s;
}

penstock_slab_entry penstock_slab_enter(int grant, uint64_t address, uint64_t bytes,
                                        bool is_managed, bool is_paid, uint64_t hidden_made) {
  table *t = table_of(grant);
  if (!t) return PENSTOCK_SLAB_UNKNOWN;
  penstock_lock_acquire(&t->lock);
  bool joined = join(t, address, bytes);
  penstock_lock_release(&t->lock);
  if (joined) return PENSTOCK_SLAB_JOINED;
  if (!is_paid) return PENSTOCK_SLAB_UNPAID;
  slab *fresh = new_slab(address, bytes, is_managed);
  if (!fresh) return PENSTOCK_SLAB_UNKNOWN;
  fresh->hidden_made = hidden_made;
  penstock_slab_entry entry = PENSTOCK_SLAB_JOINED;
  penstock_lock_acquire(&t->lock);
  if (!join(t, address, bytes)) {
    if (is_managed && any_has_room(t, to_units(bytes), true)) t->managed_is_apart = true;
    bool added = add(t, fresh);
    entry = added ? PENSTOCK_SLAB_OPENED : PENSTOCK_SLAB_UNKNOWN;
    if (added) fresh = NULL;
  }
  penstock_lock_release(&t->lock);
  free(fresh);
  return entry;
}

uint64_t penstock_slab_leave(int grant, uint64_t address, uint64_t bytes) {
  table *t = table_of(grant);
  if (!t) return 0;
  uint64_t closed = 0;
  penstock_lock_acquire(&t->lock);
  slab *s = find(t, address / PENSTOCK_SLAB_BYTES);
  if (s) {
    mark(s, address, bytes, false);
    s->no_room = t->no_room[s->is_managed] = ANY_ROOM;
    t->freed_last = s;
    if (--s->blocks == 0) {
      if (t->unreserved[0] + t->unreserved[1] == 0) {
        closed = drop(t, s);
      } else {
        s->phase = t->phase;
        t->empty[s->phase]++;
      }
    }
  }
  penstock_lock_release(&t->lock);
  return closed;
}

bool penstock_slab_begin_unreserved(int grant, uint64_t bytes, bool is_managed, uint8_t *phase) {
  table *t = table_of(grant);
  if (!t) return false;
  penstock_lock_acquire(&t->lock);
  bool found = any_has_room(t, to_units(bytes), is_managed);
  if (found) {
    *phase = t->phase;
    t->unreserved[t->phase]++;
  }
  penstock_lock_release(&t->lock);
  return found;
}

/* Drops slabs that became empty in this phase and are still empty. */
static uint64_t drop_empty(table *t, uint8_t phase) {
  uint64_t closed = 0;
  for (uint64_t i = 0; i < t->bucket_count && t->empty[phase]; i++) {
    for (slab *s = t->buckets[i], *next; s; s = next) {
      next = s->next;
      if (s->blocks || s->phase != phase) continue;
      t->empty[phase]--;
      closed += drop(t, s);
    }
  }
  return closed;
}

/* The phase changes when no allocation of the other phase is left. At the second change after a
 * slab became empty, all allocations of its phase and of the phase before have ended. */
uint64_t penstock_slab_end_unreserved(int grant, uint8_t phase) {
  table *t = table_of(grant);
  if (!t) return 0;
  uint64_t closed = 0;
  penstock_lock_acquire(&t->lock);
  t->unreserved[phase]--;
  for (int change = 0; change < 2 && t->unreserved[!t->phase] == 0; change++) {
    t->phase = !t->phase;
    closed += drop_empty(t, t->phase);
  }
  penstock_lock_release(&t->lock);
  return closed;
}

uint64_t penstock_slab_hidden_made(int grant) {
  table *t = table_of(grant);
  return t ? __atomic_load_n(&t->hidden.made, __ATOMIC_ACQUIRE) : 0;
}

bool penstock_slab_add_hidden(int grant, uint64_t bytes, unsigned count, bool is_paid,
                              bool *is_used) {
  *is_used = is_paid; /* if there is no memory for the table, the slab stays charged */
  table *t = table_of(grant);
  if (!t) return is_paid;
  penstock_lock_acquire(&t->lock);
  bool placed = penstock_hidden_place(&t->hidden, bytes, count);
  *is_used = !placed && is_paid;
  if (*is_used) penstock_hidden_open(&t->hidden, bytes, count);
  penstock_lock_release(&t->lock);
  return placed || is_paid;
}

uint64_t penstock_slab_remove_hidden(int grant, uint64_t bytes, unsigned count) {
  table *t = table_of(grant);
  if (!t) return 0;
  penstock_lock_acquire(&t->lock);
  uint64_t closed = penstock_hidden_leave(&t->hidden, bytes, count);
  penstock_lock_release(&t->lock);
  return closed;
}
