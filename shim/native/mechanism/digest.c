/* Tells cheaply whether anything in a usage page has moved since the last look. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "mechanism/publish.h"
#include "mechanism/reap.h"
/* after the headers whose types it names */
#include "mechanism/binding.h"

/* FNV-1a over whole words: a change is what matters, not who can make one that goes unseen. */
#define SEED 0xcbf29ce484222325u
#define PRIME 0x100000001b3u

static uint64_t mix(uint64_t digest, const void *data, size_t bytes) {
  const uint64_t *words = data;
  for (size_t i = 0; i < bytes / sizeof *words; i++) digest = (digest ^ words[i]) * PRIME;
  return digest;
}

/* By pread: a page that its tenant truncates must not take the reader with it. */
static bool add(int fd, void *buffer, size_t bytes, size_t offset, uint64_t *digest) {
  if (pread(fd, buffer, bytes, (off_t)offset) != (ssize_t)bytes) return false;
  *digest = mix(*digest, buffer, bytes);
  return true;
}

uint64_t penstock_usage_digest(int fd, uint32_t devices) {
  enum { HEAD_BYTES = offsetof(penstock_usage_page, pid_namespaces) };
  uint64_t head[HEAD_BYTES / sizeof(uint64_t)], digest = SEED;
  if (devices > PENSTOCK_MAX_DEVICES) devices = PENSTOCK_MAX_DEVICES;
  if (!add(fd, head, sizeof head, 0, &digest)) return 0;
  uint64_t slots = head[offsetof(penstock_usage_page, slots_high) / sizeof(uint64_t)];
  if (slots > PENSTOCK_MAX_SLOTS) slots = PENSTOCK_MAX_SLOTS;
  penstock_ledger_device ledger[PENSTOCK_MAX_DEVICES];
  size_t at = offsetof(penstock_usage_page, ledger);
  if (!add(fd, ledger, devices * sizeof *ledger, at, &digest)) return 0;
  for (uint32_t i = 0; i < devices; i++) {
    uint64_t gate[offsetof(penstock_gate_device, ring) / sizeof(uint64_t)];
    at = offsetof(penstock_usage_page, gate) + i * sizeof(penstock_gate_device);
    if (!add(fd, gate, sizeof gate, at, &digest)) return 0;
  }
  for (uint64_t i = 0; i < slots; i++) {
    penstock_slot slot;
    at = offsetof(penstock_usage_page, slots) + i * sizeof slot;
    if (!add(fd, &slot, sizeof slot, at, &digest)) return 0;
  }
  return digest ? digest : 1;
}
