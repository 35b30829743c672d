#include "slices/sample.h"

#include <stddef.h>
#include <unistd.h>

#include "mechanism/slots.h"

/* Times further in the future than this are invalid. */
#define AHEAD_NS 10000000000
/* A thread that waits at the gate updates its time at least every 20 ms, unless it gets no
 * processor time. */
#define FRESH_NS 60000000
/* Number of slots that are read. For processes in later slots, the tenant's `until_ns` must do. */
#define MOST_SLOTS 256

static bool read_at(int fd, void *to, size_t size, size_t offset) {
  return pread(fd, to, size, (off_t)offset) == (ssize_t)size;
}

penstock_sample penstock_sample_device(int usage_fd, unsigned device, uint64_t now_ns) {
  penstock_sample out = {0};
  uint64_t head[offsetof(penstock_gate_device, ring) / 8];
  _Static_assert(offsetof(penstock_gate_device, ring) % 8 == 0, "whole words before the ring");
  size_t at = offsetof(penstock_usage_page, gate) + device * sizeof(penstock_gate_device);
  if (!read_at(usage_fd, head, sizeof head, at)) {
    out.lost = true;
    return out;
  }
#define FIELD(name) head[offsetof(penstock_gate_device, name) / 8]
  out.spent_ns = FIELD(spent_ns);
  out.launches = FIELD(launches);
  if (FIELD(wanted_ns) <= now_ns + 1000000) out.waited_ns = FIELD(wanted_ns);
  if (FIELD(busy_until_ns) <= now_ns + AHEAD_NS) out.until_ns = FIELD(busy_until_ns);
#undef FIELD
  return out;
}

penstock_work penstock_sample_work(int usage_fd, unsigned device, uint64_t now_ns) {
  penstock_work out = {0};
  uint64_t high = 0;
  if (!read_at(usage_fd, &high, sizeof high, offsetof(penstock_usage_page, slots_high))) return out;
  if (high > MOST_SLOTS) high = MOST_SLOTS;
  for (uint64_t i = 0; i < high; i++) {
    penstock_gate_slot gate;
    size_t at = offsetof(penstock_usage_page, slots) + i * sizeof(penstock_slot) +
                offsetof(penstock_slot, gate) + device * sizeof gate;
    if (!read_at(usage_fd, &gate, sizeof gate, at)) return out;
    out.submitted += gate.submitted;
    if (gate.submitted == gate.done) continue;
    out.unsettled = true;
    bool waits = gate.waiting_ns <= now_ns + 1000000 && now_ns < gate.waiting_ns + FRESH_NS;
    out.attended = out.attended || waits || gate.busy_since_ns != 0;
  }
  return out;
}
