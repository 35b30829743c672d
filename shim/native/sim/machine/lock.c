/* A device's lock. Its holder may be killed: the next one repairs. */
#include <errno.h>

#include "sim/machine/model.h"

#define REAP_EVERY_NS 2000000

sim_device *sim_lock_bare(sim_machine *m, uint32_t device) {
  sim_device *d = &m->devices[device];
  if (pthread_mutex_lock(&d->lock) == EOWNERDEAD) {
    sim_repair(m, d);
    pthread_mutex_consistent(&d->lock);
  }
  return d;
}

sim_device *sim_lock(sim_machine *m, uint32_t device) {
  sim_device *d = sim_lock_bare(m, device);
  uint64_t now = sim_now_ns();
  /* The dead go first: nothing that they left queued is done after their end was noticed. */
  if (now - d->reaped_ns >= REAP_EVERY_NS) sim_reap(m, d);
  sim_advance(m, d, now);
  return d;
}

void sim_unlock(sim_device *d) { pthread_mutex_unlock(&d->lock); }
