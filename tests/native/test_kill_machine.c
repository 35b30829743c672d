/* builds: plain */
/* A process that uses the simulated GPU is killed after each single store that it makes into the
 * machine's file, most of them with the device's lock held. Others get the lock at once, what the
 * dead held is free again, and the device goes on. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "killing.h"
#include "sim/machine/model.h"

#define MIB ((uint64_t)1 << 20)
#define PATIENCE_S 20
#define WATCHED_OPS 4

/* What these operations write: the device but for its samples, two clients, their first operations.
 */
typedef struct words {
  char device[offsetof(sim_device, samples)];
  char bits[offsetof(sim_device, clients) - offsetof(sim_device, active)];
  sim_client clients[2];
  sim_op ops[2][WATCHED_OPS];
  sim_lane lanes[2][WATCHED_OPS];
} words;

static sim_machine *machine;
static uint32_t mine; /* this process's client */

static void submit(uint32_t client, uint64_t duration_ns) {
  sim_op op = {.kind = SIM_KERNEL, .duration_ns = duration_ns, .launches = 1, .width = 1000};
  op.stream = 1;
  sim_ref ref;
  CHECK_EQUAL(sim_submit(machine, 0, client, &op, &ref), SIM_SUBMITTED);
}

static void use_the_device(void *unused) {
  (void)unused;
  uint32_t client = sim_attach(machine, 0, "killed");
  CHECK(client != SIM_NONE);
  CHECK(sim_memory_take(machine, 0, client, 8 * MIB));
  submit(client, 3600000000000);
  submit(client, 1000);
  sim_memory_give(machine, 0, client, 2 * MIB);
}

static bool kill_after(unsigned wanted) {
  static words seen;
  sim_device *d = machine->devices;
  sim_area *first = sim_area_of(machine, 0, 0), *second = sim_area_of(machine, 0, 1);
  const killing_range ranges[] = {{d, sizeof seen.device, seen.device},
                                  {d->active, sizeof seen.bits, seen.bits},
                                  {d->clients, sizeof seen.clients, seen.clients},
                                  {first->ops, sizeof seen.ops[0], seen.ops[0]},
                                  {second->ops, sizeof seen.ops[1], seen.ops[1]},
                                  {first->lanes, sizeof seen.lanes[0], seen.lanes[0]},
                                  {second->lanes, sizeof seen.lanes[1], seen.lanes[1]}};
  return killed_after_store(wanted, 40, use_the_device, NULL, ranges,
                            sizeof ranges / sizeof *ranges);
}

static void make(unsigned round) {
  static sim_profile profile = {.name = "test", .memory_bytes = 1 << 30, .compute_major = 9};
  profile.sm_count = 4;
  char path[32], error[SIM_ERROR_BYTES];
  snprintf(path, sizeof path, "machine%u", round);
  CHECK(sim_machine_create(path, &profile, 1, error) == 0);
  CHECK(machine = sim_machine_open(path, error));
  CHECK((mine = sim_attach(machine, 0, "survivor")) != SIM_NONE);
  CHECK(sim_memory_take(machine, 0, mine, MIB));
}

/* A kernel of an hour that the dead had queued does not keep this one's waiting. */
static void go_on(void) {
  sim_device *d = sim_lock(machine, 0);
  sim_reap(machine, d);
  CHECK_EQUAL(d->memory_used, d->profile.reserved_bytes + MIB);
  for (uint32_t i = 0; i < d->clients_high; i++) {
    CHECK((d->clients[i].state == SIM_CLIENT_LIVE) == (i == mine));
  }
  sim_unlock(d);
  submit(mine, 50000);
  CHECK_EQUAL(sim_wait_all(machine, 0, mine), 0);
  CHECK_EQUAL(machine->devices[0].clients[mine].launches, 1);
}

TEST(killed_at_any_store_into_the_machine_it_leaves_the_device_to_the_others) {
  bool more = true;
  unsigned wanted = 0, repaired = 0;
  const unsigned stride = getenv("PENSTOCK_SOAK_CLAIMS") ? 1 : 4; /* `make soak`: every store */
  while (more) {
    wanted += stride;
    make(wanted);
    more = kill_after(wanted);
    alarm(PATIENCE_S);
    go_on();
    alarm(0);
    repaired += machine->devices[0].locked_repairs;
    sim_machine_close(machine);
    char path[32];
    snprintf(path, sizeof path, "machine%u", wanted);
    CHECK(unlink(path) == 0);
  }
  CHECK(repaired > 10); /* most of the kills were inside the lock */
}
