/* The simulated device as the simulated driver uses it. `device` and `client` are indices; every
 * function but those marked (locked) takes the device's lock itself and brings the device up to
 * now.
 */
#pragma once
#include "sim/machine/layout.h"

/* lock.c */
sim_device *sim_lock(sim_machine *m, uint32_t device); /* also advances to now and reaps */
void sim_unlock(sim_device *d);
void sim_bring_up(sim_machine *m, uint32_t device); /* up to now, if nobody has its lock */
sim_device *sim_lock_bare(sim_machine *m, uint32_t device);

/* stopped.c */
/* Lets the lock's holder go on, if it is stopped: its pid, to be stopped again; else 0. */
pid_t sim_let_finish(const sim_machine *m, const sim_device *d);

/* client.c */
uint32_t sim_attach(sim_machine *m, uint32_t device, const char *tag); /* SIM_NONE: no room */
void sim_reap(sim_machine *m, sim_device *d);                          /* (locked) */
void sim_forget_ops(sim_machine *m, sim_device *d, uint32_t client);   /* (locked) drop its queue */

/* repair.c */
void sim_repair(sim_machine *m, sim_device *d);                          /* (locked) */
void sim_rebuild_client(sim_machine *m, sim_device *d, uint32_t client); /* (locked) */

/* advance.c */
void sim_advance(sim_machine *m, sim_device *d, uint64_t now_ns); /* (locked) */
void sim_journal_apply(sim_device *d); /* (locked) what progress was about to store */
void sim_dispatch(sim_machine *m, sim_device *d, uint32_t client); /* (locked) after a change */
void sim_settle(sim_machine *m, sim_device *d); /* (locked) start what can start at this instant */
bool sim_held_back(const sim_client *c, sim_area *a, sim_lane *lane); /* (locked) by another lane */

/* lane.c (locked) */
sim_lane *sim_lane_find(sim_client *c, sim_area *a, uint32_t stream);
void sim_lane_push(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot);
bool sim_lane_pop(sim_client *c, sim_area *a, uint32_t i);
uint16_t sim_op_allocate(sim_client *c, sim_area *a);
void sim_op_free(sim_client *c, sim_area *a, uint16_t slot);
void sim_delivery_push(sim_client *c, sim_area *a, uint16_t slot);

/* submit.c: an operation's identity, for waiting. */
typedef struct sim_ref {
  uint64_t seq; /* 0: nothing, done at once */
  uint16_t device, client, slot;
} sim_ref;

enum sim_submit_result {
  SIM_SUBMITTED,
  SIM_FULL,   /* the stream's queue or the process's share is full: wait, then try again */
  SIM_FROZEN, /* a checkpoint call holds the process */
  SIM_GONE,   /* this client was reaped, or the device is lost */
  SIM_FAILED, /* a kernel of this process failed before */
};
enum sim_submit_result sim_submit(sim_machine *m, uint32_t device, uint32_t client,
                                  const sim_op *op, sim_ref *ref);
bool sim_done_quick(sim_machine *m, const sim_ref *ref); /* without lock: may lag behind */
bool sim_done(sim_machine *m, const sim_ref *ref);
/* Newest operation of a stream still under way; seq 0 when it is empty. */
sim_ref sim_stream_tail(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream);
bool sim_stream_idle(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream);

/* wait.c: sleep until done; no CPU is burnt but for the last tens of microseconds.
 * Returns 0, or -1 when the client failed, froze for good or went. */
int sim_wait(sim_machine *m, const sim_ref *ref);
int sim_wait_stream(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream);
int sim_wait_all(sim_machine *m, uint32_t device, uint32_t client);
void sim_wait_thaw(sim_machine *m, uint32_t device, uint32_t client);
void sim_wait_room(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream);
/* Lower bound of the time when `slot` is done (locked); UINT64_MAX: not foreseeable. */
uint64_t sim_estimate_before(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot);
uint64_t sim_estimate(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot);
void sim_sleep_until(uint64_t when_ns);
void sim_spin_until(uint64_t when_ns);

/* owner.c: what only the owning process can do. `act` is called for each operation that is ready:
 * with the device locked for SIM_WRITE_VALUE, else without; it returns true when a SIM_HOST or
 * SIM_WAIT_VALUE is resolved. Returns when to look again (UINT64_MAX: when the bell rings). */
typedef bool (*sim_owner_act)(const sim_op *op);
void sim_deliver(sim_machine *m, uint32_t device, uint32_t client, sim_owner_act act);
uint64_t sim_owner_run(sim_machine *m, uint32_t device, uint32_t client, sim_owner_act act);
/* A word in memory has changed for which kernels or streams of any process may wait. No lock is
 * needed, and any may be held. */
void sim_ring_watchers(sim_machine *m);

/* clock.c */
uint64_t sim_device_clock_ns(const sim_device *d); /* (locked) */

/* cell.c: events */
uint32_t sim_cell_allocate(sim_machine *m, uint32_t device, uint32_t client); /* UINT32_MAX: none */
void sim_cell_release(sim_machine *m, uint32_t device, uint32_t client, uint32_t cell);

/* memory.c: accounting alone. */
bool sim_memory_take(sim_machine *m, uint32_t device, uint32_t client, uint64_t bytes);
void sim_memory_give(sim_machine *m, uint32_t device, uint32_t client, uint64_t bytes);
void sim_memory_info(sim_machine *m, uint32_t device, uint64_t *free_bytes, uint64_t *total_bytes);

/* shared.c: memory that several processes refer to; it stays while any of them lives and does. */
uint64_t sim_shared_make(sim_machine *m, uint32_t device, uint32_t client, uint64_t bytes);
bool sim_shared_join(sim_machine *m, uint32_t device, uint32_t client, uint64_t id);
void sim_shared_leave(sim_machine *m, uint32_t device, uint32_t client, uint64_t id);
void sim_shared_forget(sim_device *d, uint32_t client); /* (locked) the process has ended */
void sim_shared_name(sim_machine *m, uint32_t device, uint64_t id, uint64_t what);
bool sim_shared_find(sim_machine *m, uint32_t device, uint64_t id, uint64_t *what, uint64_t *bytes);
/* `bytes` more of what is counted for `client`, who made it, are of this memory from now on. */
void sim_shared_grow(sim_machine *m, uint32_t device, uint32_t client, uint64_t id, int64_t bytes);
/* Where the contents lie: this process's file, and that of the holder `index` (false: no more). */
void sim_shared_file(sim_machine *m, uint32_t device, uint32_t client, uint64_t id, int file);
bool sim_shared_look(sim_machine *m, uint32_t device, uint64_t id, int index, int32_t *pid,
                     int32_t *file);
void sim_shared_described(sim_device *d, uint64_t id, int change); /* (locked) descriptors of it */

/* descriptor.c: what another process is handed, of the kinds in sim/cuda. -1: cannot be had. */
int sim_descriptor_make(sim_machine *m, uint32_t device, uint64_t shared, uint8_t kind);
bool sim_descriptor_read(int descriptor, uint8_t kind, uint32_t *device, uint64_t *shared);
void sim_descriptors_look(sim_device *d); /* (locked) which of them have been closed */

/* fault.c: true when a fault of `kind` hits this call now; *value_ns gets its value. */
bool sim_fault_hits(sim_machine *m, uint32_t device, uint32_t kind, const char *call,
                    uint64_t *value_ns);
/* Only a fault that names the call: for calls that take no memory worth the name. */
bool sim_fault_hits_named(sim_machine *m, uint32_t device, uint32_t kind, const char *call);

/* checkpoint.c: by pid, on every device of the machine. The state, or -1: no such process. */
int sim_checkpoint_state(sim_machine *m, int32_t pid);
int sim_checkpoint_lock(sim_machine *m, int32_t pid, uint64_t timeout_ns);
void sim_checkpoint_save(sim_machine *m, int32_t pid);
int sim_checkpoint_restore(sim_machine *m, int32_t pid);
void sim_checkpoint_unlock(sim_machine *m, int32_t pid);

/* futex.c */
void sim_futex_wait(uint32_t *word, uint32_t seen, uint64_t at_most_ns);
bool sim_futex_sleep(uint32_t *word, uint32_t seen, uint64_t when_ns);
void sim_futex_wake(uint32_t *word);
