/* Reads the exact record of what devices and processes did. */
#include <string.h>

#include "sim/machine/model.h"

int sim_machine_device(sim_machine *m, uint32_t device, sim_device_info *info) {
  if (!m || device >= m->file->device_count) return -1;
  sim_device *d = &m->devices[device];
  memset(info, 0, sizeof *info);
  memcpy(info->uuid, d->uuid, sizeof info->uuid);
  info->index = device;
  info->lost = __atomic_load_n(&d->lost, __ATOMIC_ACQUIRE);
  info->profile = d->profile;
  info->wants_reset = __atomic_load_n(&d->wants_reset, __ATOMIC_ACQUIRE);
  info->xid_count = __atomic_load_n(&d->xid_count, __ATOMIC_ACQUIRE);
  memcpy(info->xids, d->xids, sizeof info->xids);
  info->mig_count = __atomic_load_n(&d->mig_count, __ATOMIC_ACQUIRE);
  memcpy(info->mig, d->mig, sizeof info->mig);
  return 0;
}

static uint32_t count_bits(const uint64_t *bits) {
  uint32_t n = 0;
  for (uint32_t word = 0; word < SIM_CLIENTS / 64; word++)
    n += (uint32_t)__builtin_popcountll(bits[word]);
  return n;
}

int sim_machine_usage(sim_machine *m, uint32_t device, sim_device_usage *usage) {
  if (!m || device >= m->file->device_count) return -1;
  sim_device *d = sim_lock(m, device);
  sim_reap(m, d);
  sim_descriptors_look(d);
  *usage = (sim_device_usage){
      .at_ns = d->t_ns,
      .created_ns = d->created_ns,
      .busy_ns = d->busy_ns,
      .copy_ns = d->copy_ns,
      .switch_ns = d->switch_ns,
      .switches = d->switches,
      .memory_used_bytes = d->memory_used,
      .memory_total_bytes = d->profile.memory_bytes,
      .processes = count_bits(d->live),
      .computing = count_bits(d->want_compute),
  };
  sim_unlock(d);
  return 0;
}

static void fill_record(const sim_client *c, sim_process_record *r) {
  *r = (sim_process_record){
      .pid = c->pid,
      .alive = c->state == SIM_CLIENT_LIVE,
      .start_ticks = c->start_ticks,
      .pid_namespace = c->pid_namespace,
      .began_ns = c->began_ns,
      .ended_ns = c->ended_ns,
      .busy_ns = c->busy_ns,
      .copy_ns = c->copy_ns,
      .memory_bytes = c->memory_bytes,
      .peak_memory_bytes = c->peak_memory_bytes,
      .launches = c->launches,
      .copies = c->copies,
      .pending = c->op_count,
      .refused = c->refused,
      .calls = __atomic_load_n(&c->calls, __ATOMIC_RELAXED),
  };
  memcpy(r->tag, c->tag, sizeof r->tag);
  memcpy(r->comm, c->comm, sizeof r->comm);
}

int sim_machine_record(sim_machine *m, uint32_t device, sim_process_record *records,
                       uint32_t capacity, uint64_t *at_ns) {
  if (!m || device >= m->file->device_count) return -1;
  sim_device *d = sim_lock(m, device);
  sim_reap(m, d);
  sim_descriptors_look(d);
  int count = 0;
  for (uint32_t client = 0; client < d->clients_high; client++) {
    const sim_client *c = &d->clients[client];
    if (c->state == SIM_CLIENT_FREE) continue;
    if ((uint32_t)count < capacity) fill_record(c, &records[count]);
    count++;
  }
  if (at_ns) *at_ns = d->t_ns;
  sim_unlock(d);
  return count;
}

static const sim_sample *find_samples(sim_machine *m, sim_device *d, int32_t pid,
                                      uint64_t *began_ns) {
  *began_ns = 0;
  if (!pid) return d->samples;
  for (uint32_t client = 0; client < d->clients_high; client++) {
    const sim_client *c = &d->clients[client];
    if (c->state != SIM_CLIENT_LIVE || c->pid != pid) continue;
    *began_ns = c->began_ns;
    return sim_area_of(m, (uint32_t)(d - m->devices), client)->samples;
  }
  return NULL;
}

int sim_machine_samples(sim_machine *m, uint32_t device, int32_t pid, sim_sample *samples,
                        uint32_t capacity) {
  if (!m || device >= m->file->device_count) return -1;
  sim_device *d = sim_lock(m, device);
  uint64_t began_ns;
  const sim_sample *ring = find_samples(m, d, pid, &began_ns);
  uint32_t have = d->sample_count < SIM_SAMPLES ? d->sample_count : SIM_SAMPLES;
  int count = 0;
  for (uint32_t i = 0; ring && i < have; i++) {
    const sim_sample *s = &ring[(d->sample_count - have + i) % SIM_SAMPLES];
    /* the sample is older than the process's attachment */
    if (!s->at_ns || s->at_ns < began_ns) continue;
    if ((uint32_t)count >= capacity) break;
    samples[count++] = *s;
  }
  sim_unlock(d);
  return count;
}
