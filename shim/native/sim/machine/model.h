/* Internal interface of the simulated device. `device` and `client` are indexes. Functions take the
 * device's lock and advance the device to now, except those marked (locked), whose caller holds the
 * lock. */
#pragma once
#include "sim/machine/layout.h"

/* lock.c */
/* also advances the device to now, and reaps */
sim_device *sim_lock(sim_machine *m, uint32_t device);
void sim_unlock(sim_device *d);
void sim_bring_up(sim_machine *m, uint32_t device); /* advances the device if its lock is free */
sim_device *sim_lock_bare(sim_machine *m, uint32_t device);

/* stopped.c */
/* Lets the lock's holder continue if it is stopped. Returns its pid, so that the caller can stop it
 * again, or 0. */
pid_t sim_let_finish(const sim_machine *m, const sim_device *d);

/* client.c */
/* returns SIM_NONE if there is no room */
uint32_t sim_attach(sim_machine *m, uint32_t device, const char *tag);
/* The inverse, on the same thread: the device then has no trace of the client but its record. */
void sim_detach(sim_machine *m, uint32_t device, uint32_t client);
void sim_reap(sim_machine *m, sim_device *d); /* (locked) */
uint64_t sim_own_pid_namespace(void);
/* (locked) drops the client's queued operations */
void sim_forget_ops(sim_machine *m, sim_device *d, uint32_t client);

/* repair.c */
void sim_repair(sim_machine *m, sim_device *d);                          /* (locked) */
void sim_rebuild_client(sim_machine *m, sim_device *d, uint32_t client); /* (locked) */

/* advance.c */
void sim_advance(sim_machine *m, sim_device *d, uint64_t now_ns); /* (locked) */
void sim_journal_apply(sim_device *d); /* (locked) completes an interrupted `progress` */
/* (locked) advances the streams; call it after a change */
void sim_dispatch(sim_machine *m, sim_device *d, uint32_t client);
/* (locked) starts the work that can start at this instant */
void sim_settle(sim_machine *m, sim_device *d);
bool sim_held_back(const sim_client *c, sim_area *a,
                   sim_lane *lane); /* (locked) returns whether another lane delays this one */

/* lane.c (locked) */
sim_lane *sim_lane_find(sim_client *c, sim_area *a, uint32_t stream);
void sim_lane_push(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot);
bool sim_lane_pop(sim_client *c, sim_area *a, uint32_t i);
uint16_t sim_op_allocate(sim_client *c, sim_area *a);
void sim_op_free(sim_client *c, sim_area *a, uint16_t slot);
void sim_delivery_push(sim_client *c, sim_area *a, uint16_t slot);

/* submit.c: a reference to an operation, to wait for it. */
typedef struct sim_ref {
  uint64_t seq; /* 0 if there is no operation, so that the wait is over at once */
  uint16_t device, client, slot;
} sim_ref;

enum sim_submit_result {
  SIM_SUBMITTED,
  SIM_FULL,   /* the stream's queue or the process's part is full: wait, then try again */
  SIM_GONE,   /* this client was reaped, or the device is lost */
  SIM_FAILED, /* an earlier kernel of this process failed */
};
enum sim_submit_result sim_submit(sim_machine *m, uint32_t device, uint32_t client,
                                  const sim_op *op, sim_ref *ref);
/* without the lock, so it may lag behind */
bool sim_done_quick(sim_machine *m, const sim_ref *ref);
bool sim_done(sim_machine *m, const sim_ref *ref);
/* Returns the newest operation of a stream that is not done. Its `seq` is 0 if the stream is
 * empty. */
sim_ref sim_stream_tail(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream);
bool sim_stream_idle(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream);

/* wait.c: waits for an operation. Sleeps, and spins only for the last tens of microseconds. Returns
 * 0, or -1 if the client failed or has ended. */
int sim_wait(sim_machine *m, const sim_ref *ref);
int sim_wait_stream(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream);
int sim_wait_all(sim_machine *m, uint32_t device, uint32_t client);
void sim_wait_room(sim_machine *m, uint32_t device, uint32_t client, uint32_t stream);
/* Return a lower bound of the time at which `slot` can start, or is done (locked); UINT64_MAX if
 * that cannot be predicted.
 */
uint64_t sim_estimate_before(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot);
uint64_t sim_estimate(sim_machine *m, sim_device *d, uint32_t client, uint16_t slot);
void sim_sleep_until(uint64_t when_ns);
void sim_spin_until(uint64_t when_ns);

/* owner.c: does the operations that only the owning process can do. Calls `act` for each one that
 * is ready, for SIM_WRITE_VALUE with the device locked, for others without. `act` returns true when
 * a SIM_HOST or SIM_WAIT_VALUE is resolved. sim_owner_run returns the time of the next run, or
 * UINT64_MAX to wait for the bell. */
typedef bool (*sim_owner_act)(const sim_op *op);
void sim_deliver(sim_machine *m, uint32_t device, uint32_t client, sim_owner_act act);
uint64_t sim_owner_run(sim_machine *m, uint32_t device, uint32_t client, sim_owner_act act);
/* Call this after a change of a word that kernels or streams of any process may wait for. It takes
 * no lock, and the caller may hold any. */
void sim_ring_watchers(sim_machine *m);

/* clock.c */
uint64_t sim_device_clock_ns(const sim_device *d); /* (locked) */

/* cell.c: events */
/* returns UINT32_MAX if there is none */
uint32_t sim_cell_allocate(sim_machine *m, uint32_t device, uint32_t client);
void sim_cell_release(sim_machine *m, uint32_t device, uint32_t client, uint32_t cell);

/* memory.c: accounting only */
bool sim_memory_take(sim_machine *m, uint32_t device, uint32_t client, uint64_t bytes);
void sim_memory_give(sim_machine *m, uint32_t device, uint32_t client, uint64_t bytes);
void sim_memory_info(sim_machine *m, uint32_t device, uint64_t *free_bytes, uint64_t *total_bytes);

/* shared.c: memory that stays allocated while any process or descriptor refers to it */
uint64_t sim_shared_make(sim_machine *m, uint32_t device, uint32_t client, uint64_t bytes);
bool sim_shared_join(sim_machine *m, uint32_t device, uint32_t client, uint64_t id);
void sim_shared_leave(sim_machine *m, uint32_t device, uint32_t client, uint64_t id);
/* (locked) called when the process has ended */
void sim_shared_forget(sim_device *d, uint32_t client);
void sim_shared_name(sim_machine *m, uint32_t device, uint64_t id, uint64_t what);
bool sim_shared_find(sim_machine *m, uint32_t device, uint64_t id, uint64_t *what, uint64_t *bytes);
/* Makes `bytes` that are counted for `client`, its maker, part of this shared memory. */
void sim_shared_grow(sim_machine *m, uint32_t device, uint32_t client, uint64_t id, int64_t bytes);
/* The file with the contents: the first sets this process's file, the second reads the file of
 * holder `index` and returns false if there are no more holders.
 */
void sim_shared_file(sim_machine *m, uint32_t device, uint32_t client, uint64_t id, int file);
bool sim_shared_look(sim_machine *m, uint32_t device, uint64_t id, int index, int32_t *pid,
                     int32_t *file);
/* (locked) changes the number of its descriptors */
void sim_shared_described(sim_device *d, uint64_t id, int change);

/* descriptor.c: descriptors for other processes, of the kinds defined in sim/cuda. Returns -1 if
 * none can be made. */
int sim_descriptor_make(sim_machine *m, uint32_t device, uint64_t shared, uint8_t kind);
bool sim_descriptor_read(int descriptor, uint8_t kind, uint32_t *device, uint64_t *shared);
void sim_descriptors_look(sim_device *d); /* (locked) finds descriptors that have been closed */

/* fault.c: returns true if a fault of `kind` affects this call now, and sets *value_ns to its
 * value. */
bool sim_fault_hits(sim_machine *m, uint32_t device, uint32_t kind, const char *call,
                    uint64_t *value_ns);
/* Considers only faults that name the call, for calls that take hardly any memory. */
bool sim_fault_hits_named(sim_machine *m, uint32_t device, uint32_t kind, const char *call);

/* process.c: the processes that have initialised the driver */
/* registers this process; called by its keeper thread, which then holds the entry's `alive` */
sim_process_entry *sim_process_register(sim_machine *m);
/* returns NULL if no living process with this pid has initialised the driver */
sim_process_entry *sim_process_find(sim_machine *m, int32_t pid);
bool sim_process_lives(sim_process_entry *p);
/* Asks the keeper of `p` for a change of its checkpoint state, and waits for the answer, which is a
 * CUresult. `wait_ns` bounds the wait for a lock; 0 for none. */
uint32_t sim_process_ask(sim_process_entry *p, enum sim_request request, uint64_t wait_ns,
                         const sim_pair *pairs, uint32_t pair_count);

/* checkpoint.c: the device's part of a checkpoint of this process */
bool sim_client_busy(sim_machine *m, uint32_t device, uint32_t client);
/* gives the memory of the client back, and returns how much that was */
uint64_t sim_client_release(sim_machine *m, uint32_t device, uint32_t client);
bool sim_client_retake(sim_machine *m, uint32_t device, uint32_t client, uint64_t bytes);
/* copies what outlives a move to another device: the events' times, and a failure */
void sim_client_move(sim_machine *m, uint32_t device, uint32_t client, uint32_t new_device,
                     uint32_t new_client);

/* futex.c */
void sim_futex_wait(uint32_t *word, uint32_t seen, uint64_t at_most_ns);
bool sim_futex_sleep(uint32_t *word, uint32_t seen, uint64_t when_ns);
void sim_futex_wake(uint32_t *word);
