/* MIG: lists the instances of a divided device. Programs see and use the whole device. */
#include <string.h>

#include "sim/machine/model.h"

int sim_machine_set_mig(sim_machine *m, uint32_t device, const sim_mig *instances, uint32_t count) {
  if (!m || device >= m->file->device_count || count > SIM_MIG_INSTANCES) return -1;
  sim_device *d = sim_lock(m, device);
  sim_reap(m, d);
  bool used = false;
  for (uint32_t word = 0; word < SIM_CLIENTS / 64; word++) used |= d->live[word] != 0;
  if (!used) {
    memset(d->mig, 0, sizeof d->mig);
    if (count) memcpy(d->mig, instances, count * sizeof *instances);
    for (uint32_t i = 0; i < count; i++) d->mig[i].profile[SIM_MIG_NAME_BYTES - 1] = 0;
    __atomic_store_n(&d->mig_count, count, __ATOMIC_RELEASE);
  }
  sim_unlock(d);
  return used ? -1 : 0;
}
