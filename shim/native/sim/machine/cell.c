/* Event cells, in which the device stores the times of events. */
#include "sim/machine/model.h"

uint32_t sim_cell_allocate(sim_machine *m, uint32_t device, uint32_t client) {
  sim_device *d = sim_lock_bare(m, device);
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, device, client);
  uint32_t found = UINT32_MAX;
  for (uint32_t step = 0; step < SIM_CELLS && found == UINT32_MAX; step++) {
    uint32_t cell = (c->cell_hint + step) % SIM_CELLS;
    if (!a->cells[cell].used) found = cell;
  }
  if (found != UINT32_MAX) {
    a->cells[found] = (sim_cell){.used = 1};
    c->cell_hint = found + 1;
  }
  sim_unlock(d);
  return found;
}

void sim_cell_release(sim_machine *m, uint32_t device, uint32_t client, uint32_t cell) {
  sim_device *d = sim_lock_bare(m, device);
  sim_area_of(m, device, client)->cells[cell].used = 0;
  d->clients[client].cell_hint = cell;
  sim_unlock(d);
}
