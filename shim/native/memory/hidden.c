#include "memory/hidden.h"

#include <string.h>

#include "memory/slabs.h"

static void add(penstock_hidden *hidden, unsigned count) {
  hidden->blocks += count;
  __atomic_store_n(&hidden->made, hidden->made + count, __ATOMIC_RELEASE);
}

/* Chooses the smallest hole that fits, so that large holes are kept. */
bool penstock_hidden_place(penstock_hidden *hidden, uint64_t bytes, unsigned count) {
  uint64_t *best = NULL;
  for (int i = 0; i < PENSTOCK_HOLES; i++) {
    uint64_t *hole = &hidden->holes[i];
    if (*hole >= bytes && (!best || *hole < *best)) best = hole;
  }
  if (!best) return false;
  *best -= bytes;
  add(hidden, count);
  return true;
}

/* Records a hole in place of the smallest known one. */
static void add_hole(penstock_hidden *hidden, uint64_t bytes) {
  uint64_t *smallest = hidden->holes;
  for (int i = 1; i < PENSTOCK_HOLES; i++) {
    if (hidden->holes[i] < *smallest) smallest = &hidden->holes[i];
  }
  if (bytes > *smallest) *smallest = bytes;
}

void penstock_hidden_open(penstock_hidden *hidden, uint64_t bytes, unsigned count) {
  hidden->slabs++;
  add_hole(hidden, PENSTOCK_SLAB_BYTES - bytes);
  add(hidden, count);
}

/* When a slab is returned, it is unknown which one, so all known holes are forgotten. */
uint64_t penstock_hidden_leave(penstock_hidden *hidden, uint64_t bytes, unsigned count) {
  hidden->blocks -= count < hidden->blocks ? count : hidden->blocks;
  if (hidden->slabs <= hidden->blocks) {
    add_hole(hidden, bytes);
    return 0;
  }
  uint64_t closed = hidden->slabs - hidden->blocks;
  hidden->slabs = hidden->blocks;
  memset(hidden->holes, 0, sizeof hidden->holes);
  return closed;
}

bool penstock_hidden_keep_slab(penstock_hidden *hidden, uint64_t made) {
  if (hidden->made == made || hidden->slabs >= hidden->blocks) return false;
  hidden->slabs++;
  return true;
}
