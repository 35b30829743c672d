#include "memory/objects.h"

#include <stdlib.h>
#include <string.h>

#include "mechanism/lock.h"
#include "process/fork_wiped.h"

#define STRIPES 64 /* enough that simultaneous allocations seldom need the same stripe */
#define FIRST_BUCKETS 16

typedef struct node {
  struct node *next;
  penstock_object object;
} node;

typedef struct stripe {
  uint32_t lock;
  uint32_t count;
  uint64_t bucket_count; /* a power of two, 0 while there are no buckets */
  node **buckets;
} stripe;

/* The table lies in memory that a fork wipes, so the child starts with an empty table and free
 * locks. */
static stripe *stripes(void) {
  static penstock_fork_wiped memory;
  return penstock_fork_wiped_get(&memory, STRIPES * sizeof(stripe));
}

static uint64_t hash(uint8_t kind, uint64_t key) {
  uint64_t h = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

static stripe *stripe_of(uint64_t h) {
  stripe *all = stripes();
  return all ? &all[h % STRIPES] : NULL;
}

static node **bucket_of(const stripe *s, uint64_t h) {
  return &s->buckets[(h / STRIPES) & (s->bucket_count - 1)];
}

/* Returns the link to the entry, or the link at the end of its chain. */
static node **find_link(const stripe *s, uint8_t kind, uint64_t key, uint64_t h) {
  node **link = bucket_of(s, h);
  while (*link && ((*link)->object.key != key || (*link)->object.kind != kind)) {
    link = &(*link)->next;
  }
  return link;
}

/* Doubles the number of buckets when chains get long. Without memory for more buckets, the table
 * stays as it is. */
static void grow(stripe *s) {
  uint64_t wanted = s->bucket_count ? s->bucket_count * 2 : FIRST_BUCKETS;
  node **fresh = calloc(wanted, sizeof *fresh);
  if (!fresh) return;
  stripe larger = {.bucket_count = wanted, .buckets = fresh};
  for (uint64_t i = 0; i < s->bucket_count; i++) {
    for (node *n = s->buckets[i], *next; n; n = next) {
      next = n->next;
      node **head = bucket_of(&larger, hash(n->object.kind, n->object.key));
      n->next = *head;
      *head = n;
    }
  }
  free(s->buckets);
  s->buckets = fresh;
  s->bucket_count = wanted;
}

/* Adds or replaces an entry. Returns false if there is no memory, or if an entry exists that may
 * not be replaced. */
static bool put(const penstock_object *object, bool replace) {
  uint64_t h = hash(object->kind, object->key);
  stripe *s = stripe_of(h);
  node *fresh = s ? malloc(sizeof *fresh) : NULL;
  if (!fresh) return false;
  fresh->object = *object;
  penstock_lock_acquire(&s->lock);
  if (s->count >= s->bucket_count * 2) grow(s);
  bool done = s->bucket_count != 0;
  node **link = done ? find_link(s, object->kind, object->key, h) : NULL;
  if (done && *link && !replace) done = false;
  if (done) {
    node *old = *link;
    fresh->next = old ? old->next : NULL;
    *link = fresh;
    s->count += !old;
    fresh = old;
  }
  penstock_lock_release(&s->lock);
  free(fresh);
  return done;
}

bool penstock_object_put(const penstock_object *object) { return put(object, true); }

bool penstock_object_add(const penstock_object *object) { return put(object, false); }

bool penstock_object_take(penstock_kind kind, uint64_t key, penstock_object *out) {
  uint64_t h = hash((uint8_t)kind, key);
  stripe *s = stripe_of(h);
  if (!s) return false;
  node *taken = NULL;
  penstock_lock_acquire(&s->lock);
  if (s->bucket_count) {
    node **link = find_link(s, (uint8_t)kind, key, h);
    taken = *link;
    if (taken) {
      *link = taken->next;
      s->count--;
    }
  }
  penstock_lock_release(&s->lock);
  if (!taken) return false;
  *out = taken->object;
  free(taken);
  return true;
}

bool penstock_object_replace(const penstock_object *seen, const penstock_object *by) {
  uint64_t h = hash(seen->kind, seen->key);
  stripe *s = stripe_of(h);
  if (!s) return false;
  node *out = NULL;
  penstock_lock_acquire(&s->lock);
  node **link = s->bucket_count ? find_link(s, seen->kind, seen->key, h) : NULL;
  bool same = link && *link && (*link)->object.bytes == seen->bytes &&
              (*link)->object.detail == seen->detail && (*link)->object.changes == seen->changes;
  if (same && by) (*link)->object = *by;
  if (same && !by) {
    out = *link;
    *link = out->next;
    s->count--;
  }
  penstock_lock_release(&s->lock);
  free(out);
  return same;
}

bool penstock_object_find(penstock_kind kind, uint64_t key, penstock_object *out) {
  uint64_t h = hash((uint8_t)kind, key);
  stripe *s = stripe_of(h);
  if (!s) return false;
  penstock_lock_acquire(&s->lock);
  node *found = s->bucket_count ? *find_link(s, (uint8_t)kind, key, h) : NULL;
  if (found && out) *out = found->object;
  penstock_lock_release(&s->lock);
  return found != NULL;
}

static void visit_stripe(stripe *s, penstock_kind kind,
                         bool (*visit)(penstock_object *object, void *argument), void *argument) {
  penstock_lock_acquire(&s->lock);
  for (uint64_t i = 0; i < s->bucket_count; i++) {
    node **link = &s->buckets[i];
    while (*link) {
      node *n = *link;
      if ((kind == 0 || n->object.kind == kind) && visit(&n->object, argument)) {
        *link = n->next;
        s->count--;
        free(n);
      } else {
        link = &n->next;
      }
    }
  }
  penstock_lock_release(&s->lock);
}

void penstock_object_each(penstock_kind kind,
                          bool (*visit)(penstock_object *object, void *argument), void *argument) {
  stripe *all = stripes();
  for (unsigned i = 0; all && i < STRIPES; i++) visit_stripe(&all[i], kind, visit, argument);
}

bool penstock_pointer_is_known(CUdeviceptr pointer) {
  return penstock_object_find(PENSTOCK_DEVICE_MEMORY, pointer, NULL) ||
         penstock_object_find(PENSTOCK_POOL_MEMORY, pointer, NULL);
}
