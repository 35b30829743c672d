#include "visible.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/log.h"
#include "fork_wiped.h"
#include "mechanism/lock.h"

#define NAME "CUDA_VISIBLE_DEVICES"
#define UUID_TEXT_BYTES 41 /* "GPU-" and 36 characters */

extern char **environ;

static void uuid_text(const penstock_device_limit *device, char *text) {
  const uint8_t *b = device->uuid;
  snprintf(text, UUID_TEXT_BYTES,
           "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           device->device_flags & PENSTOCK_DEVICE_MIG ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4],
           b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* The grant that a word means: its place, or the beginning of its UUID alone; -1: none. */
static int grant_of_word(const penstock_region *region, const char *word, size_t length) {
  const penstock_limits *limits = penstock_region_limits(region);
  int count = (int)penstock_region_device_count(region), found = -1;
  if (length && isdigit((unsigned char)*word)) {
    char *end;
    unsigned long index = strtoul(word, &end, 10);
    return end == word + length && index < (unsigned long)count ? (int)index : -1;
  }
  for (int grant = 0; length > 4 && grant < count; grant++) {
    char text[UUID_TEXT_BYTES];
    uuid_text(&limits->devices[grant], text);
    if (length >= UUID_TEXT_BYTES || strncasecmp(text, word, length) != 0) continue;
    if (found >= 0) return -1;
    found = grant;
  }
  return found;
}

typedef struct chosen {
  int grants[PENSTOCK_MAX_DEVICES];
  int count;
} chosen;

static bool is_chosen(const chosen *c, int grant) {
  for (int i = 0; i < c->count; i++) {
    if (c->grants[i] == grant) return true;
  }
  return false;
}

/* As the driver reads it: the first word that means no device ends the list; a device named twice
 * hides all. */
static chosen choose(const penstock_region *region, const char *list) {
  chosen c = {.count = 0};
  if (!list) {
    for (; c.count < (int)penstock_region_device_count(region); c.count++) {
      c.grants[c.count] = c.count;
    }
    return c;
  }
  while (*list) {
    const char *word = list;
    size_t length = strcspn(list, ",");
    list += length;
    if (*list) list++;
    while (length && isspace((unsigned char)*word)) word++, length--;
    while (length && isspace((unsigned char)word[length - 1])) length--;
    int grant = grant_of_word(region, word, length);
    if (grant < 0) return c;
    if (is_chosen(&c, grant)) return (chosen){.count = 0};
    c.grants[c.count++] = grant;
  }
  return c;
}

/* Ours. Not wiped by a fork: the child of one that happens during cuInit keeps it, and it means the
 * same devices. */
static char entry[sizeof NAME + 1 + PENSTOCK_MAX_DEVICES * UUID_TEXT_BYTES];

/* Of the threads in cuInit, the first changes the variable and the last puts it back. Wiped in the
 * child of a fork. */
typedef struct exchange {
  uint32_t lock;
  unsigned inside;
  bool done;      /* the driver is initialised and reads it no more */
  char *original; /* the entry of the environment that ours stands for; NULL: there was none */
  char **longer;  /* the environment with room for ours, if it had to be made */
  size_t room;
} exchange;

static exchange *the_exchange(void) {
  static penstock_fork_wiped memory;
  return penstock_fork_wiped_get(&memory, sizeof(exchange));
}

static void write_entry(const penstock_region *region, const chosen *c) {
  char *at = stpcpy(entry, NAME "=");
  for (int i = 0; i < c->count; i++) {
    if (i) *at++ = ',';
    uuid_text(&penstock_region_limits(region)->devices[c->grants[i]], at);
    at += strlen(at);
  }
}

static char **find_variable(void) {
  for (char **at = environ; at && *at; at++) {
    if (strncmp(*at, NAME "=", sizeof NAME) == 0) return at;
  }
  return NULL;
}

/* Adds ours at the end. setenv would move the array under threads that read it; a copy of ours is
 * never freed, for the same reason, and used again if it is still there. */
static void add_entry(exchange *x) {
  size_t count = 0;
  while (environ && environ[count]) count++;
  if (!x->longer || environ != x->longer || count + 2 > x->room) {
    char **longer = malloc((count + 2) * sizeof *longer);
    if (!longer) return; /* it sees all; what was not granted is refused when it is used */
    if (count) memcpy(longer, environ, count * sizeof *longer);
    x->longer = longer;
    x->room = count + 2;
  }
  x->longer[count + 1] = NULL;
  __atomic_store_n(&x->longer[count], entry, __ATOMIC_RELEASE);
  __atomic_store_n(&environ, x->longer, __ATOMIC_RELEASE);
}

static void put_ours(exchange *x, const penstock_region *region) {
  char **at = find_variable();
  chosen c = choose(region, at ? *at + sizeof NAME : NULL);
  write_entry(region, &c);
  penstock_log("devices that this process sees: %s", entry + sizeof NAME);
  if (at) {
    x->original = *at;
    __atomic_store_n(at, entry, __ATOMIC_RELEASE);
    return;
  }
  x->original = NULL;
  add_entry(x);
}

/* What the program itself put there meanwhile stays. */
static void put_back(exchange *x) {
  char **at = find_variable();
  if (!at || *at != entry) return;
  if (x->original || at[1] == NULL) __atomic_store_n(at, x->original, __ATOMIC_RELEASE);
}

bool penstock_visible_begin(const penstock_process *process) {
  int saved_errno = errno;
  exchange *x = the_exchange();
  bool changed = false;
  if (x) {
    penstock_lock_acquire(&x->lock);
    changed = !x->done;
    if (changed && x->inside++ == 0) put_ours(x, &process->region);
    penstock_lock_release(&x->lock);
  }
  errno = saved_errno;
  return changed;
}

void penstock_visible_end(bool changed, bool initialised) {
  exchange *x = changed ? the_exchange() : NULL;
  if (!x) return;
  penstock_lock_acquire(&x->lock);
  if (initialised) x->done = true;
  if (x->inside && --x->inside == 0) put_back(x);
  penstock_lock_release(&x->lock);
}
