/* Repair after a process was killed while it held a device's lock. All derived data is recomputed
 * from the operations. An operation's `seq` is stored last when the operation is added and cleared
 * first when it is removed. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim/machine/model.h"

static int by_seq(const void *left, const void *right, void *area) {
  const sim_op *ops = ((sim_area *)area)->ops;
  uint64_t a = ops[*(const uint16_t *)left].seq, b = ops[*(const uint16_t *)right].seq;
  return a < b ? -1 : a > b;
}

static void clear_derived(sim_client *c) {
  c->op_count = c->owner_count = c->lane_count = c->running_count = c->width_used = 0;
  c->queued_behind = 0;
  memset(c->queue_lanes, 0, sizeof c->queue_lanes);
  c->free_head = c->deliver_tail = SIM_NONE;
  __atomic_store_n(&c->deliver_head, SIM_NONE, __ATOMIC_RELAXED);
}

void sim_rebuild_client(sim_machine *m, sim_device *d, uint32_t client) {
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, (uint32_t)(d - m->devices), client);
  uint16_t order[SIM_OPS];
  uint32_t count = 0;
  clear_derived(c);
  sim_bit_clear(d->active, client);
  for (uint16_t slot = 0; slot < c->op_high; slot++) {
    if (a->ops[slot].seq) {
      order[count++] = slot;
    } else {
      a->ops[slot].next = c->free_head;
      c->free_head = slot;
    }
  }
  qsort_r(order, count, sizeof order[0], by_seq, a);
  for (uint32_t i = 0; i < count; i++) {
    sim_op *op = &a->ops[order[i]];
    c->op_count++;
    if (op->seq >= c->next_seq) c->next_seq = op->seq + 1;
    op->next = SIM_NONE;
    if (op->state == SIM_DELIVER) {
      sim_delivery_push(c, a, order[i]);
      sim_bit_set(d->active, client);
      continue;
    }
    sim_lane_push(m, d, client, order[i]);
    if (op->state == SIM_OWNER) c->owner_count++;
    if (op->kind == SIM_KERNEL && op->state == SIM_ACTIVE && c->running_count < SIM_RUNNING) {
      c->running[c->running_count++] = order[i];
      c->width_used += op->width;
    }
    if (op->kind == SIM_COPY && op->state == SIM_ACTIVE) {
      d->engines[op->engine].client = client;
      d->engines[op->engine].op = order[i];
    }
  }
}

void sim_repair(sim_machine *m, sim_device *d) {
  if (d->journal.valid) sim_journal_apply(d);
  for (int k = 0; k < SIM_ENGINES; k++) d->engines[k] = (sim_engine){SIM_NONE, 0};
  memset(d->active, 0, sizeof d->active);
  memset(d->want_compute, 0, sizeof d->want_compute);
  memset(d->want_copy, 0, sizeof d->want_copy);
  memset(d->live, 0, sizeof d->live);
  d->memory_used = d->profile.reserved_bytes;
  for (int i = 0; i < SIM_SHARED; i++)
    if (d->shared[i].id && d->shared[i].payer == SIM_NONE) d->memory_used += d->shared[i].bytes;
  for (uint32_t client = 0; client < d->clients_high; client++) {
    sim_client *c = &d->clients[client];
    if (c->state != SIM_CLIENT_LIVE) continue;
    sim_bit_set(d->live, client);
    d->memory_used += c->memory_bytes;
    sim_rebuild_client(m, d, client);
  }
  for (uint32_t client = 0; client < d->clients_high; client++)
    if (sim_bit_test(d->active, client)) sim_dispatch(m, d, client);
  d->locked_repairs++;
}
