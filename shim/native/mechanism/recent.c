#include "mechanism/recent.h"

static uint32_t place(const penstock_recent *recent, uint32_t sample) {
  return (recent->first + sample) % PENSTOCK_RECENT_SAMPLES;
}

static void drop_first(penstock_recent *recent) {
  recent->first = place(recent, 1);
  recent->count--;
}

void penstock_recent_add(penstock_recent *recent, uint64_t at_ns, uint64_t spent_ns,
                         uint64_t launches, uint64_t waits, int in_flight) {
  int known = recent->count > 0;
  if (known && waits != recent->waits) recent->waited_at_ns = at_ns;
  int moved = known && (launches != recent->launches ||
                        spent_ns != recent->spent_ns[place(recent, recent->count - 1)]);
  if (in_flight || moved) {
    if (!penstock_recent_is_active(recent, at_ns)) recent->active_since_ns = at_ns;
    recent->active_at_ns = at_ns;
  }
  recent->waits = waits;
  recent->launches = launches;
  if (recent->count == PENSTOCK_RECENT_SAMPLES) drop_first(recent);
  uint32_t last = place(recent, recent->count++);
  recent->at_ns[last] = at_ns;
  recent->spent_ns[last] = spent_ns;
  while (recent->count > 2 && recent->at_ns[place(recent, 1)] + PENSTOCK_RECENT_WINDOW_NS <= at_ns)
    drop_first(recent);
}

uint32_t penstock_recent_permille(const penstock_recent *recent) {
  if (recent->count < 2) return 0;
  uint32_t first = recent->first, last = place(recent, recent->count - 1);
  uint64_t elapsed_ns = recent->at_ns[last] - recent->at_ns[first];
  uint64_t before_ns = recent->spent_ns[first], now_ns = recent->spent_ns[last];
  if (elapsed_ns == 0 || now_ns <= before_ns) return 0;
  /* clamped to the elapsed time below, because the tenant writes this value */
  uint64_t spent_ns = now_ns - before_ns;
  return spent_ns >= elapsed_ns ? 1000 : (uint32_t)(spent_ns * 1000 / elapsed_ns);
}

static int is_within(uint64_t then_ns, uint64_t at_ns, uint64_t span_ns) {
  return then_ns != 0 && (at_ns <= then_ns || at_ns - then_ns <= span_ns);
}

int penstock_recent_is_active(const penstock_recent *recent, uint64_t at_ns) {
  return is_within(recent->active_at_ns, at_ns, PENSTOCK_RECENT_WINDOW_NS);
}

int penstock_recent_is_asking(const penstock_recent *recent, uint64_t at_ns) {
  int began = penstock_recent_is_active(recent, at_ns) &&
              is_within(recent->active_since_ns, at_ns, PENSTOCK_RECENT_WINDOW_NS);
  return began || is_within(recent->waited_at_ns, at_ns, PENSTOCK_RECENT_ASKING_NS);
}
