/* Amounts of device memory. Addresses are the driver's business (sim/cuda). */
#include "sim/machine/model.h"

static bool take(sim_device *d, sim_client *c, uint64_t bytes) {
  if (c->state != SIM_CLIENT_LIVE || bytes > d->profile.memory_bytes - d->memory_used) return false;
  c->memory_bytes += bytes;
  d->memory_used += bytes;
  if (c->memory_bytes > c->peak_memory_bytes) c->peak_memory_bytes = c->memory_bytes;
  return true;
}

bool sim_memory_take(sim_machine *m, uint32_t device, uint32_t client, uint64_t bytes) {
  sim_device *d = sim_lock(m, device);
  sim_client *c = &d->clients[client];
  bool taken = take(d, c, bytes);
  if (!taken) {
    sim_reap(m, d); /* a process may just have ended, or closed a descriptor that kept memory */
    sim_descriptors_look(d);
    taken = take(d, c, bytes);
    c->refused += !taken;
  }
  sim_unlock(d);
  return taken;
}

void sim_memory_give(sim_machine *m, uint32_t device, uint32_t client, uint64_t bytes) {
  sim_device *d = sim_lock_bare(m, device);
  sim_client *c = &d->clients[client];
  if (c->state == SIM_CLIENT_LIVE) {
    if (bytes > c->memory_bytes) bytes = c->memory_bytes;
    c->memory_bytes -= bytes;
    d->memory_used -= bytes;
  }
  sim_unlock(d);
}

void sim_memory_info(sim_machine *m, uint32_t device, uint64_t *free_bytes, uint64_t *total_bytes) {
  sim_device *d = sim_lock(m, device);
  sim_descriptors_look(d);
  *free_bytes = d->profile.memory_bytes - d->memory_used;
  *total_bytes = d->profile.memory_bytes;
  sim_unlock(d);
}
