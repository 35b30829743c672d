/* Injected faults. */
#include <fnmatch.h>
#include <string.h>
#include <unistd.h>

#include "sim/machine/model.h"

int sim_machine_inject(sim_machine *m, uint32_t device, const sim_fault *fault) {
  if (!m || device >= m->file->device_count || fault->kind > SIM_FAULT_HANG) return -1;
  sim_device *d = sim_lock(m, device);
  int result = 0;
  if (!fault->kind) {
    __atomic_store_n(&d->fault_count, 0, __ATOMIC_RELEASE);
    d->lost = 0;
    __atomic_store_n(&d->wants_reset, 0, __ATOMIC_RELEASE);
  } else if (fault->kind == SIM_FAULT_DEVICE_LOST) {
    d->lost = 1;
    for (uint32_t client = 0; client < d->clients_high; client++)
      if (d->clients[client].state == SIM_CLIENT_LIVE) {
        sim_forget_ops(m, d, client);
        __atomic_add_fetch(&d->clients[client].done_bell, 1, __ATOMIC_RELEASE);
        sim_futex_wake(&d->clients[client].done_bell);
      }
  } else if (d->fault_count < SIM_FAULTS) {
    d->faults[d->fault_count] = *fault;
    d->faults[d->fault_count].call[SIM_TAG_BYTES - 1] = 0;
    /* In the table, UINT64_MAX means "until lifted" and 0 means "used up". */
    if (!fault->count) d->faults[d->fault_count].count = UINT64_MAX;
    __atomic_store_n(&d->fault_count, d->fault_count + 1, __ATOMIC_RELEASE);
  } else {
    result = -1;
  }
  sim_unlock(d);
  return result;
}

static bool hits(sim_machine *m, uint32_t device, uint32_t kind, const char *call, bool named,
                 uint64_t *value_ns) {
  sim_device *d = &m->devices[device];
  if (!__atomic_load_n(&d->fault_count, __ATOMIC_ACQUIRE)) return false;
  sim_lock_bare(m, device);
  bool hit = false;
  for (uint32_t i = 0; i < d->fault_count && !hit; i++) {
    sim_fault *f = &d->faults[i];
    if (f->kind != kind || !f->count || (f->pid && f->pid != getpid())) continue;
    if (f->call[0] ? fnmatch(f->call, call, 0) : named) continue;
    if (f->skip) {
      f->skip--;
      continue;
    }
    if (f->count != UINT64_MAX) f->count--;
    if (value_ns) *value_ns = f->value_ns;
    hit = true;
  }
  sim_unlock(d);
  return hit;
}

bool sim_fault_hits(sim_machine *m, uint32_t device, uint32_t kind, const char *call,
                    uint64_t *value_ns) {
  return hits(m, device, kind, call, false, value_ns);
}

bool sim_fault_hits_named(sim_machine *m, uint32_t device, uint32_t kind, const char *call) {
  return hits(m, device, kind, call, true, NULL);
}

/* Returns whether an XID error is one that programs cause and that does not affect the device
 * (NVIDIA's XID catalogue). */
static bool is_applications(uint32_t xid) {
  static const uint32_t known[] = {13, 31, 43, 45, 68, 109};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (known[i] == xid) return true;
  }
  return false;
}

int sim_machine_report_xid(sim_machine *m, uint32_t device, uint32_t xid) {
  if (!m || device >= m->file->device_count) return -1;
  sim_device *d = sim_lock(m, device);
  d->xids[d->xid_count % SIM_XIDS] = xid;
  __atomic_store_n(&d->xid_count, d->xid_count + 1, __ATOMIC_RELEASE);
  if (!is_applications(xid)) __atomic_store_n(&d->wants_reset, 1, __ATOMIC_RELEASE);
  sim_unlock(d);
  return 0;
}
