#include "mechanism/publish.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mechanism/clock.h"

static void copy_text(char *to, size_t size, const char *from) {
  size_t length = strnlen(from, size - 1);
  memcpy(to, from, length);
  memset(to + length, 0, size - length);
}

/* Copies word by word, so that no reader sees half of a field. Each store has release order, so
 * that a reader that sees a new word also sees that the generation was zeroed before. */
static void copy_words(uint64_t *to, const uint64_t *from, size_t count) {
  for (size_t i = 0; i < count; i++) __atomic_store_n(&to[i], from[i], __ATOMIC_RELEASE);
}

#define WORD(type, field) (offsetof(type, field) / 8)

/* Copies a device's limits except the words of its time slice, which another thread writes
 * (slice.c). */
static void copy_device(penstock_device_limit *to, const penstock_device_limit *from) {
  enum { BEGIN = WORD(penstock_device_limit, slice_begin_ns) };
  enum { BETWEEN = WORD(penstock_device_limit, device_flags) };
  enum { ALIVE = WORD(penstock_device_limit, slice_alive_ns) };
  enum { REST = WORD(penstock_device_limit, reserved) };
  copy_words((uint64_t *)to, (const uint64_t *)from, BEGIN);
  copy_words((uint64_t *)to + BETWEEN, (const uint64_t *)from + BETWEEN, ALIVE - BETWEEN);
  copy_words((uint64_t *)to + REST, (const uint64_t *)from + REST, sizeof *to / 8 - REST);
}

static void fill(penstock_limits *copy, const penstock_limits *limits, uint64_t generation) {
  _Static_assert(sizeof(penstock_limits) % 8 == 0, "limits are whole words");
  _Static_assert(offsetof(penstock_limits, devices) % 8 == 0, "devices begin at a whole word");
  __atomic_store_n(&copy->generation, 0, __ATOMIC_RELAXED);
  copy_words((uint64_t *)copy + 1, (const uint64_t *)limits + 1,
             WORD(penstock_limits, devices) - 1);
  for (int i = 0; i < PENSTOCK_MAX_DEVICES; i++) {
    copy_device(&copy->devices[i], &limits->devices[i]);
  }
  __atomic_store_n(&copy->generation, generation, __ATOMIC_RELEASE);
}

void penstock_quota_init(penstock_quota_page *page, const penstock_limits *limits,
                         const char *tenant, const char *driver_path, const char *nvml_path) {
  page->version = PENSTOCK_ABI_VERSION;
  page->size_bytes = sizeof *page;
  copy_text(page->tenant, sizeof page->tenant, tenant);
  copy_text(page->driver_path, sizeof page->driver_path, driver_path);
  copy_text(page->nvml_path, sizeof page->nvml_path, nvml_path);
  fill(&page->copies[0], limits, 1);
  fill(&page->copies[1], limits, 1);
  penstock_quota_heartbeat(page);
  __atomic_store_n(&page->magic, PENSTOCK_QUOTA_MAGIC, __ATOMIC_RELEASE);
}

void penstock_usage_init(penstock_usage_page *page) {
  page->version = PENSTOCK_ABI_VERSION;
  page->size_bytes = sizeof *page;
  __atomic_store_n(&page->magic, PENSTOCK_USAGE_MAGIC, __ATOMIC_RELEASE);
}

uint64_t penstock_quota_publish(penstock_quota_page *page, const penstock_limits *limits) {
  uint32_t current = __atomic_load_n(&page->current, __ATOMIC_ACQUIRE) & 1;
  uint64_t generation = page->copies[current].generation + 1;
  fill(&page->copies[current ^ 1], limits, generation);
  __atomic_store_n(&page->current, current ^ 1, __ATOMIC_RELEASE);
  __atomic_fetch_add(&page->change_futex, 1, __ATOMIC_ACQ_REL);
  syscall(SYS_futex, &page->change_futex, FUTEX_WAKE, INT_MAX, (void *)0, (void *)0, 0);
  return generation;
}

uint64_t penstock_quota_heartbeat(penstock_quota_page *page) {
  uint64_t now = penstock_now_ns();
  __atomic_store_n(&page->heartbeat_ns, now, __ATOMIC_RELEASE);
  return now;
}

void penstock_quota_mark_dead(penstock_quota_page *page, uint32_t slot, uint64_t owner) {
  if (slot >= PENSTOCK_MAX_SLOTS) return;
  __atomic_store_n(&page->dead_owners[slot], owner, __ATOMIC_RELEASE);
}
