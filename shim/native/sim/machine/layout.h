/* Layout of the machine's file. Every process maps the whole file; unused areas take no space.
 *
 *   sim_file   header
 *   sim_process_entry   one for each process that has initialised the driver
 *   sim_device   one for each device, with a small struct for every client (a process on a device)
 *   sim_area   one for each device and client: its operations, event cells and samples
 *
 * The first part is allocated when the machine is created, and an area when its process attaches to
 * the device, so that a file system that fills up later does not kill a process by SIGBUS.
 *
 * The device's lock guards all of it. After a holder of the lock was killed, lanes, lists and sums
 * are recomputed from the operations (repair.c).
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim/machine/binding.h"

#define SIM_MAGIC 0x31454e494843414dull /* "MACHINE1" */
#define SIM_VERSION 8
#define SIM_CLIENTS 4096
#define SIM_PROCESSES 2048 /* processes that have initialised the driver */
#define SIM_OPS 4096       /* operations of a process in flight on a device, over all streams */
#define SIM_LANES 1024     /* streams of a process with work in flight */
/* hardware queues of a process on a device; if it has more contexts, they share queues */
#define SIM_QUEUES 128
#define SIM_RUNNING 128 /* kernels of a process that run at once on the device */
#define SIM_CELLS 32768 /* events of a process on a device */
#define SIM_FAULTS 8
#define SIM_ENGINES 2
#define SIM_SHARED 1024      /* shared allocations of a device */
#define SIM_HOLDERS 16       /* maximum number of processes that refer to one allocation */
#define SIM_DESCRIPTORS 2048 /* maximum number of open descriptors that keep such memory */
#define SIM_NONE 0xffffu
/* low bits of a stream's number, which count within its context; the high bits are the context */
#define SIM_STREAM_BITS 20

enum sim_kind {
  SIM_KERNEL,      /* runs on the SMs; also for memsets and device-to-device copies */
  SIM_COPY,        /* runs on a copy engine */
  SIM_MARK,        /* event record: stores the time */
  SIM_WAIT,        /* waits until another operation is done */
  SIM_HOST,        /* the owner calls a function, and the stream waits for it */
  SIM_WAIT_VALUE,  /* waits until the owner has seen a value in memory */
  SIM_WRITE_VALUE, /* the owner writes a value, and the stream does not wait for it */
};

enum sim_op_state { SIM_QUEUED, SIM_ACTIVE, SIM_OWNER, SIM_DELIVER };

#define SIM_OP_FAIL 1   /* a kernel that fails when it is done */
#define SIM_OP_MEMORY 2 /* a kernel that only moves memory, which counts as memory traffic */
#define SIM_OP_AWAITS 4 /* a kernel that runs until its owner ends it */
#define SIM_OP_EARLY 8  /* a kernel that may start while its predecessor is still running */

/* Kinds of lanes, which decide the streams that wait for each other. */
enum sim_lane_kind { SIM_LANE_BLOCKING, SIM_LANE_LEGACY, SIM_LANE_FREE };

typedef struct sim_op {
  uint64_t seq; /* never reused on this device and client; 0 if the entry is free */
  uint64_t duration_ns;
  /* for an active kernel, in the client's compute clock; for an active copy, in device time */
  uint64_t end_ns;
  uint64_t target_seq; /* for SIM_WAIT */
  uint64_t owner_data; /* the owner's token, for SIM_HOST, SIM_*_VALUE and SIM_OP_AWAITS */
  uint64_t bytes;      /* for copies and memory kernels */
  uint32_t stream;
  /* number of kernels that this represents (a chain in a graph is one operation) */
  uint32_t launches;
  uint32_t cell;                                      /* for SIM_MARK */
  uint16_t target_device, target_client, target_slot; /* for SIM_WAIT */
  uint16_t width; /* permille of the device's threads, 1..1000 */
  uint16_t next;  /* next in its lane, in the delivery list or in the free list */
  uint8_t kind, state, engine, flags, lane_kind;
  /* hardware queue of the operation's stream, counted from 1; 0 if none, so that other streams
   * do not delay it */
  uint8_t queue;
  uint8_t reserved[4];
} sim_op;

/* Sets an operation's state. The caller holds the device's lock, but readers without the lock check
 * for values to be written. */
static inline void sim_op_set_state(sim_op *op, uint8_t state) {
  __atomic_store_n(&op->state, state, __ATOMIC_RELEASE);
}

/* An event as the device stores it. */
typedef struct sim_cell {
  uint64_t seq;      /* newest recording submitted, 0 if never recorded */
  uint64_t done_seq; /* equal to `seq` once the recording is complete, at time_ns */
  uint64_t time_ns;  /* in the device's clock */
  uint32_t slot;     /* operation of the newest recording */
  uint32_t used;
} sim_cell;

typedef struct sim_lane {
  uint32_t stream;
  uint32_t kind;
  uint16_t head, tail;
  uint16_t command; /* first operation that its hardware queue may not yet have issued */
  uint16_t queue;
  uint32_t count;
  uint64_t ready_ns; /* earliest start of the next kernel */
} sim_lane;

typedef struct sim_area {
  sim_op ops[SIM_OPS];
  sim_lane lanes[SIM_LANES];
  sim_cell cells[SIM_CELLS];
  sim_sample samples[SIM_SAMPLES];
} __attribute__((aligned(4096))) sim_area;

enum sim_client_state { SIM_CLIENT_FREE, SIM_CLIENT_LIVE, SIM_CLIENT_ENDED };

typedef struct sim_client {
  uint32_t state;
  int32_t pid;
  uint64_t start_ticks;
  uint64_t pid_namespace; /* inode of /proc/self/ns/pid, 0 if the process has no /proc */
  char tag[SIM_TAG_BYTES];
  char comm[16];
  uint64_t began_ns, ended_ns;
  /* held by a thread of the owner while it lives; the kernel marks its end */
  pthread_mutex_t alive;

  /* exact record */
  /* also the client's compute clock, which runs only while one of its kernels does */
  uint64_t busy_ns;
  uint64_t copy_ns, memory_busy_ns;
  uint64_t memory_bytes, peak_memory_bytes;
  uint64_t launches, copies, refused, calls;

  uint64_t next_seq;
  uint32_t failed; /* CUresult of a failed kernel, which persists; 0 if none */
  uint32_t bell;   /* futex: the owner has something to call, write or check */
  /* futex: the owner has resolved something, or the state above has changed */
  uint32_t done_bell;
  /* nonzero while the owner waits for words in memory to change, so that a change must ring */
  uint32_t watching;
  uint64_t watched_ns; /* time since which the owner has watched without success */

  /* derived from the operations */
  uint32_t cell_hint;
  uint32_t op_count, owner_count, lane_count, running_count, width_used;
  uint16_t free_head, op_high, deliver_head, deliver_tail;
  uint16_t running[SIM_RUNNING];
  uint16_t queue_lanes[SIM_QUEUES + 1]; /* number of lanes of each hardware queue */
  uint32_t queued_behind;               /* number of lanes that share their queue with others */
} sim_client;

/* Values that `progress` is about to store, kept here so that a kill in between changes no sum. */
typedef struct sim_journal {
  uint32_t valid;
  uint32_t client;
  uint64_t t_ns, client_busy_ns, device_busy_ns, switch_ns, copy_ns;
  uint32_t engine_client[SIM_ENGINES];
  uint64_t engine_copy_ns[SIM_ENGINES];
} sim_journal;

typedef struct sim_engine {
  uint32_t client; /* SIM_NONE if idle */
  uint16_t op;
} sim_engine;

typedef struct sim_holder {
  uint32_t client;
  uint32_t count; /* number of references, 0 if the entry is free */
  /* descriptor, in the holder's process, of the file with the contents; 0 if none */
  int32_t file;
} sim_holder;

/* A descriptor that keeps memory while a copy of it is open anywhere. */
typedef struct sim_descriptor {
  uint64_t shared; /* 0 if the entry is free */
  uint64_t folder; /* device number of the pseudo-terminals' file system */
  uint32_t number; /* number of its pseudo-terminal */
} sim_descriptor;

/* Shared memory, which several processes or descriptors refer to. */
typedef struct sim_shared {
  uint64_t id; /* never reused; 0 if the entry is free */
  uint64_t bytes;
  uint64_t what; /* the maker's number for an object that is more than memory, such as a pool */
  /* client that the memory is counted for, SIM_NONE if only descriptors keep it */
  uint32_t payer;
  uint32_t descriptors;
  sim_holder holders[SIM_HOLDERS];
} sim_shared;

typedef struct sim_device {
  pthread_mutex_t lock;
  uint8_t uuid[16];
  sim_profile profile;
  uint64_t created_ns;
  int64_t clock_shift_ns;
  uint64_t t_ns;      /* time up to which the device has been simulated */
  uint64_t reaped_ns; /* time of the last check for processes that have ended */
  uint64_t busy_ns, copy_ns, switch_ns, switches;
  uint64_t memory_used; /* memory of all clients and of the driver itself */
  uint32_t resident;    /* client on the SMs, SIM_NONE before the first */
  uint32_t lost;
  uint64_t slice_end_ns, switch_end_ns;
  uint64_t sample_next_ns;
  uint32_t sample_count; /* number of samples ever taken */
  uint32_t clients_high;
  uint32_t fault_count;
  uint32_t locked_repairs; /* number of repairs after a holder of the lock was killed */
  sim_fault faults[SIM_FAULTS];
  sim_engine engines[SIM_ENGINES];
  sim_journal journal;
  sim_sample samples[SIM_SAMPLES];
  uint64_t active[SIM_CLIENTS / 64]; /* one bit for each client that has operations */
  uint64_t want_compute[SIM_CLIENTS / 64];
  uint64_t want_copy[SIM_ENGINES][SIM_CLIENTS / 64];
  uint64_t live[SIM_CLIENTS / 64];
  uint64_t shared_ids; /* newest ID given to shared memory */
  uint64_t xid_count;  /* number of XID errors ever reported */
  uint32_t xids[SIM_XIDS];
  uint32_t wants_reset, mig_count;
  sim_mig mig[SIM_MIG_INSTANCES];
  sim_shared shared[SIM_SHARED];
  uint32_t descriptor_count;
  sim_descriptor descriptors[SIM_DESCRIPTORS];
  sim_client clients[SIM_CLIENTS];
} __attribute__((aligned(4096))) sim_device;

/* A pair of UUIDs for a restore onto another device. */
typedef struct sim_pair {
  uint8_t from[16], to[16];
} sim_pair;

/* What a caller asks of a process's keeper thread. The phase is in the high bits of the word. */
enum sim_request { SIM_NO_REQUEST, SIM_LOCK, SIM_CHECKPOINT, SIM_RESTORE, SIM_UNLOCK };
#define SIM_POSTED 0x100u    /* nobody has looked at it yet */
#define SIM_TAKEN 0x200u     /* the keeper carries it out */
#define SIM_ABANDONED 0x400u /* the caller no longer waits: a lock is to be undone */

/* A process that has initialised the driver. Its keeper thread (cuda/keeper.c) holds `alive` and
 * carries out the calls of checkpoints, so that their states survive the death of a caller. */
typedef struct sim_process_entry {
  pthread_mutex_t alive;
  /* held by the thread whose checkpoint call is carried out; robust, to notice a caller's death */
  pthread_mutex_t caller;
  uint32_t used;
  int32_t pid; /* in its own pid namespace */
  uint64_t pid_namespace;
  int32_t keeper; /* thread ID */
  uint32_t state; /* CUprocessState */
  uint32_t bell;  /* futex: the keeper has something to do */
  uint32_t done;  /* futex: incremented when a request is answered */
  uint32_t request;
  uint32_t result; /* CUresult */
  uint64_t timeout_ns;
  uint32_t pair_count;
  sim_pair pairs[SIM_MAX_DEVICES];
} sim_process_entry;

typedef struct sim_file {
  uint64_t magic;
  uint32_t version;
  uint32_t device_count;
  uint64_t size_bytes;
  uint64_t created_ns;
  uint32_t complete;
  char boot_id[40]; /* needed because CLOCK_MONOTONIC restarts with each boot */
} sim_file;

struct sim_machine {
  sim_file *file;
  sim_process_entry *processes; /* array of SIM_PROCESSES */
  uint64_t size_bytes;
  sim_device *devices; /* array of device_count devices */
  char *areas;
  uint64_t device, inode; /* identity of the file */
};

static inline sim_area *sim_area_of(const sim_machine *m, uint32_t device, uint32_t client) {
  return (sim_area *)(m->areas + ((size_t)device * SIM_CLIENTS + client) * sizeof(sim_area));
}
/* Sets a bit. The caller holds the device's lock; some of these bits are read without the lock by
 * processes that ring watchers. */
static inline void sim_bit_set(uint64_t *bits, uint32_t i) {
  __atomic_store_n(&bits[i / 64], bits[i / 64] | 1ull << (i % 64), __ATOMIC_RELAXED);
}
static inline void sim_bit_clear(uint64_t *bits, uint32_t i) {
  __atomic_store_n(&bits[i / 64], bits[i / 64] & ~(1ull << (i % 64)), __ATOMIC_RELAXED);
}
static inline bool sim_bit_test(const uint64_t *bits, uint32_t i) {
  return bits[i / 64] >> (i % 64) & 1;
}
/* Returns the first set bit at or after `from`, wrapping around, or SIM_NONE if there is none. */
uint32_t sim_bit_next(const uint64_t *bits, uint32_t from);
