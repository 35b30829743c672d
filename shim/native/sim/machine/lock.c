/* A device's lock. If its holder is killed, the next holder repairs the state. If its holder is
 * stopped, a waiting process lets it continue until it has released the lock. */
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "sim/machine/model.h"

#define REAP_EVERY_NS 2000000
#define PATIENCE_NS 20000000 /* a running process never holds the lock for this long */

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
  /* the process has released the lock, so stop it again */
  if (finishing) kill(finishing, SIGSTOP);
  return result == EOWNERDEAD ? take_over(m, d) : d;
}

/* Advances another device. For callers that hold a device's lock: it does not wait for the other
 * lock, because that could deadlock. */
void sim_bring_up(sim_machine *m, uint32_t device) {
  sim_device *d = &m->devices[device];
  int result = pthread_mutex_trylock(&d->lock);
  if (result == EOWNERDEAD) take_over(m, d);
  if (result && result != EOWNERDEAD) return; /* the lock's holder advances the device */
  sim_advance(m, d, sim_now_ns());
  sim_unlock(d);
}

sim_device *sim_lock(sim_machine *m, uint32_t device) {
  sim_device *d = sim_lock_bare(m, device);
  uint64_t now = sim_now_ns();
  /* Reaping comes first, because queued work of an ended process must not run any more. */
  if (now - d->reaped_ns >= REAP_EVERY_NS) sim_reap(m, d);
  sim_advance(m, d, now);
  return d;
}

void sim_unlock(sim_device *d) { pthread_mutex_unlock(&d->lock); }
