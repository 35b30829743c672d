/* A device's lock. Its holder may be killed: the next one repairs. It may be stopped: the next one
 * lets it go on as far as here. */
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "sim/machine/model.h"

#define REAP_EVERY_NS 2000000
#define PATIENCE_NS 20000000 /* nobody has the lock for so long who runs */

static sim_device *take_over(sim_machine *m, sim_device *d) {
  sim_repair(m, d);
  pthread_mutex_consistent(&d->lock);
  return d;
}

static int wait_for(sim_device *d) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += PATIENCE_NS;
  if (until.tv_nsec >= 1000000000) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000;
  }
  return pthread_mutex_timedlock(&d->lock, &until);
}

sim_device *sim_lock_bare(sim_machine *m, uint32_t device) {
  sim_device *d = &m->devices[device];
  int result = pthread_mutex_trylock(&d->lock);
  pid_t finishing = 0;
  while (result == EBUSY || result == ETIMEDOUT) {
    pid_t stopped = result == ETIMEDOUT ? sim_let_finish(m, d) : 0;
    if (stopped) finishing = stopped;
    result = wait_for(d);
  }
  if (finishing) kill(finishing, SIGSTOP); /* it has no lock now: we have it */
  return result == EOWNERDEAD ? take_over(m, d) : d;
}

/* For who holds another device already: two that want each other's must not wait. */
void sim_bring_up(sim_machine *m, uint32_t device) {
  sim_device *d = &m->devices[device];
  int result = pthread_mutex_trylock(&d->lock);
  if (result == EOWNERDEAD) take_over(m, d);
  if (result && result != EOWNERDEAD) return; /* whoever has it brings it up to now */
  sim_advance(m, d, sim_now_ns());
  sim_unlock(d);
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
