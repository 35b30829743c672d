/* Checkpointing a process: locked, its memory given back, taken again, unlocked. Any process of the
 * machine may do it to any other; the states are those of CUprocessState. */
#include "sim/machine/model.h"

#define RUNNING 0
#define LOCKED 1
#define CHECKPOINTED 2
#define POLL_NS 500000

static uint32_t find_live(const sim_device *d, int32_t pid) {
  for (uint32_t client = 0; client < d->clients_high; client++)
    if (d->clients[client].state == SIM_CLIENT_LIVE && d->clients[client].pid == pid) return client;
  return SIM_NONE;
}

int sim_checkpoint_state(sim_machine *m, int32_t pid) {
  int state = -1;
  for (uint32_t device = 0; device < m->file->device_count; device++) {
    sim_device *d = sim_lock(m, device);
    uint32_t client = find_live(d, pid);
    if (client != SIM_NONE) state = (int)d->clients[client].checkpoint;
    sim_unlock(d);
  }
  return state;
}

static void set_frozen(sim_machine *m, int32_t pid, uint32_t frozen, uint32_t state) {
  for (uint32_t device = 0; device < m->file->device_count; device++) {
    sim_device *d = sim_lock(m, device);
    uint32_t client = find_live(d, pid);
    if (client != SIM_NONE) {
      d->clients[client].frozen = frozen;
      d->clients[client].checkpoint = state;
      __atomic_add_fetch(&d->clients[client].done_bell, 1, __ATOMIC_RELEASE);
      sim_futex_wake(&d->clients[client].done_bell);
    }
    sim_unlock(d);
  }
}

static bool has_work(sim_machine *m, int32_t pid) {
  bool work = false;
  for (uint32_t device = 0; device < m->file->device_count; device++) {
    sim_device *d = sim_lock(m, device);
    uint32_t client = find_live(d, pid);
    if (client != SIM_NONE && d->clients[client].op_count) work = true;
    sim_unlock(d);
  }
  return work;
}

/* New calls wait from now on; returns when what was submitted is done, or -1 at `timeout_ns` (0:
 * none), unlocked again. */
int sim_checkpoint_lock(sim_machine *m, int32_t pid, uint64_t timeout_ns) {
  uint64_t begun = sim_now_ns();
  set_frozen(m, pid, 1, LOCKED);
  while (has_work(m, pid)) {
    if (timeout_ns && sim_now_ns() - begun > timeout_ns) {
      set_frozen(m, pid, 0, RUNNING);
      return -1;
    }
    sim_sleep_until(sim_now_ns() + POLL_NS);
  }
  return 0;
}

void sim_checkpoint_unlock(sim_machine *m, int32_t pid) { set_frozen(m, pid, 0, RUNNING); }

void sim_checkpoint_save(sim_machine *m, int32_t pid) {
  for (uint32_t device = 0; device < m->file->device_count; device++) {
    sim_device *d = sim_lock(m, device);
    uint32_t client = find_live(d, pid);
    if (client != SIM_NONE) {
      sim_client *c = &d->clients[client];
      c->saved_bytes = c->memory_bytes;
      d->memory_used -= c->memory_bytes;
      c->memory_bytes = 0;
      c->checkpoint = CHECKPOINTED;
    }
    sim_unlock(d);
  }
}

/* -1: some device has no room; nothing is changed then. */
int sim_checkpoint_restore(sim_machine *m, int32_t pid) {
  uint32_t done = 0, count = m->file->device_count;
  for (; done < count; done++) {
    sim_device *d = sim_lock(m, done);
    uint32_t client = find_live(d, pid);
    bool fits = true;
    if (client != SIM_NONE) {
      sim_client *c = &d->clients[client];
      fits = c->saved_bytes <= d->profile.memory_bytes - d->memory_used;
      if (fits) {
        c->memory_bytes = c->saved_bytes;
        d->memory_used += c->saved_bytes;
        c->checkpoint = LOCKED;
      }
    }
    sim_unlock(d);
    if (!fits) break;
  }
  if (done == count) return 0;
  while (done-- > 0) {
    sim_device *d = sim_lock(m, done);
    uint32_t client = find_live(d, pid);
    if (client != SIM_NONE) {
      sim_client *c = &d->clients[client];
      d->memory_used -= c->memory_bytes;
      c->memory_bytes = 0;
      c->checkpoint = CHECKPOINTED;
    }
    sim_unlock(d);
  }
  return -1;
}
