/* The simulation itself: advances a device from the last simulated time to now, event by event.
 *
 * Kernels of one process run concurrently, each at full speed, while their threads fit on the
 * device together. Otherwise they start in the order of submission. Kernels of different processes
 * never run at the same time: the processes alternate in time slices. Copies run on copy engines,
 * concurrently with kernels. Each engine does one copy at a time and serves the processes in
 * rotation.
 *
 * All other commands go through hardware queues, of which a context has a few. A queue issues its
 * commands in the order of submission, no matter which streams they belong to, so that a command
 * that must wait for earlier work of its stream delays all commands behind it.
 */
#include "sim/machine/model.h"

#define NEVER UINT64_MAX
#define COPY_START_NS 1500 /* fixed part of the duration of every copy */
#define EARLY_NS 2000      /* time that a kernel runs before it needs its predecessor's results */

static uint32_t index_of(sim_machine *m, sim_device *d) { return (uint32_t)(d - m->devices); }

static void ring(uint32_t *bell) {
  __atomic_add_fetch(bell, 1, __ATOMIC_RELEASE);
  sim_futex_wake(bell);
}

/* Returns whether the default-stream rules let a lane's first operation start. The legacy stream
 * waits for all earlier work of its context's blocking streams, and they wait for its work. */
static bool may_begin(const sim_client *c, const sim_area *a, const sim_lane *lane) {
  if (lane->kind == SIM_LANE_FREE) return true;
  uint64_t seq = a->ops[lane->head].seq;
  uint32_t other = lane->kind == SIM_LANE_LEGACY ? SIM_LANE_BLOCKING : SIM_LANE_LEGACY;
  for (uint32_t i = 0; i < c->lane_count; i++)
    if (a->lanes[i].kind == other &&
        a->lanes[i].stream >> SIM_STREAM_BITS == lane->stream >> SIM_STREAM_BITS &&
        a->ops[a->lanes[i].head].seq < seq)
      return false;
  return true;
}

static bool is_command(const sim_op *op) {
  return op->kind != SIM_COPY && (op->state == SIM_QUEUED || op->kind == SIM_WAIT_VALUE);
}

/* Returns the number of the lane's first command that its queue has not yet issued. */
static uint64_t next_command(sim_area *a, sim_lane *lane) {
  while (lane->command != SIM_NONE && !is_command(&a->ops[lane->command]))
    lane->command = a->ops[lane->command].next;
  return lane->command == SIM_NONE ? NEVER : a->ops[lane->command].seq;
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The number of each queue's next command. Not used while no two streams share a queue. */
typedef struct queues {
  uint64_t next[SIM_QUEUES + 1];
} queues;

static void look_at_queue(const sim_client *c, sim_area *a, uint16_t queue, queues *q) {
  if (!c->queued_behind) return;
  q->next[queue] = NEVER;
  for (uint32_t i = 0; queue && i < c->lane_count; i++)
    if (a->lanes[i].queue == queue)
      q->next[queue] = earlier(q->next[queue], next_command(a, &a->lanes[i]));
}

static void look_at_queues(const sim_client *c, sim_area *a, queues *q) {
  if (!c->queued_behind) return;
  for (uint32_t i = 0; i < c->lane_count; i++) q->next[a->lanes[i].queue] = NEVER;
  for (uint32_t i = 0; i < c->lane_count; i++) {
    uint64_t *next = &q->next[a->lanes[i].queue];
    if (a->lanes[i].queue) *next = earlier(*next, next_command(a, &a->lanes[i]));
  }
}

/* Returns whether the lane's queue has reached its first operation. For a copy, this is always
 * true, because copies have their own queues. */
static bool is_sent(const sim_client *c, const sim_area *a, const sim_lane *lane, const queues *q) {
  const sim_op *op = &a->ops[lane->head];
  return !c->queued_behind || op->kind == SIM_COPY || q->next[lane->queue] >= op->seq;
}

bool sim_held_back(const sim_client *c, sim_area *a, sim_lane *lane) {
  queues q;
  if (a->ops[lane->head].state != SIM_QUEUED) return false;
  look_at_queue(c, a, lane->queue, &q);
  return !may_begin(c, a, lane) || !is_sent(c, a, lane, &q);
}

static void complete_mark(sim_device *d, sim_area *a, const sim_op *op) {
  sim_cell *cell = &a->cells[op->cell];
  /* the event was recorded again meanwhile, or destroyed */
  if (!cell->used || cell->seq != op->seq) return;
  cell->time_ns = sim_device_clock_ns(d);
  __atomic_store_n(&cell->done_seq, op->seq, __ATOMIC_RELEASE);
}

/* Returns whether the operation that `op` waits for is done. If that is on another device, advances
 * that device first, because all processes may be waiting for this one. */
static bool target_done(sim_machine *m, const sim_device *d, const sim_op *op) {
  sim_area *a = sim_area_of(m, op->target_device, op->target_client);
  if (&m->devices[op->target_device] != d) sim_bring_up(m, op->target_device);
  return __atomic_load_n(&a->ops[op->target_slot].seq, __ATOMIC_ACQUIRE) != op->target_seq;
}

/* Processes the head of a lane if it takes no device time. Returns true if the head has left the
 * lane. */
static bool pass_head(sim_machine *m, sim_device *d, sim_client *c, sim_area *a, uint32_t i) {
  uint16_t slot = a->lanes[i].head;
  sim_op *op = &a->ops[slot];
  switch (op->kind) {
    case SIM_MARK:
      complete_mark(d, a, op);
      break;
    case SIM_WAIT:
      if (!target_done(m, d, op)) return false;
      break;
    case SIM_HOST:
    case SIM_WAIT_VALUE:
      if (op->state == SIM_QUEUED) {
        sim_op_set_state(op, SIM_OWNER);
        c->owner_count++;
        c->watched_ns = d->t_ns;
        ring(&c->bell);
      }
      return false;
    case SIM_WRITE_VALUE:
      sim_lane_pop(c, a, i);
      sim_op_set_state(op, SIM_DELIVER);
      sim_delivery_push(c, a, slot);
      ring(&c->bell);
      return true;
    default:
      return false;
  }
  sim_lane_pop(c, a, i);
  sim_op_free(c, a, slot);
  return true;
}

static void start_kernel(sim_device *d, sim_client *c, sim_area *a, uint16_t slot) {
  sim_op *op = &a->ops[slot];
  bool awaits = op->flags & SIM_OP_AWAITS;
  op->end_ns = awaits ? NEVER : c->busy_ns + op->duration_ns;
  if (awaits) {
    c->watched_ns = d->t_ns;
    ring(&c->bell);
  }
  sim_op_set_state(op, SIM_ACTIVE);
  c->running[c->running_count++] = slot;
  c->width_used += op->width;
  c->launches += op->launches;
}

static bool fits(const sim_client *c, const sim_op *op) {
  return c->running_count == 0 ||
         (c->width_used + op->width <= 1000 && c->running_count < SIM_RUNNING);
}

/* Starts the resident client's kernels in the order of submission. A kernel that does not fit
 * delays later ones, as in the hardware's work distributor. Updates want_compute. */
static void start_kernels(sim_device *d, uint32_t client, sim_client *c, sim_area *a) {
  bool here = d->resident == client && d->switch_end_ns <= d->t_ns;
  queues q;
  for (;;) {
    uint16_t best = SIM_NONE;
    bool waiting = false;
    look_at_queues(c, a, &q);
    for (uint32_t i = 0; i < c->lane_count; i++) {
      sim_lane *lane = &a->lanes[i];
      sim_op *op = &a->ops[lane->head];
      if (op->kind != SIM_KERNEL || op->state != SIM_QUEUED || !is_sent(c, a, lane, &q) ||
          !may_begin(c, a, lane))
        continue;
      waiting = true;
      if (lane->ready_ns > d->t_ns) continue;
      if (best == SIM_NONE || op->seq < a->ops[best].seq) best = lane->head;
    }
    if (waiting || c->running_count)
      sim_bit_set(d->want_compute, client);
    else
      sim_bit_clear(d->want_compute, client);
    if (!here || best == SIM_NONE || !fits(c, &a->ops[best])) return;
    start_kernel(d, c, a, best);
  }
}

static void note_copies(sim_device *d, uint32_t client, sim_client *c, sim_area *a) {
  bool want[SIM_ENGINES] = {false};
  for (uint32_t i = 0; i < c->lane_count; i++) {
    sim_op *op = &a->ops[a->lanes[i].head];
    if (op->kind == SIM_COPY && op->state == SIM_QUEUED && may_begin(c, a, &a->lanes[i]))
      want[op->engine] = true;
  }
  for (int k = 0; k < SIM_ENGINES; k++) {
    if (want[k])
      sim_bit_set(d->want_copy[k], client);
    else
      sim_bit_clear(d->want_copy[k], client);
  }
}

/* Advances a client's streams as far as possible at this instant. */
void sim_dispatch(sim_machine *m, sim_device *d, uint32_t client) {
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, index_of(m, d), client);
  queues q;
  look_at_queues(c, a, &q);
  bool changed = true;
  while (changed) {
    changed = false;
    for (uint32_t i = 0; i < c->lane_count; i++)
      while (i < c->lane_count && is_sent(c, a, &a->lanes[i], &q) &&
             may_begin(c, a, &a->lanes[i])) {
        uint16_t queue = a->lanes[i].queue;
        if (!pass_head(m, d, c, a, i)) break;
        look_at_queue(c, a, queue, &q);
        changed = true;
      }
  }
  start_kernels(d, client, c, a);
  note_copies(d, client, c, a);
  if (!c->op_count) sim_bit_clear(d->active, client);
}

static void start_copy(sim_machine *m, sim_device *d, int k) {
  sim_engine *engine = &d->engines[k];
  /* While the engine is idle, `op` is the position to search from, so that processes alternate. */
  uint32_t from = engine->op;
  uint32_t client = sim_bit_next(d->want_copy[k], from < SIM_CLIENTS ? from : 0);
  if (client == SIM_NONE) return;
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, index_of(m, d), client);
  uint16_t best = SIM_NONE;
  for (uint32_t i = 0; i < c->lane_count; i++) {
    sim_lane *lane = &a->lanes[i];
    sim_op *op = &a->ops[lane->head];
    if (op->kind == SIM_COPY && op->state == SIM_QUEUED && op->engine == k &&
        may_begin(c, a, lane) && (best == SIM_NONE || op->seq < a->ops[best].seq))
      best = lane->head;
  }
  if (best == SIM_NONE) {
    sim_bit_clear(d->want_copy[k], client);
    return;
  }
  a->ops[best].end_ns = d->t_ns + COPY_START_NS + a->ops[best].duration_ns;
  sim_op_set_state(&a->ops[best], SIM_ACTIVE);
  engine->client = client;
  engine->op = best;
  c->copies++;
  note_copies(d, client, c, a);
}

/* Chooses the client that computes next. */
static void choose_resident(sim_machine *m, sim_device *d) {
  if (d->switch_end_ns > d->t_ns) return;
  uint32_t now_on = d->resident;
  bool wants = now_on != SIM_NONE && sim_bit_test(d->want_compute, now_on);
  if (wants && d->t_ns < d->slice_end_ns) return;
  uint32_t next =
      sim_bit_next(d->want_compute, now_on == SIM_NONE ? 0 : (now_on + 1) % SIM_CLIENTS);
  if (next == SIM_NONE) return;
  if (next != now_on) {
    bool first = now_on == SIM_NONE || d->clients[now_on].state != SIM_CLIENT_LIVE;
    d->switch_end_ns = d->t_ns + (first ? 0 : d->profile.context_switch_ns);
    d->switches += !first;
    d->resident = next;
  }
  d->slice_end_ns =
      (d->switch_end_ns > d->t_ns ? d->switch_end_ns : d->t_ns) + d->profile.time_slice_ns;
  if (d->switch_end_ns <= d->t_ns) sim_dispatch(m, d, next);
}

static bool others_want(const sim_device *d) {
  uint32_t other = sim_bit_next(d->want_compute, (d->resident + 1) % SIM_CLIENTS);
  return other != SIM_NONE && other != d->resident;
}

static uint64_t next_compute(sim_machine *m, sim_device *d) {
  if (d->resident == SIM_NONE) return NEVER;
  if (d->switch_end_ns > d->t_ns) return d->switch_end_ns;
  sim_client *c = &d->clients[d->resident];
  sim_area *a = sim_area_of(m, index_of(m, d), d->resident);
  uint64_t next = NEVER;
  for (uint32_t i = 0; i < c->running_count; i++) {
    uint64_t end = a->ops[c->running[i]].end_ns;
    if (end != NEVER) next = earlier(next, d->t_ns + (end - c->busy_ns));
  }
  for (uint32_t i = 0; i < c->lane_count; i++)
    if (a->lanes[i].ready_ns > d->t_ns) next = earlier(next, a->lanes[i].ready_ns);
  if (sim_bit_test(d->want_compute, d->resident) && others_want(d))
    next = earlier(next, d->slice_end_ns > d->t_ns ? d->slice_end_ns : d->t_ns);
  return next;
}

static uint64_t next_event(sim_machine *m, sim_device *d) {
  uint64_t next = next_compute(m, d);
  for (int k = 0; k < SIM_ENGINES; k++) {
    sim_engine *engine = &d->engines[k];
    if (engine->client == SIM_NONE) continue;
    sim_area *a = sim_area_of(m, index_of(m, d), engine->client);
    next = earlier(next, a->ops[engine->op].end_ns);
  }
  return next;
}

/* Advances the device's time to `to`, during which nothing else happens. Uses the journal, so that
 * a kill in between changes no sum. */
static void progress(sim_device *d, uint64_t to) {
  uint64_t dt = to - d->t_ns;
  if (!dt) return;
  sim_journal j = {.client = SIM_NONE,
                   .t_ns = to,
                   .device_busy_ns = d->busy_ns,
                   .switch_ns = d->switch_ns,
                   .copy_ns = d->copy_ns};
  bool switching = d->switch_end_ns > d->t_ns;
  if (switching) {
    j.switch_ns += dt;
  } else if (d->resident != SIM_NONE && d->clients[d->resident].running_count) {
    j.client = d->resident;
    j.client_busy_ns = d->clients[d->resident].busy_ns + dt;
    j.device_busy_ns += dt;
  }
  for (int k = 0; k < SIM_ENGINES; k++) {
    j.engine_client[k] = d->engines[k].client;
    if (j.engine_client[k] == SIM_NONE) continue;
    uint64_t before = d->clients[j.engine_client[k]].copy_ns;
    if (k == 1 && j.engine_client[0] == j.engine_client[1]) before = j.engine_copy_ns[0];
    j.engine_copy_ns[k] = before + dt;
    j.copy_ns += dt;
  }
  d->journal = j;
  __atomic_store_n(&d->journal.valid, 1, __ATOMIC_SEQ_CST);
  sim_journal_apply(d);
}

void sim_journal_apply(sim_device *d) {
  const sim_journal *j = &d->journal;
  if (j->client != SIM_NONE) d->clients[j->client].busy_ns = j->client_busy_ns;
  for (int k = 0; k < SIM_ENGINES; k++)
    if (j->engine_client[k] != SIM_NONE)
      d->clients[j->engine_client[k]].copy_ns = j->engine_copy_ns[k];
  d->busy_ns = j->device_busy_ns;
  d->switch_ns = j->switch_ns;
  d->copy_ns = j->copy_ns;
  d->t_ns = j->t_ns;
  __atomic_store_n(&d->journal.valid, 0, __ATOMIC_SEQ_CST);
}

/* Shortens a kernel that may start early, which has already run for EARLY_NS when the kernel before
 * it ends. */
static void begin_early(const sim_op *ended, sim_area *a, sim_lane *lane) {
  sim_op *next = ended->next == SIM_NONE ? NULL : &a->ops[ended->next];
  if (!next || ended->kind != SIM_KERNEL || next->kind != SIM_KERNEL ||
      !(next->flags & SIM_OP_EARLY))
    return;
  next->duration_ns -= next->duration_ns / 2 < EARLY_NS ? next->duration_ns / 2 : EARLY_NS;
  lane->ready_ns = 0;
}

static void retire(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot) {
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, index_of(m, d), client);
  sim_op *op = &a->ops[slot];
  for (uint32_t i = 0; i < c->lane_count; i++) {
    if (a->lanes[i].head != slot) continue;
    a->lanes[i].ready_ns = d->t_ns + d->profile.kernel_gap_ns;
    begin_early(op, a, &a->lanes[i]);
    sim_lane_pop(c, a, i);
    break;
  }
  if (op->kind == SIM_COPY || op->flags & SIM_OP_MEMORY)
    c->memory_busy_ns += (uint64_t)((double)op->bytes / d->profile.memory_bytes_per_ns);
  bool failed = op->flags & SIM_OP_FAIL;
  sim_op_free(c, a, slot);
  if (failed) {
    c->failed = 719; /* CUDA_ERROR_LAUNCH_FAILED */
    sim_forget_ops(m, d, client);
    ring(&c->done_bell);
  }
}

static void finish_kernels(sim_machine *m, sim_device *d) {
  if (d->resident == SIM_NONE || d->switch_end_ns > d->t_ns) return;
  sim_client *c = &d->clients[d->resident];
  sim_area *a = sim_area_of(m, index_of(m, d), d->resident);
  for (uint32_t i = 0; i < c->running_count;) {
    uint16_t slot = c->running[i];
    if (a->ops[slot].end_ns > c->busy_ns) {
      i++;
      continue;
    }
    c->width_used -= a->ops[slot].width;
    for (uint32_t k = i + 1; k < c->running_count; k++) c->running[k - 1] = c->running[k];
    c->running_count--;
    retire(m, d, d->resident, slot);
  }
}

static void finish_copies(sim_machine *m, sim_device *d) {
  for (int k = 0; k < SIM_ENGINES; k++) {
    sim_engine *engine = &d->engines[k];
    if (engine->client == SIM_NONE) continue;
    uint32_t client = engine->client;
    sim_area *a = sim_area_of(m, index_of(m, d), client);
    if (a->ops[engine->op].end_ns > d->t_ns) continue;
    uint16_t slot = engine->op;
    engine->client = SIM_NONE;
    engine->op = (uint16_t)((client + 1) % SIM_CLIENTS);
    retire(m, d, client, slot);
    sim_dispatch(m, d, client);
  }
}

static void take_samples(sim_machine *m, sim_device *d) {
  uint32_t at = d->sample_count % SIM_SAMPLES;
  sim_sample whole = {
      .at_ns = d->sample_next_ns, .busy_ns = d->busy_ns, .memory_bytes = d->memory_used};
  for (uint32_t word = 0; word * 64 < d->clients_high; word++) {
    for (uint64_t bits = d->live[word]; bits; bits &= bits - 1) {
      uint32_t client = word * 64 + (uint32_t)__builtin_ctzll(bits);
      sim_client *c = &d->clients[client];
      sim_area_of(m, index_of(m, d), client)->samples[at] =
          (sim_sample){d->sample_next_ns, c->busy_ns, c->memory_busy_ns, c->memory_bytes};
      whole.memory_busy_ns += c->memory_busy_ns;
    }
  }
  d->samples[at] = whole;
  d->sample_count++;
  d->sample_next_ns += d->profile.sample_period_ns;
}

/* Advances the device's time to `to` and takes the samples that are due. Only the last ones are
 * taken, because earlier ones could not be read. */
static void progress_sampling(sim_machine *m, sim_device *d, uint64_t to) {
  uint64_t period = d->profile.sample_period_ns;
  while (d->sample_next_ns <= to) {
    uint64_t left = (to - d->sample_next_ns) / period;
    if (left > SIM_SAMPLES) {
      d->sample_next_ns += (left - SIM_SAMPLES) * period;
      d->sample_count += (uint32_t)(left - SIM_SAMPLES);
    }
    progress(d, d->sample_next_ns);
    take_samples(m, d);
  }
  progress(d, to);
}

/* Dispatches the clients that wait for operations of other processes or devices, because these may
 * be done now.
 */
static void dispatch_waiting(sim_machine *m, sim_device *d) {
  for (uint32_t word = 0; word * 64 < d->clients_high; word++)
    for (uint64_t bits = d->active[word]; bits; bits &= bits - 1)
      sim_dispatch(m, d, word * 64 + (uint32_t)__builtin_ctzll(bits));
}

void sim_settle(sim_machine *m, sim_device *d) {
  choose_resident(m, d);
  for (int k = 0; k < SIM_ENGINES; k++)
    while (d->engines[k].client == SIM_NONE && sim_bit_next(d->want_copy[k], 0) != SIM_NONE)
      start_copy(m, d, k);
}

void sim_advance(sim_machine *m, sim_device *d, uint64_t now) {
  if (now <= d->t_ns) return;
  bool idle = true;
  for (uint32_t word = 0; word * 64 < d->clients_high && idle; word++) idle = !d->active[word];
  if (idle) {
    progress_sampling(m, d, now);
    return;
  }
  dispatch_waiting(m, d);
  for (;;) {
    sim_settle(m, d);
    uint64_t next = next_event(m, d);
    if (next > now) break;
    progress_sampling(m, d, next);
    finish_kernels(m, d);
    finish_copies(m, d);
    if (d->resident != SIM_NONE) sim_dispatch(m, d, d->resident);
  }
  progress_sampling(m, d, now);
}
