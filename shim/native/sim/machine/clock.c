/* The machine's clock, and each device's own clock, which events use. */
#include <time.h>

#include "sim/machine/model.h"

uint64_t sim_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

uint64_t sim_device_clock_ns(const sim_device *d) {
  const sim_profile *p = &d->profile;
  double drift_ns = (double)(d->t_ns - d->created_ns) * p->clock_drift_ppm / 1e6;
  return d->t_ns + (uint64_t)(p->clock_offset_ns + d->clock_shift_ns + (int64_t)drift_ns);
}

int sim_machine_shift_clock(sim_machine *m, uint32_t device, int64_t ns) {
  if (!m || device >= m->file->device_count) return -1;
  sim_device *d = sim_lock(m, device);
  d->clock_shift_ns += ns;
  sim_unlock(d);
  return 0;
}
