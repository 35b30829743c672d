/* The device's part of a checkpoint: the memory of a client is given back and taken again, on the
 * same device or on another one. */
#include "sim/machine/model.h"

bool sim_client_busy(sim_machine *m, uint32_t device, uint32_t client) {
  sim_device *d = sim_lock(m, device);
  bool busy = d->clients[client].op_count;
  sim_unlock(d);
  return busy;
}

uint64_t sim_client_release(sim_machine *m, uint32_t device, uint32_t client) {
  sim_device *d = sim_lock(m, device);
  sim_client *c = &d->clients[client];
  uint64_t bytes = c->memory_bytes;
  d->memory_used -= bytes;
  c->memory_bytes = 0;
  sim_unlock(d);
  return bytes;
}

bool sim_client_retake(sim_machine *m, uint32_t device, uint32_t client, uint64_t bytes) {
  return sim_memory_take(m, device, client, bytes);
}

/* Events that were recorded keep their times. They are in the clock of the former device, so that a
 * time between an event from before the move and one from after it means nothing. */
void sim_client_move(sim_machine *m, uint32_t device, uint32_t client, uint32_t new_device,
                     uint32_t new_client) {
  const sim_area *from = sim_area_of(m, device, client);
  sim_area *to = sim_area_of(m, new_device, new_client);
  for (int i = 0; i < SIM_CELLS; i++)
    if (from->cells[i].used)
      to->cells[i] = (sim_cell){.used = 1, .time_ns = from->cells[i].time_ns};
  m->devices[new_device].clients[new_client].failed = m->devices[device].clients[client].failed;
}
