#include "devices/visible.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/log.h"
#include "mechanism/lock.h"
#include "process/fork_wiped.h"

#define NAME "CUDA_VISIBLE_DEVICES"
#define UUID_TEXT_BYTES 41 /* "GPU-", 36 characters and the end */

extern char **environ;

static void uuid_text(const penstock_device_limit *device, char *text) {
  const uint8_t *b = device->uuid;
  snprintf(text, UUID_TEXT_BYTES,
           "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           device->device_flags & PENSTOCK_DEVICE_MIG ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4],
           b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* Returns the grant that a word selects, by index or by an unambiguous prefix of its UUID, or -1 if
 * it selects none. */
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

static int words_in(const char *list) {
  int words = *list ? 1 : 0;
  for (; *list; list++) words += *list == ',';
  return words;
}

/* Returns the grant that a word means which selects none: a tenant whose memory was released may
 * have been resumed on other devices since, and a program that is started with its former
 * environment names the devices of before. Devices keep their index in the grant, and that
 * environment has a UUID for each. */
static int former_grant(const penstock_region *region, const char *list, int at, size_t length) {
  bool was_released = penstock_region_limits(region)->released_ns != 0;
  int count = (int)penstock_region_device_count(region);
  bool is_uuid = length == UUID_TEXT_BYTES - 1;
  return was_released && is_uuid && words_in(list) == count ? at : -1;
}

/* Reads the list as the driver does: the first word that selects no device ends the list, and a
 * device that is selected twice hides all devices. */
static chosen choose(const penstock_region *region, const char *list) {
  chosen c = {.count = 0};
  if (!list) {
    for (; c.count < (int)penstock_region_device_count(region); c.count++) {
      c.grants[c.count] = c.count;
    }
    return c;
  }
  const char *whole = list;
  while (*list) {
    const char *word = list;
    size_t length = strcspn(list, ",");
    list += length;
    if (*list) list++;
    while (length && isspace((unsigned char)*word)) word++, length--;
    while (length && isspace((unsigned char)word[length - 1])) length--;
    int grant = grant_of_word(region, word, length);
    if (grant < 0) grant = former_grant(region, whole, c.count, length);
    if (grant < 0) return c;
    if (is_chosen(&c, grant)) return (chosen){.count = 0};
    c.grants[c.count++] = grant;
  }
  return c;
}

/* The shim's entry in the environment. A fork does not wipe it, because a child that was forked
 * during cuInit keeps it, and the child's devices are the same. */
static char entry[sizeof NAME + 1 + PENSTOCK_MAX_DEVICES * UUID_TEXT_BYTES];

/* State of the changed variable: the first thread that enters cuInit changes it, and the last one
 * to leave restores it. The state is wiped in the child of a fork. */
typedef struct override {
  uint32_t lock;
  unsigned inside;
  bool done;      /* the driver is initialised and will not read the variable again */
  char *original; /* entry that the shim's entry replaces, NULL if there was none */
  char **longer;  /* copy of the environment with room for the entry, if one was needed */
  size_t room;
} override;

static override *get_override(void) {
  static penstock_fork_wiped memory;
  return penstock_fork_wiped_get(&memory, sizeof(override));
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

/* Appends the entry to a copy of the environment. setenv is not used because it could free the
 * array while other threads read it. For the same reason the copy is never freed, but it is reused
 * if it is still in place. */
static void add_entry(override *x) {
  size_t count = 0;
  while (environ && environ[count]) count++;
  if (!x->longer || environ != x->longer || count + 2 > x->room) {
    char **longer = malloc((count + 2) * sizeof *longer);
    /* All devices are visible, but calls on those that were not granted are refused. */
    if (!longer) return;
    if (count) memcpy(longer, environ, count * sizeof *longer);
    x->longer = longer;
    x->room = count + 2;
  }
  x->longer[count + 1] = NULL;
  __atomic_store_n(&x->longer[count], entry, __ATOMIC_RELEASE);
  __atomic_store_n(&environ, x->longer, __ATOMIC_RELEASE);
}

static void set_variable(override *x, const penstock_region *region) {
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

/* Restores the variable, unless the program has set it in the meantime. */
static void restore_variable(override *x) {
  char **at = find_variable();
  if (!at || *at != entry) return;
  if (x->original || at[1] == NULL) __atomic_store_n(at, x->original, __ATOMIC_RELEASE);
}

bool penstock_visible_begin(const penstock_process *process) {
  int saved_errno = errno;
  override *x = get_override();
  bool changed = false;
  if (x) {
    penstock_lock_acquire(&x->lock);
    changed = !x->done;
    if (changed && x->inside++ == 0) set_variable(x, &process->region);
    penstock_lock_release(&x->lock);
  }
  errno = saved_errno;
  return changed;
}

void penstock_visible_end(bool changed, bool initialised) {
  override *x = changed ? get_override() : NULL;
  if (!x) return;
  penstock_lock_acquire(&x->lock);
  if (initialised) x->done = true;
  if (x->inside && --x->inside == 0) restore_variable(x);
  penstock_lock_release(&x->lock);
}
