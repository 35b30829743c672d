/* Shared memory, which several processes or open descriptors refer to. The device counts it for one
 * of the processes. When that process releases the memory or ends, the next process takes over, and
 * no process is charged while only descriptors keep the memory. As with a driver, the memory is
 * freed with the last reference. */
#include "sim/machine/model.h"

static sim_shared *entry_of(sim_device *d, uint64_t id) {
  sim_shared *s = &d->shared[id % SIM_SHARED];
  return id && s->id == id ? s : NULL;
}

static sim_holder *holder_of(sim_shared *s, uint32_t client) {
  for (int i = 0; i < SIM_HOLDERS; i++)
    if (s->holders[i].count && s->holders[i].client == client) return &s->holders[i];
  return NULL;
}

static void count_for(sim_device *d, uint32_t client, uint64_t bytes) {
  sim_client *c = &d->clients[client];
  c->memory_bytes += bytes;
  if (c->memory_bytes > c->peak_memory_bytes) c->peak_memory_bytes = c->memory_bytes;
}

/* Counts the memory for another holder, because `client` no longer holds it. */
static void pass_on(sim_device *d, sim_shared *s, uint32_t client) {
  if (s->payer != client) return;
  /* may be less than the memory's size while the client is checkpointed */
  uint64_t *counted = &d->clients[client].memory_bytes;
  *counted -= s->bytes < *counted ? s->bytes : *counted;
  for (int i = 0; i < SIM_HOLDERS; i++) {
    if (!s->holders[i].count || s->holders[i].client == client) continue;
    s->payer = s->holders[i].client;
    count_for(d, s->payer, s->bytes);
    return;
  }
  s->payer = SIM_NONE;
  sim_shared_described(d, s->id, 0);
}

void sim_shared_described(sim_device *d, uint64_t id, int change) {
  sim_shared *s = entry_of(d, id);
  if (!s) return;
  s->descriptors += (uint32_t)change;
  if (s->descriptors || s->payer != SIM_NONE) return;
  d->memory_used -= s->bytes;
  s->id = 0;
}

uint64_t sim_shared_make(sim_machine *m, uint32_t device, uint32_t client, uint64_t bytes) {
  sim_device *d = sim_lock(m, device);
  uint64_t id = 0;
  for (int tries = 0; tries < SIM_SHARED && !id; tries++) {
    uint64_t next = ++d->shared_ids;
    sim_shared *s = &d->shared[next % SIM_SHARED];
    if (s->id) continue;
    *s = (sim_shared){.id = next, .bytes = bytes, .payer = client};
    s->holders[0] = (sim_holder){client, 1, 0};
    id = next;
  }
  sim_unlock(d);
  return id;
}

bool sim_shared_join(sim_machine *m, uint32_t device, uint32_t client, uint64_t id) {
  sim_device *d = sim_lock(m, device);
  sim_reap(m, d);
  sim_descriptors_look(d);
  sim_shared *s = entry_of(d, id);
  sim_holder *h = s ? holder_of(s, client) : NULL;
  for (int i = 0; s && !h && i < SIM_HOLDERS; i++)
    if (!s->holders[i].count) *(h = &s->holders[i]) = (sim_holder){client, 0, 0};
  if (h) h->count++;
  if (h && s->payer == SIM_NONE) {
    s->payer = client;
    count_for(d, client, s->bytes);
  }
  sim_unlock(d);
  return h;
}

void sim_shared_name(sim_machine *m, uint32_t device, uint64_t id, uint64_t what) {
  sim_device *d = sim_lock_bare(m, device);
  sim_shared *s = entry_of(d, id);
  if (s) s->what = what;
  sim_unlock(d);
}

bool sim_shared_find(sim_machine *m, uint32_t device, uint64_t id, uint64_t *what,
                     uint64_t *bytes) {
  sim_device *d = sim_lock_bare(m, device);
  const sim_shared *s = entry_of(d, id);
  if (s) {
    *what = s->what;
    *bytes = s->bytes;
  }
  sim_unlock(d);
  return s;
}

void sim_shared_grow(sim_machine *m, uint32_t device, uint32_t client, uint64_t id, int64_t bytes) {
  sim_device *d = sim_lock_bare(m, device);
  sim_shared *s = entry_of(d, id);
  if (s && s->payer == client) s->bytes += (uint64_t)bytes;
  sim_unlock(d);
}

void sim_shared_file(sim_machine *m, uint32_t device, uint32_t client, uint64_t id, int file) {
  sim_device *d = sim_lock_bare(m, device);
  sim_shared *s = entry_of(d, id);
  sim_holder *h = s ? holder_of(s, client) : NULL;
  if (h) h->file = file;
  sim_unlock(d);
}

bool sim_shared_look(sim_machine *m, uint32_t device, uint64_t id, int index, int32_t *pid,
                     int32_t *file) {
  *pid = *file = 0;
  if (index >= SIM_HOLDERS) return false;
  sim_device *d = sim_lock_bare(m, device);
  const sim_shared *s = entry_of(d, id);
  if (s && s->holders[index].count) {
    *pid = d->clients[s->holders[index].client].pid;
    *file = s->holders[index].file;
  }
  sim_unlock(d);
  return s;
}

void sim_shared_leave(sim_machine *m, uint32_t device, uint32_t client, uint64_t id) {
  sim_device *d = sim_lock_bare(m, device);
  sim_shared *s = entry_of(d, id);
  sim_holder *h = s ? holder_of(s, client) : NULL;
  if (h && !--h->count) pass_on(d, s, client);
  sim_unlock(d);
}

void sim_shared_forget(sim_device *d, uint32_t client) {
  for (int i = 0; i < SIM_SHARED; i++) {
    sim_shared *s = &d->shared[i];
    sim_holder *h = s->id ? holder_of(s, client) : NULL;
    if (!h) continue;
    h->count = 0;
    pass_on(d, s, client);
  }
}
