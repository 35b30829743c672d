/* What lies in the machine's file. Every process maps the whole of it; areas that nobody uses
 * cost nothing.
 *
 *   sim_file   header and devices, with a small struct for every client (a process on a device)
 *   sim_area   one a device and client: its operations, event cells and samples
 *
 * The first part gets its disk or memory when the machine is made, an area when its process comes
 * to the device: a file system that is full later kills nobody by SIGBUS.
 *
 * All of it is guarded by the device's lock. What a killed holder of the lock may leave behind is
 * put right from the operations themselves (repair.c): lanes, lists and sums are derived data.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim/machine/binding.h"

#define SIM_MAGIC 0x31454e494843414dull /* "MACHINE1" */
#define SIM_VERSION 7
#define SIM_CLIENTS 4096
#define SIM_OPS 4096    /* operations a process can have under way on a device, all streams */
#define SIM_LANES 1024  /* streams of a process with work under way */
#define SIM_QUEUES 128  /* hardware queues of a process on a device; more contexts share them */
#define SIM_RUNNING 128 /* kernels of a process on the device at once */
#define SIM_CELLS 32768 /* events of a process on a device */
#define SIM_FAULTS 8
#define SIM_ENGINES 2
#define SIM_SHARED 1024      /* pieces of memory of a device that several processes refer to */
#define SIM_HOLDERS 16       /* processes that refer to one */
#define SIM_DESCRIPTORS 2048 /* open ones that keep such memory */
#define SIM_NONE 0xffffu
#define SIM_STREAM_BITS 20 /* of a stream's number: within its context; the rest is the context */

enum sim_kind {
  SIM_KERNEL,      /* on the SMs; memsets and device-to-device copies too */
  SIM_COPY,        /* on a copy engine */
  SIM_MARK,        /* event record: takes the time when its turn comes */
  SIM_WAIT,        /* until another operation is done */
  SIM_HOST,        /* the owner calls a function; the stream waits for it */
  SIM_WAIT_VALUE,  /* until the owner has seen a value in memory */
  SIM_WRITE_VALUE, /* the owner writes a value; the stream does not wait for it */
};

enum sim_op_state { SIM_QUEUED, SIM_ACTIVE, SIM_OWNER, SIM_DELIVER };

#define SIM_OP_FAIL 1   /* kernel: fails when done */
#define SIM_OP_MEMORY 2 /* kernel that only moves memory: counted as memory traffic */
#define SIM_OP_AWAITS 4 /* kernel that runs until its owner says that it has ended */
#define SIM_OP_EARLY 8  /* kernel that may begin while the one right ahead of it still runs */

/* Which streams wait for each other. */
enum sim_lane_kind { SIM_LANE_BLOCKING, SIM_LANE_LEGACY, SIM_LANE_FREE };

typedef struct sim_op {
  uint64_t seq; /* unique for ever on this device and client; 0: the place is free */
  uint64_t duration_ns;
  uint64_t end_ns;     /* active kernel: in the client's compute clock; active copy: device time */
  uint64_t target_seq; /* SIM_WAIT */
  uint64_t owner_data; /* SIM_HOST, SIM_*_VALUE, SIM_OP_AWAITS: the owner's token */
  uint64_t bytes;      /* copies and memory kernels */
  uint32_t stream;
  uint32_t launches; /* kernels that this stands for (graphs fold a chain into one) */
  uint32_t cell;     /* SIM_MARK */
  uint16_t target_device, target_client, target_slot; /* SIM_WAIT */
  uint16_t width; /* permille of the device's threads, 1..1000 */
  uint16_t next;  /* in its lane, in the delivery list, in the free list */
  uint8_t kind, state, engine, flags, lane_kind;
  uint8_t queue; /* the hardware queue of its stream, from 1; 0: none, it waits for nobody else's */
  uint8_t reserved[4];
} sim_op;

/* Under the device's lock; without it others look whether a value waits to be written. */
static inline void sim_op_set_state(sim_op *op, uint8_t state) {
  __atomic_store_n(&op->state, state, __ATOMIC_RELEASE);
}

/* An event as the device sees it. */
typedef struct sim_cell {
  uint64_t seq;      /* newest recording submitted; 0: never recorded */
  uint64_t done_seq; /* == seq: it is complete, at time_ns */
  uint64_t time_ns;  /* of the device clock */
  uint32_t slot;     /* operation of the newest recording */
  uint32_t used;
} sim_cell;

typedef struct sim_lane {
  uint32_t stream;
  uint32_t kind;
  uint16_t head, tail;
  uint16_t command; /* first that its hardware queue may not have sent off yet; none before it */
  uint16_t queue;
  uint32_t count;
  uint64_t ready_ns; /* next kernel not before this */
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
  uint64_t pid_namespace; /* inode of /proc/self/ns/pid; 0: no /proc there */
  char tag[SIM_TAG_BYTES];
  char comm[16];
  uint64_t began_ns, ended_ns;
  pthread_mutex_t
      alive; /* held by a thread of the owner for its life: the kernel marks its death */

  /* truth */
  uint64_t busy_ns; /* also the client's compute clock: moves only while a kernel of it runs */
  uint64_t copy_ns, memory_busy_ns;
  uint64_t memory_bytes, peak_memory_bytes;
  uint64_t launches, copies, refused, calls;

  uint64_t next_seq;
  uint32_t failed;      /* sticky CUresult of a failed kernel; 0: none */
  uint32_t frozen;      /* checkpoint calls: submissions wait */
  uint32_t checkpoint;  /* CUprocessState */
  uint32_t bell;        /* futex: the owner has something to call, write or look at */
  uint32_t done_bell;   /* futex: the owner resolved something, or the state above changed */
  uint32_t watching;    /* the owner waits for words in memory to change: ring when one does */
  uint64_t watched_ns;  /* since when in vain */
  uint64_t saved_bytes; /* memory given back while checkpointed */

  /* derived from the operations */
  uint32_t cell_hint;
  uint32_t op_count, owner_count, lane_count, running_count, width_used;
  uint16_t free_head, op_high, deliver_head, deliver_tail;
  uint16_t running[SIM_RUNNING];
  uint16_t queue_lanes[SIM_QUEUES + 1]; /* lanes of each hardware queue, */
  uint32_t queued_behind;               /* and how many are not the only one of theirs */
} sim_client;

/* What `progress` is about to store, so that a kill in between changes no sum. */
typedef struct sim_journal {
  uint32_t valid;
  uint32_t client;
  uint64_t t_ns, client_busy_ns, device_busy_ns, switch_ns, copy_ns;
  uint32_t engine_client[SIM_ENGINES];
  uint64_t engine_copy_ns[SIM_ENGINES];
} sim_journal;

typedef struct sim_engine {
  uint32_t client; /* SIM_NONE: idle */
  uint16_t op;
} sim_engine;

typedef struct sim_holder {
  uint32_t client;
  uint32_t count; /* references; 0: the place is free */
  int32_t file;   /* descriptor, in that process, of the file with the contents; 0: has none */
} sim_holder;

/* A descriptor that keeps memory, wherever it is open. */
typedef struct sim_descriptor {
  uint64_t shared; /* 0: the place is free */
  uint64_t folder; /* device number of the pseudo-terminals' file system */
  uint32_t number; /* of its pseudo-terminal */
} sim_descriptor;

/* Memory that several processes refer to. */
typedef struct sim_shared {
  uint64_t id; /* never given twice; 0: the place is free */
  uint64_t bytes;
  uint64_t what; /* its maker's name for it, of what is more than memory */
  uint32_t
      payer; /* the client whose memory it is counted as; SIM_NONE: descriptors alone keep it */
  uint32_t descriptors;
  sim_holder holders[SIM_HOLDERS];
} sim_shared;

typedef struct sim_device {
  pthread_mutex_t lock;
  uint8_t uuid[16];
  sim_profile profile;
  uint64_t created_ns;
  int64_t clock_shift_ns;
  uint64_t t_ns;      /* simulated up to here */
  uint64_t reaped_ns; /* last look at who is dead */
  uint64_t busy_ns, copy_ns, switch_ns, switches;
  uint64_t memory_used; /* all clients and the driver's own */
  uint32_t resident;    /* client on the SMs; SIM_NONE before the first */
  uint32_t lost;
  uint64_t slice_end_ns, switch_end_ns;
  uint64_t sample_next_ns;
  uint32_t sample_count; /* ever taken */
  uint32_t clients_high;
  uint32_t fault_count;
  uint32_t locked_repairs; /* times a killed holder of the lock was cleaned up after */
  sim_fault faults[SIM_FAULTS];
  sim_engine engines[SIM_ENGINES];
  sim_journal journal;
  sim_sample samples[SIM_SAMPLES];
  uint64_t active[SIM_CLIENTS / 64]; /* bit: has operations */
  uint64_t want_compute[SIM_CLIENTS / 64];
  uint64_t want_copy[SIM_ENGINES][SIM_CLIENTS / 64];
  uint64_t live[SIM_CLIENTS / 64];
  uint64_t shared_ids; /* the newest */
  uint64_t xid_count;  /* ever */
  uint32_t xids[SIM_XIDS];
  uint32_t wants_reset, mig_count;
  sim_mig mig[SIM_MIG_INSTANCES];
  sim_shared shared[SIM_SHARED];
  uint32_t descriptor_count;
  sim_descriptor descriptors[SIM_DESCRIPTORS];
  sim_client clients[SIM_CLIENTS];
} __attribute__((aligned(4096))) sim_device;

typedef struct sim_file {
  uint64_t magic;
  uint32_t version;
  uint32_t device_count;
  uint64_t size_bytes;
  uint64_t created_ns;
  uint32_t complete;
  char boot_id[40]; /* CLOCK_MONOTONIC begins anew with each boot */
} sim_file;

struct sim_machine {
  sim_file *file;
  uint64_t size_bytes;
  sim_device *devices; /* [device_count] */
  char *areas;
  uint64_t device, inode; /* of the file */
};

static inline sim_area *sim_area_of(const sim_machine *m, uint32_t device, uint32_t client) {
  return (sim_area *)(m->areas + ((size_t)device * SIM_CLIENTS + client) * sizeof(sim_area));
}
/* Set and cleared under the device's lock; who rings watchers reads some of them without it. */
static inline void sim_bit_set(uint64_t *bits, uint32_t i) {
  __atomic_store_n(&bits[i / 64], bits[i / 64] | 1ull << (i % 64), __ATOMIC_RELAXED);
}
static inline void sim_bit_clear(uint64_t *bits, uint32_t i) {
  __atomic_store_n(&bits[i / 64], bits[i / 64] & ~(1ull << (i % 64)), __ATOMIC_RELAXED);
}
static inline bool sim_bit_test(const uint64_t *bits, uint32_t i) {
  return bits[i / 64] >> (i % 64) & 1;
}
/* The first set bit at or after `from`, going round; SIM_NONE when there is none. */
uint32_t sim_bit_next(const uint64_t *bits, uint32_t from);
