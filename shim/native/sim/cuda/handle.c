/* The set of live handles, so that use of a stale handle is an error instead of a crash. */
#include <pthread.h>
#include <stdlib.h>

#include "sim/cuda/core.h"

typedef struct entry {
  const void *handle; /* NULL if free, TOMB if removed */
  enum sim_type type;
} entry;
#define TOMB ((const void *)1)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *table;
static size_t size, used;
static uint64_t last_id;

static size_t place(const void *handle) {
  return (size_t)(((uint64_t)handle >> 4) * 0x9e3779b97f4a7c15ull >> 20) & (size - 1);
}

static entry *find(const void *handle) {
  if (!size) return NULL;
  for (size_t i = place(handle);; i = (i + 1) & (size - 1)) {
    if (!table[i].handle) return NULL;
    if (table[i].handle == handle) return &table[i];
  }
}

static void put(const void *handle, enum sim_type type) {
  size_t i = place(handle);
  while (table[i].handle) i = (i + 1) & (size - 1);
  table[i] = (entry){handle, type};
  used++;
}

static void grow(void) {
  entry *old = table;
  size_t old_size = size;
  size = size ? size * 2 : 1024;
  used = 0;
  table = calloc(size, sizeof *table);
  if (!table) abort(); /* the process cannot continue without the table */
  for (size_t i = 0; i < old_size; i++)
    if (old[i].handle && old[i].handle != TOMB) put(old[i].handle, old[i].type);
  free(old);
}

void sim_handle_add(const void *handle, enum sim_type type) {
  pthread_mutex_lock(&lock);
  if (2 * (used + 1) > size) grow();
  put(handle, type);
  pthread_mutex_unlock(&lock);
}

void sim_handle_remove(const void *handle) {
  pthread_mutex_lock(&lock);
  entry *e = find(handle);
  if (e) e->handle = TOMB;
  pthread_mutex_unlock(&lock);
}

bool sim_handle_is(const void *handle, enum sim_type type) {
  if ((uint64_t)handle < 4096) return false;
  pthread_mutex_lock(&lock);
  entry *e = find(handle);
  bool is = e && e->type == type;
  pthread_mutex_unlock(&lock);
  return is;
}

bool sim_handle_any(enum sim_type type, bool (*visit)(void *handle)) {
  bool any = false;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < size && !any; i++)
    if (table[i].handle && table[i].handle != TOMB && table[i].type == type)
      any = visit((void *)table[i].handle);
  pthread_mutex_unlock(&lock);
  return any;
}

uint64_t sim_next_id(void) { return __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED); }
