#include "mechanism/slice.h"

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

int penstock_slice_any(const penstock_quota_page *page, unsigned device) {
  return __atomic_load_n(&words(page, device)->slice_begin_ns, __ATOMIC_RELAXED) != 0;
}

/* Reads a consistent time slice. The writer clears the end before it changes the other words and
 * stores the new end last, and no two time slices have the same end. Words that are read between
 * two reads of the same end therefore belong to the same time slice. */
void penstock_slice_read(const penstock_quota_page *page, unsigned device, penstock_slice *out) {
  const penstock_device_limit *limit = words(page, device);
  *out = (penstock_slice){0};
  if (!penstock_slice_any(page, device)) return;
  for (int i = 0; i < 8; i++) {
    uint64_t end = load(&limit->slice_end_ns);
    penstock_slice slice = {load(&limit->slice_begin_ns), end, load(&limit->slice_alive_ns),
                            load(&limit->slice_flags)};
    if (load(&limit->slice_end_ns) != end) continue;
    *out = slice;
    return;
  }
}

static void wake(penstock_quota_page *page) {
  __atomic_fetch_add(&page->change_futex, 1, __ATOMIC_ACQ_REL);
  syscall(SYS_futex, &page->change_futex, FUTEX_WAKE, INT_MAX, (void *)0, (void *)0, 0);
}

void penstock_slice_begin(penstock_quota_page *page, unsigned device, const penstock_slice *slice) {
  const penstock_device_limit *limit = words(page, device);
  store(&limit->slice_end_ns, 0);
  store(&limit->slice_alive_ns, slice->alive_ns);
  store(&limit->slice_flags, slice->flags);
  store(&limit->slice_begin_ns, slice->begin_ns);
  store(&limit->slice_end_ns, slice->end_ns);
  if (slice->end_ns > slice->begin_ns) wake(page);
}

void penstock_slice_end(penstock_quota_page *page, unsigned device, uint64_t end_ns) {
  store(&words(page, device)->slice_end_ns, end_ns);
}

void penstock_slice_alive(penstock_quota_page *page, unsigned device, uint64_t now_ns) {
  store(&words(page, device)->slice_alive_ns, now_ns);
}

void penstock_slice_off(penstock_quota_page *page, unsigned device) {
  const penstock_device_limit *limit = words(page, device);
  store(&limit->slice_end_ns, 0);
  store(&limit->slice_flags, 0);
  store(&limit->slice_begin_ns, 0);
  wake(page);
}
