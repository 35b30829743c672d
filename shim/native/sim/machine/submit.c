/* Submission of operations to the device. */
#include <stddef.h>
#include <string.h>

#include "sim/machine/model.h"

static enum sim_submit_result refusal(const sim_device *d, const sim_client *c) {
  if (c->state != SIM_CLIENT_LIVE || d->lost) return SIM_GONE;
  if (c->failed) return SIM_FAILED;
  return SIM_SUBMITTED;
}

static void copy_part(sim_op *to, const sim_op *from, size_t begin, size_t end) {
  memcpy((char *)to + begin, (const char *)from + begin, end - begin);
}

/* Copies an operation into its entry. Waiters read its number and state without this device's lock,
 * so both are stored atomically, and the number is stored after the rest of the operation. */
static void copy_operation(sim_op *place, const sim_op *op) {
  _Static_assert(offsetof(sim_op, seq) == 0, "the number comes first");
  copy_part(place, op, sizeof op->seq, offsetof(sim_op, state));
  copy_part(place, op, offsetof(sim_op, state) + sizeof op->state, sizeof *op);
  sim_op_set_state(place, SIM_QUEUED);
}

enum sim_submit_result sim_submit(sim_machine *m, uint32_t device, uint32_t client,
                                  const sim_op *op, sim_ref *ref) {
  sim_device *d = sim_lock(m, device);
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, device, client);
  enum sim_submit_result result = refusal(d, c);
  uint16_t slot = SIM_NONE;
  if (result == SIM_SUBMITTED) {
    sim_lane *lane = sim_lane_find(c, a, op->stream);
    bool full = lane ? lane->count >= d->profile.queue_depth : c->lane_count >= SIM_LANES;
    if (!full) slot = sim_op_allocate(c, a);
    if (slot == SIM_NONE) result = SIM_FULL;
  }
  if (result == SIM_SUBMITTED) {
    sim_op *place = &a->ops[slot];
    uint64_t seq = c->next_seq++;
    copy_operation(place, op);
    place->next = SIM_NONE;
    if (op->kind == SIM_MARK) {
      a->cells[op->cell].slot = slot;
      a->cells[op->cell].seq = seq;
    }
    __atomic_store_n(&place->seq, seq, __ATOMIC_RELEASE);
    sim_lane_push(m, d, client, slot);
    *ref = (sim_ref){seq, (uint16_t)device, (uint16_t)client, slot};
    sim_dispatch(m, d, client);
    sim_settle(m, d); /* starts the operation at once if nothing delays it */
    if (op->kind == SIM_HOST || op->kind >= SIM_WAIT_VALUE ||
        op->flags & SIM_OP_AWAITS) { /* the owner decides when it ends */
      c->watched_ns = d->t_ns;
      __atomic_add_fetch(&c->bell, 1, __ATOMIC_RELEASE);
      sim_futex_wake(&c->bell);
    }
  }
  sim_unlock(d);
  return result;
}

bool sim_done_quick(sim_machine *m, const sim_ref *ref) {
  if (!ref->seq) return true;
  sim_area *a = sim_area_of(m, ref->device, ref->client);
  const sim_op *op = &a->ops[ref->slot];
  /* A value that is still to be written has left its stream; the thread that waited writes it. */
  return __atomic_load_n(&op->seq, __ATOMIC_ACQUIRE) != ref->seq ||
         __atomic_load_n(&op->state, __ATOMIC_ACQUIRE) == SIM_DELIVER;
}

bool sim_done(sim_machine *m, const sim_ref *ref) {
  if (sim_done_quick(m, ref)) return true;
  sim_unlock(sim_lock(m, ref->device));
  return sim_done_quick(m, ref);
}

sim_ref sim_stream_tail(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream) {
  sim_device *d = sim_lock(m, device);
  sim_area *a = sim_area_of(m, device, client);
  sim_lane *lane = sim_lane_find(&d->clients[client], a, stream);
  sim_ref ref = {0};
  if (lane) ref = (sim_ref){a->ops[lane->tail].seq, (uint16_t)device, (uint16_t)client, lane->tail};
  sim_unlock(d);
  return ref;
}

bool sim_stream_idle(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream) {
  return sim_stream_tail(m, device, client, stream).seq == 0;
}
