#include "mechanism/turn.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static const penstock_device_limit *words(const penstock_quota_page *page, unsigned device) {
  return &page->copies[0].devices[device];
}

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static void store(const uint64_t *word, uint64_t value) {
  __atomic_store_n((uint64_t *)(uintptr_t)word, value, __ATOMIC_RELEASE);
}

int penstock_turn_any(const penstock_quota_page *page, unsigned device) {
  return __atomic_load_n(&words(page, device)->turn_begin_ns, __ATOMIC_RELAXED) != 0;
}

/* The end is taken back before the begin changes and stored after it, and no two turns end alike:
 * what was read between two equal ends belongs to that end. */
void penstock_turn_read(const penstock_quota_page *page, unsigned device, penstock_turn *out) {
  const penstock_device_limit *limit = words(page, device);
  *out = (penstock_turn){0};
  if (!penstock_turn_any(page, device)) return;
  for (int i = 0; i < 8; i++) {
    uint64_t end = load(&limit->turn_end_ns);
    penstock_turn turn = {load(&limit->turn_begin_ns), end, load(&limit->turn_alive_ns),
                          load(&limit->turn_flags)};
    if (load(&limit->turn_end_ns) != end) continue;
    *out = turn;
    return;
  }
}

static void wake(penstock_quota_page *page) {
  __atomic_fetch_add(&page->change_futex, 1, __ATOMIC_ACQ_REL);
  syscall(SYS_futex, &page->change_futex, FUTEX_WAKE, INT_MAX, (void *)0, (void *)0, 0);
}

void penstock_turn_begin(penstock_quota_page *page, unsigned device, const penstock_turn *turn) {
  const penstock_device_limit *limit = words(page, device);
  store(&limit->turn_end_ns, 0);
  store(&limit->turn_alive_ns, turn->alive_ns);
  store(&limit->turn_flags, turn->flags);
  store(&limit->turn_begin_ns, turn->begin_ns);
  store(&limit->turn_end_ns, turn->end_ns);
  if (turn->end_ns > turn->begin_ns) wake(page);
}

void penstock_turn_end(penstock_quota_page *page, unsigned device, uint64_t end_ns) {
  store(&words(page, device)->turn_end_ns, end_ns);
}

void penstock_turn_alive(penstock_quota_page *page, unsigned device, uint64_t now_ns) {
  store(&words(page, device)->turn_alive_ns, now_ns);
}

void penstock_turn_off(penstock_quota_page *page, unsigned device) {
  const penstock_device_limit *limit = words(page, device);
  store(&limit->turn_end_ns, 0);
  store(&limit->turn_flags, 0);
  store(&limit->turn_begin_ns, 0);
  wake(page);
}
