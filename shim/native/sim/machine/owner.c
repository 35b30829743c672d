/* Operations that only the owning process can do: calling functions, and reading and writing its
 * memory. */
#include "sim/machine/model.h"

/* Limits of the polling period for a value that a stream waits for, which a program may change
 * without a call. The period grows with the length of the wait. */
#define LOOK_SOON_NS 50000
#define LOOK_LATE_NS 2000000

/* Returns true if the owner must report when the operation is done. */
static bool awaits_owner(const sim_op *op) {
  return op->state == SIM_OWNER || (op->state == SIM_ACTIVE && op->flags & SIM_OP_AWAITS);
}

/* Finds the next lane head, from lane `from` on, that waits for the owner. */
static bool next_owned(sim_client *c, sim_area *a, uint32_t *from, sim_op *op, uint16_t *slot) {
  for (; *from < c->lane_count; ++*from) {
    *slot = a->lanes[*from].head;
    if (!awaits_owner(&a->ops[*slot])) continue;
    *op = a->ops[*slot];
    ++*from;
    return true;
  }
  return false;
}

static void pop_head(sim_client *c, sim_area *a, uint16_t slot) {
  for (uint32_t i = 0; i < c->lane_count; i++) {
    if (a->lanes[i].head != slot) continue;
    sim_lane_pop(c, a, i);
    break;
  }
  c->owner_count--;
  sim_op_free(c, a, slot);
}

static void resolve(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot, uint64_t seq) {
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, (uint32_t)(d - m->devices), client);
  sim_op *op = &a->ops[slot];
  if (op->seq != seq) return; /* the operation was dropped meanwhile */
  if (op->kind == SIM_KERNEL) {
    op->flags &= (uint8_t)~SIM_OP_AWAITS;
    op->end_ns = c->busy_ns;
  } else {
    pop_head(c, a, slot);
  }
  sim_dispatch(m, d, client);
  sim_settle(m, d);
  __atomic_add_fetch(&c->done_bell, 1, __ATOMIC_RELEASE);
  sim_futex_wake(&c->done_bell);
}

static uint64_t next_watch(const sim_device *d, const sim_client *c) {
  uint64_t after = (d->t_ns - c->watched_ns) / 16;
  if (after > LOOK_LATE_NS) after = LOOK_LATE_NS;
  return d->t_ns + (after < LOOK_SOON_NS ? LOOK_SOON_NS : after);
}

/* Returns the time at which the first operation that needs the owner can become ready. */
static uint64_t next_look(sim_machine *m, sim_device *d, uint32_t client) {
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, (uint32_t)(d - m->devices), client);
  uint64_t next = UINT64_MAX;
  for (uint32_t i = 0; i < c->lane_count; i++) {
    if (awaits_owner(&a->ops[a->lanes[i].head])) {
      if (next_watch(d, c) < next) next = next_watch(d, c);
      continue;
    }
    for (uint16_t slot = a->lanes[i].head; slot != SIM_NONE; slot = a->ops[slot].next) {
      uint8_t kind = a->ops[slot].kind;
      if (kind != SIM_HOST && kind != SIM_WAIT_VALUE && kind != SIM_WRITE_VALUE &&
          !(a->ops[slot].flags & SIM_OP_AWAITS))
        continue;
      uint64_t at = slot == a->lanes[i].head ? d->t_ns : sim_estimate_before(m, d, client, slot);
      if (at == UINT64_MAX) at = next_watch(d, c);
      if (at < d->t_ns + LOOK_SOON_NS / 2) at = d->t_ns + LOOK_SOON_NS / 2;
      if (at < next) next = at;
      break;
    }
  }
  return next;
}

/* Writes the values of the list in order, under the lock, in any thread of the process. The head of
 * the list moves on only after a write, so that a reader without the lock that finds the list empty
 * also sees the values. */
static void deliver(sim_client *c, sim_area *a, sim_owner_act act) {
  while (c->deliver_head != SIM_NONE) {
    uint16_t slot = c->deliver_head;
    sim_op op = a->ops[slot];
    act(&op);
    if (op.next == SIM_NONE) c->deliver_tail = SIM_NONE;
    __atomic_store_n(&c->deliver_head, op.next, __ATOMIC_RELEASE);
    sim_op_free(c, a, slot);
  }
}

void sim_deliver(sim_machine *m, uint32_t device, uint32_t client, sim_owner_act act) {
  sim_client *c = &m->devices[device].clients[client];
  if (__atomic_load_n(&c->deliver_head, __ATOMIC_ACQUIRE) == SIM_NONE) return;
  sim_device *d = sim_lock_bare(m, device);
  deliver(c, sim_area_of(m, device, client), act);
  sim_unlock(d);
}

/* Runs the owner's operations. Only one thread of the process may call this. */
uint64_t sim_owner_run(sim_machine *m, uint32_t device, uint32_t client, sim_owner_act act) {
  sim_device *d = sim_lock(m, device);
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, device, client);
  sim_op op;
  uint16_t slot;
  deliver(c, a, act);
  uint32_t from = 0;
  __atomic_store_n(&c->watching, 0, __ATOMIC_RELAXED);
  while (next_owned(c, a, &from, &op, &slot)) {
    /* set before `act` reads the values */
    __atomic_exchange_n(&c->watching, 1, __ATOMIC_SEQ_CST);
    sim_unlock(d);
    bool resolved = act(&op);
    d = sim_lock(m, device);
    if (!resolved) continue;
    resolve(m, d, client, slot, op.seq);
    c->watched_ns = d->t_ns;
    from = 0;
  }
  uint64_t next = c->deliver_head != SIM_NONE ? d->t_ns : next_look(m, d, client);
  if (!c->op_count) sim_bit_clear(d->active, client);
  sim_unlock(d);
  return next;
}

/* Sequentially consistent, so that either this thread sees the watcher, or the watcher sees what
 * was written before. */
void sim_ring_watchers(sim_machine *m) {
  for (uint32_t device = 0; device < m->file->device_count; device++) {
    sim_device *d = &m->devices[device];
    uint32_t high = __atomic_load_n(&d->clients_high, __ATOMIC_RELAXED);
    for (uint32_t word = 0; word * 64 < high; word++)
      for (uint64_t bits = __atomic_load_n(&d->live[word], __ATOMIC_RELAXED); bits;
           bits &= bits - 1) {
        sim_client *c = &d->clients[word * 64 + (uint32_t)__builtin_ctzll(bits)];
        if (!__atomic_fetch_add(&c->watching, 0, __ATOMIC_SEQ_CST)) continue;
        __atomic_add_fetch(&c->bell, 1, __ATOMIC_RELEASE);
        sim_futex_wake(&c->bell);
      }
  }
}
