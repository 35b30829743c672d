/* Lanes, the queues of a client's streams. Callers of all functions here hold the device's lock. */
#include "sim/machine/model.h"

uint32_t sim_bit_next(const uint64_t *bits, uint32_t from) {
  for (uint32_t step = 0; step <= SIM_CLIENTS / 64; step++) {
    uint32_t word = (from / 64 + step) % (SIM_CLIENTS / 64);
    uint64_t value = bits[word];
    if (step == 0) value &= ~0ull << (from % 64);
    if (step == SIM_CLIENTS / 64) value &= (1ull << (from % 64)) - 1;
    if (value) return word * 64 + (uint32_t)__builtin_ctzll(value);
  }
  return SIM_NONE;
}

sim_lane *sim_lane_find(sim_client *c, sim_area *a, uint32_t stream) {
  for (uint32_t i = 0; i < c->lane_count; i++)
    if (a->lanes[i].stream == stream) return &a->lanes[i];
  return NULL;
}

uint16_t sim_op_allocate(sim_client *c, sim_area *a) {
  uint16_t slot = c->free_head;
  if (slot != SIM_NONE) {
    c->free_head = a->ops[slot].next;
  } else {
    if (c->op_high >= SIM_OPS) return SIM_NONE;
    slot = c->op_high++;
  }
  c->op_count++;
  return slot;
}

void sim_op_free(sim_client *c, sim_area *a, uint16_t slot) {
  __atomic_store_n(&a->ops[slot].seq, 0, __ATOMIC_RELEASE);
  a->ops[slot].next = c->free_head;
  c->free_head = slot;
  c->op_count--;
}

/* Removes the head of lane `i`. Returns true if this emptied the lane, which is then removed
 * too. */
bool sim_lane_pop(sim_client *c, sim_area *a, uint32_t i) {
  sim_lane *lane = &a->lanes[i];
  uint16_t next = a->ops[lane->head].next;
  if (lane->command == lane->head) lane->command = next;
  lane->head = next;
  if (--lane->count) return false;
  if (lane->queue && --c->queue_lanes[lane->queue]) c->queued_behind--;
  a->lanes[i] = a->lanes[--c->lane_count];
  return true;
}

/* Appends an operation to its stream. A lane must be free. */
void sim_lane_push(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot) {
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, (uint32_t)(d - m->devices), client);
  sim_op *op = &a->ops[slot];
  sim_lane *lane = sim_lane_find(c, a, op->stream);
  op->next = SIM_NONE;
  if (lane) {
    a->ops[lane->tail].next = slot;
    lane->tail = slot;
    if (lane->command == SIM_NONE) lane->command = slot;
    lane->count++;
  } else {
    a->lanes[c->lane_count++] = (sim_lane){.stream = op->stream,
                                           .kind = op->lane_kind,
                                           .head = slot,
                                           .tail = slot,
                                           .command = slot,
                                           .queue = op->queue,
                                           .count = 1,
                                           .ready_ns = d->t_ns + d->profile.start_ns};
    if (op->queue && c->queue_lanes[op->queue]++) c->queued_behind++;
  }
  sim_bit_set(d->active, client);
}

/* Appends to the list of values that the owner has to write. The list is also read without the
 * lock.
 */
void sim_delivery_push(sim_client *c, sim_area *a, uint16_t slot) {
  a->ops[slot].next = SIM_NONE;
  if (c->deliver_head == SIM_NONE)
    __atomic_store_n(&c->deliver_head, slot, __ATOMIC_RELEASE);
  else
    a->ops[c->deliver_tail].next = slot;
  c->deliver_tail = slot;
}
