/* Waiting for the device: sleeps until the earliest time at which the operation can be done, and
 * then checks again.
 *
 * A sleeping thread wakes about 25 us late even with the smallest timer slack, so the sleep ends a
 * little early and the thread spins for the rest. The timer slack is a setting of the thread and is
 * restored afterwards.
 */
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <time.h>

#include "sim/machine/model.h"

#define SPIN_NS 40000
#define UNFORESEEN_NS 1000000 /* period of checks when the end cannot be predicted */
#define ROOM_NS 500000        /* time for which a full queue is left to drain */
#define DEPTH 8

void sim_spin_until(uint64_t when) {
  while (sim_now_ns() < when) __builtin_ia32_pause();
}

/* Sleeps until `when`, or not at all if `word` is no longer `seen`. Returns true if woken before
 * `when`. */
static bool sleep_on(uint32_t *word, uint32_t seen, uint64_t when) {
  static uint32_t nobodys;
  if (when <= sim_now_ns() + SPIN_NS) return false;
  int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  bool changed = sim_futex_sleep(word ? word : &nobodys, word ? seen : 0, when - SPIN_NS);
  prctl(PR_SET_TIMERSLACK, slack > 0 ? slack : 50000, 0, 0, 0);
  return changed;
}

void sim_sleep_until(uint64_t when) {
  while (sleep_on(NULL, 0, when)) continue; /* interrupted by a signal */
  sim_spin_until(when);
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Returns the earliest time at which a kernel of this client can run, considering that another
 * client may be resident. */
static uint64_t turn_begins(const sim_device *d, uint32_t client) {
  if (d->switch_end_ns > d->t_ns && d->resident == client) return d->switch_end_ns;
  if (d->resident == client || d->resident == SIM_NONE) return d->t_ns;
  if (!sim_bit_test(d->want_compute, d->resident)) return d->t_ns;
  /* The resident client's work may end before its time slice does. */
  return d->t_ns + d->profile.context_switch_ns;
}

/* Returns a lower bound of the time at which the operation is done, or can start if `before` is
 * set. Of the work in other streams that its stream waits for, only the last operation is
 * considered, because two streams that wait for each other repeatedly would otherwise be followed
 * without end. */
static uint64_t estimate(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot, int depth,
                         bool before) {
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, (uint32_t)(d - m->devices), client);
  sim_lane *lane = sim_lane_find(c, a, a->ops[slot].stream);
  if (!lane) return d->t_ns;
  /* behind_ns is the duration of the work after the last wait */
  uint64_t at = d->t_ns, behind_ns = 0;
  uint16_t awaited = SIM_NONE;
  bool waited_turn = false;
  for (uint16_t i = lane->head; i != SIM_NONE; i = a->ops[i].next) {
    const sim_op *op = &a->ops[i];
    if (before && i == slot) break;
    if (op->kind == SIM_KERNEL) {
      if (op->flags & SIM_OP_AWAITS) return UINT64_MAX;
      if (!waited_turn) at = later(later(at, lane->ready_ns), turn_begins(d, client));
      waited_turn = true;
      uint64_t left_ns = op->state == SIM_ACTIVE ? op->end_ns - c->busy_ns : op->duration_ns;
      at += left_ns;
      behind_ns += left_ns;
    } else if (op->kind == SIM_COPY) {
      at = op->state == SIM_ACTIVE ? later(at, op->end_ns) : at + op->duration_ns;
      behind_ns += op->state == SIM_ACTIVE ? 0 : op->duration_ns;
    } else if (op->kind == SIM_HOST || op->kind == SIM_WAIT_VALUE) {
      return UINT64_MAX;
    } else if (op->kind == SIM_WAIT) {
      if (&m->devices[op->target_device] != d || op->target_client != client) return UINT64_MAX;
      if (a->ops[op->target_slot].seq == op->target_seq) {
        awaited = op->target_slot;
        behind_ns = 0;
      }
    }
    if (i == slot) break;
  }
  if (awaited == SIM_NONE || !depth) return at;
  uint64_t target = estimate(m, d, client, awaited, depth - 1, false);
  return target == UINT64_MAX ? target : later(at, target + behind_ns);
}

/* Returns the earliest time at which any work of the client completes. Used for a stream that
 * another stream delays (default-stream rules, hardware queues). */
static uint64_t behind_others(sim_machine *m, sim_device *d, uint32_t client, uint64_t at) {
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, (uint32_t)(d - m->devices), client);
  uint64_t first = UINT64_MAX;
  for (uint32_t i = 0; i < c->lane_count; i++) {
    if (sim_held_back(c, a, &a->lanes[i])) continue;
    uint64_t head = estimate(m, d, client, a->lanes[i].head, DEPTH, false);
    if (head > d->t_ns && head < first) first = head;
  }
  return later(at, first);
}

static uint64_t estimate_held(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot,
                              bool before) {
  uint64_t at = estimate(m, d, client, slot, DEPTH, before);
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, (uint32_t)(d - m->devices), client);
  sim_lane *lane = sim_lane_find(c, a, a->ops[slot].stream);
  bool held = lane && sim_held_back(c, a, lane);
  return held || (at <= d->t_ns && !before && c->op_count) ? behind_others(m, d, client, at) : at;
}

uint64_t sim_estimate_before(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot) {
  return estimate_held(m, d, client, slot, true);
}

uint64_t sim_estimate(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot) {
  return estimate_held(m, d, client, slot, false);
}

/* Unlocks the device and sleeps until something may have changed. */
static void doze(sim_machine *m, sim_device *d, uint32_t client, uint64_t until) {
  sim_client *c = &d->clients[client];
  uint32_t seen = __atomic_load_n(&c->done_bell, __ATOMIC_ACQUIRE);
  (void)m;
  sim_unlock(d);
  if (until == UINT64_MAX)
    sim_futex_wait(&c->done_bell, seen, UNFORESEEN_NS);
  else if (!sleep_on(&c->done_bell, seen, until))
    sim_spin_until(until);
}

static bool client_stopped(const sim_device *d, const sim_client *c) {
  return c->state != SIM_CLIENT_LIVE || c->failed || d->lost;
}

int sim_wait(sim_machine *m, const sim_ref *ref) {
  for (;;) {
    if (sim_done_quick(m, ref)) break;
    sim_device *d = sim_lock(m, ref->device);
    if (sim_done_quick(m, ref) || client_stopped(d, &d->clients[ref->client])) {
      sim_unlock(d);
      break;
    }
    doze(m, d, ref->client, sim_estimate(m, d, ref->client, ref->slot));
  }
  return client_stopped(&m->devices[ref->device], &m->devices[ref->device].clients[ref->client])
             ? -1
             : 0;
}

int sim_wait_stream(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream) {
  sim_ref tail = sim_stream_tail(m, device, client, stream);
  return tail.seq ? sim_wait(m, &tail)
         : client_stopped(&m->devices[device], &m->devices[device].clients[client]) ? -1
                                                                                    : 0;
}

/* Waits for the work submitted so far in all streams. */
int sim_wait_all(sim_machine *m, uint32_t device, uint32_t client) {
  sim_device *d = sim_lock(m, device);
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, device, client);
  uint64_t limit = c->next_seq;
  for (;;) {
    if (client_stopped(d, c)) break;
    uint16_t slot = SIM_NONE;
    for (uint32_t i = 0; i < c->lane_count && slot == SIM_NONE; i++)
      if (a->ops[a->lanes[i].head].seq < limit) {
        slot = a->lanes[i].head;
        for (uint16_t next = slot; next != SIM_NONE && a->ops[next].seq < limit;
             next = a->ops[next].next)
          slot = next;
      }
    if (slot == SIM_NONE) break;
    doze(m, d, client, sim_estimate(m, d, client, slot));
    d = sim_lock(m, device);
  }
  bool stopped = client_stopped(d, c);
  sim_unlock(d);
  return stopped ? -1 : 0;
}

/* Waits until a full stream accepts work again. Sleeps while part of its queue drains, so that the
 * launching thread does not wake up for each kernel. The rest of the queue keeps the device busy
 * meanwhile. */
void sim_wait_room(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream) {
  sim_device *d = sim_lock(m, device);
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, device, client);
  sim_lane *lane = sim_lane_find(c, a, stream);
  if (!lane && c->lane_count) lane = &a->lanes[0];
  if (client_stopped(d, c) || !lane) {
    sim_unlock(d);
    return;
  }
  uint16_t slot = lane->head;
  uint64_t until = sim_estimate(m, d, client, slot);
  for (uint32_t n = 0; n < lane->count / 8 && until != UINT64_MAX && until < d->t_ns + ROOM_NS;
       n++) {
    slot = a->ops[slot].next;
    if (slot == SIM_NONE) break;
    uint64_t more = a->ops[slot].kind == SIM_KERNEL || a->ops[slot].kind == SIM_COPY
                        ? a->ops[slot].duration_ns
                        : 0;
    until += more;
  }
  doze(m, d, client, until);
}
