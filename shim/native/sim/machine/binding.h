/* The simulated machine: one file of shared memory that holds every simulated device, all work
 * submitted to it and the ground-truth record. Used by the simulated libcuda and libnvidia-ml and,
 * through cffi, by `penstock_shim.simulator`. Plain C, so that cffi reads this very file.
 *
 * Times are CLOCK_MONOTONIC nanoseconds. Functions that can fail return 0 or a count, or -1 with a
 * sentence in `error` (what happened, why, what to do). Everything survives the kill of any process
 * that has the file open.
 */
/* cffi reads a #define from one line. */
/* clang-format off */
#pragma once
#include <stdint.h>

#define SIM_MAX_DEVICES 16
#define SIM_MAX_RULES 32
#define SIM_NAME_BYTES 96
#define SIM_TAG_BYTES 64
#define SIM_ERROR_BYTES 256
#define SIM_SAMPLES 72 /* utilisation samples kept a device and a process */
#define SIM_XIDS 16    /* the newest XID errors of a device that are kept */
#define SIM_MIG_INSTANCES 7
#define SIM_MIG_NAME_BYTES 16

/* How long a kernel takes, by name. The first rule that matches decides. */
typedef struct sim_kernel_rule {
  char pattern[SIM_NAME_BYTES];   /* shell glob over the kernel's (mangled) name; empty: end of rules */
  uint64_t duration_ns;
  int32_t parameter;              /* >= 0: this 8-byte kernel parameter holds the nanoseconds; -1: not */
  uint32_t action;                /* other than to take time; see cuda/kernel_rules.c */
} sim_kernel_rule;

/* What a device is like. Zero in a field marked (d) means: the default. */
typedef struct sim_profile {
  char name[SIM_NAME_BYTES];      /* "NVIDIA H200" */
  char source[SIM_NAME_BYTES];    /* where the figures come from */
  uint64_t memory_bytes;          /* what cuDeviceTotalMem says; allocation fails exactly above it */
  uint32_t compute_major;
  uint32_t compute_minor;
  uint32_t sm_count;
  uint32_t max_threads_per_sm;    /* (d) 2048 */
  uint32_t max_blocks_per_sm;     /* (d) 32 */
  uint32_t registers_per_sm;      /* (d) 65536 */
  uint32_t shared_per_sm_bytes;   /* (d) 100 KiB */
  uint32_t shared_per_block_optin_bytes; /* (d) shared_per_sm - 1 KiB */
  uint32_t l2_bytes;              /* (d) 40 MiB */
  uint32_t memory_bus_bits;       /* (d) 4096 */
  uint32_t sm_clock_khz;          /* (d) 1 500 000 */
  uint32_t memory_clock_khz;      /* (d) 1 500 000 */
  uint32_t copy_engines;          /* (d) 2 */
  uint32_t power_limit_mw;        /* (d) 300 000 */
  double tflops;                  /* rated dense fp16/bf16 tensor rate; the pool's unit */
  double memory_bytes_per_ns;     /* (d) 1000: device memory bandwidth, GB/s */
  double host_bytes_per_ns;       /* (d) 25: host link bandwidth one way, GB/s */
  uint64_t context_bytes;         /* (d) 256 MiB: device memory that a process's context takes */
  uint64_t reserved_bytes;        /* taken by the driver at rest, inside memory_bytes */
  uint64_t slab_bytes;            /* (d) 2 MiB: small allocations share slabs of this size */
  uint64_t time_slice_ns;         /* (d) 2 ms */
  uint64_t context_switch_ns;     /* (d) 50 us: nothing computes while the device changes process */
  uint64_t event_tick_ns;         /* (d) 500 */
  int64_t clock_offset_ns;        /* device clock minus CLOCK_MONOTONIC, when the machine is made */
  double clock_drift_ppm;         /* by how much the device clock then runs faster; negative: slower */
  uint32_t queue_depth;           /* (d) 1024: launches a stream holds before a launch blocks */
  uint32_t launch_ns;             /* (d) 1800: host cost of a launch */
  uint32_t event_record_ns;       /* (d) 1000 */
  uint32_t query_ns;              /* (d) 500 */
  uint32_t stream_op_ns;          /* (d) 1000: stream memory operation, stream wait */
  uint32_t memory_call_ns;        /* (d) 3000: allocation or free that needs no new slab */
  uint32_t memory_slab_ns;        /* (d) 60000: one that does */
  uint32_t kernel_floor_ns;       /* (d) 2000: shortest kernel */
  uint32_t kernel_gap_ns;         /* idle between two kernels of a stream (default none: counted in their time) */
  uint32_t thread_cost_ps;        /* (d) 40: device time a thread of a kernel without a rule */
  uint32_t sample_period_ns;      /* (d) 139 ms: period of utilisation samples */
  uint32_t pci_domain;
  uint32_t pci_bus;               /* (d) 1 + index * 0x10 */
  uint32_t pci_device;
  uint32_t start_ns;              /* (d) 3000: from the call to the kernel's begin, on an idle stream */
  uint32_t place;                 /* 0, or a number of the machine's place: UUIDs differ by it */
  uint32_t reserved[6];
  sim_kernel_rule rules[SIM_MAX_RULES];
} sim_profile;

/* A MIG instance: what NVML lists of it. Nothing runs on it. */
typedef struct sim_mig {
  char profile[SIM_MIG_NAME_BYTES]; /* "1g.18gb" */
  uint64_t memory_bytes;
  uint32_t slices;                /* of seven */
  uint32_t sm_count;
} sim_mig;

typedef struct sim_device_info {
  uint8_t uuid[16];               /* stable: the n-th device of a kind has the same one, place for place */
  uint32_t index;
  uint32_t lost;                  /* 1: a device-lost fault was injected */
  uint32_t wants_reset;           /* 1: an XID error that only a reset puts right */
  uint32_t mig_count;             /* instances; 0: MIG is off */
  uint64_t xid_count;             /* XID errors ever reported */
  uint32_t xids[SIM_XIDS];        /* the n-th one, counted from 0, lies at n % SIM_XIDS */
  sim_mig mig[SIM_MIG_INSTANCES];
  sim_profile profile;            /* with all defaults filled in */
} sim_device_info;

/* One process on one device, in the device's own words. */
typedef struct sim_process_record {
  int32_t pid;                    /* in the pid namespace of the process itself */
  uint32_t alive;                 /* 0: has ended (or gave its last context back and ended) */
  uint64_t start_ticks;           /* field 22 of /proc/PID/stat */
  uint64_t pid_namespace;         /* inode of /proc/PID/ns/pid; 0: not known */
  char tag[SIM_TAG_BYTES];        /* PENSTOCK_SIM_TAG of the process, else its comm */
  char comm[16];
  uint64_t began_ns;              /* first context on this device */
  uint64_t ended_ns;              /* when its end was noticed; 0 while alive */
  uint64_t busy_ns;               /* device time of its kernels: union over its streams */
  uint64_t copy_ns;               /* copy engine time */
  uint64_t memory_bytes;          /* device memory now, contexts included; 0 once ended */
  uint64_t peak_memory_bytes;
  uint64_t launches;              /* kernels started on the device (a graph counts its nodes) */
  uint64_t copies;
  uint64_t pending;               /* operations submitted and not completed */
  uint64_t refused;               /* allocations refused for want of memory */
  uint64_t calls;                 /* driver calls of the process while it had a context here */
} sim_process_record;

/* A device as a whole. */
typedef struct sim_device_usage {
  uint64_t at_ns;                 /* the figures are exact at this time */
  uint64_t created_ns;
  uint64_t busy_ns;               /* some kernel was running: the sum of all processes' busy_ns */
  uint64_t copy_ns;
  uint64_t switch_ns;             /* spent on context switches */
  uint64_t switches;
  uint64_t memory_used_bytes;     /* all processes and reserved_bytes */
  uint64_t memory_total_bytes;
  uint32_t processes;             /* alive with a context */
  uint32_t computing;             /* of those, with kernels waiting or running */
} sim_device_usage;

/* Running sums at a sample time (every sample_period_ns since the machine was made). */
typedef struct sim_sample {
  uint64_t at_ns;
  uint64_t busy_ns;
  uint64_t memory_busy_ns;        /* device memory bandwidth use, as time at full bandwidth */
  uint64_t memory_bytes;
} sim_sample;

#define SIM_FAULT_OUT_OF_MEMORY 1 /* allocations answer CUDA_ERROR_OUT_OF_MEMORY */
#define SIM_FAULT_LAUNCH_FAILED 2 /* a kernel fails: sticky CUDA_ERROR_LAUNCH_FAILED in its context */
#define SIM_FAULT_DEVICE_LOST 3   /* the device is gone (CUDA_ERROR_DEVICE_UNAVAILABLE, NVML: GPU is lost) */
#define SIM_FAULT_SLOW 4          /* driver calls take value_ns longer */
#define SIM_FAULT_HANG 5          /* a driver call does not return until the fault is lifted */

typedef struct sim_fault {
  uint32_t kind;                  /* SIM_FAULT_*; 0 lifts every fault of the device */
  int32_t pid;                    /* 0: any process */
  uint64_t skip;                  /* calls let through first */
  uint64_t count;                 /* calls affected; 0: all until lifted */
  uint64_t value_ns;              /* SIM_FAULT_SLOW */
  char call[SIM_TAG_BYTES];       /* glob over the driver function's base name; empty: all that fit the kind */
} sim_fault;

typedef struct sim_machine sim_machine;

/* Creates the machine's file (which must not exist) with `count` devices; it is complete when this
 * returns. */
int sim_machine_create(const char *path, const sim_profile *profiles, uint32_t count, char *error);

/* Opens an existing machine; NULL with a sentence in `error` when that is not one (missing,
 * truncated, other version). */
sim_machine *sim_machine_open(const char *path, char *error);
void sim_machine_close(sim_machine *machine);

uint32_t sim_machine_device_count(const sim_machine *machine);
int sim_machine_device(sim_machine *machine, uint32_t device, sim_device_info *info);
int sim_machine_usage(sim_machine *machine, uint32_t device, sim_device_usage *usage);

/* Every process the device has seen, ended ones included (the oldest ended ones make room after
 * some thousands). Returns how many there are; fills at most `capacity`. All figures are exact at
 * *at_ns, taken in one instant. */
int sim_machine_record(sim_machine *machine, uint32_t device, sim_process_record *records,
                       uint32_t capacity, uint64_t *at_ns);

/* The last utilisation samples, oldest first, of the whole device (pid 0) or of one live process.
 * Returns how many were filled, at most SIM_SAMPLES. */
int sim_machine_samples(sim_machine *machine, uint32_t device, int32_t pid, sim_sample *samples,
                        uint32_t capacity);

int sim_machine_inject(sim_machine *machine, uint32_t device, const sim_fault *fault);

/* The driver reports an XID error of the device. What is no application's fault wants a reset:
 * lifting the device's faults is one. */
int sim_machine_report_xid(sim_machine *machine, uint32_t device, uint32_t xid);

/* Moves the device clock forward, or back: what events tell from now on is as if it had drifted by
 * so much since the ones before. */
int sim_machine_shift_clock(sim_machine *machine, uint32_t device, int64_t ns);

/* Divides the device into MIG instances; 0: into none, MIG is off. -1: a process uses it. */
int sim_machine_set_mig(sim_machine *machine, uint32_t device, const sim_mig *instances,
                        uint32_t count);

/* Nanoseconds of CLOCK_MONOTONIC, the clock of every figure above. */
uint64_t sim_now_ns(void);
