/* The simulated machine: one file of shared memory that holds all simulated devices, the work
 * submitted to them and the record of everything they did. The simulated libcuda and libnvidia-ml
 * use it, and through cffi also `penstock_shim.simulator`. Plain C, because cffi parses this
 * header.
 *
 * Times are CLOCK_MONOTONIC nanoseconds. A function that can fail returns 0 or a count on success.
 * On failure it returns -1 and writes a sentence to `error` that says what failed, why, and what to
 * do. The machine survives if any process that has the file open is killed.
 */
/* clang-format is off because cffi needs each #define on one line. */
/* clang-format off */
#pragma once
#include <stdint.h>

#define SIM_MAX_DEVICES 16
#define SIM_MAX_RULES 32
#define SIM_NAME_BYTES 96
#define SIM_TAG_BYTES 64
#define SIM_ERROR_BYTES 256
#define SIM_SAMPLES 72 /* number of utilisation samples kept for each device and process */
#define SIM_XIDS 16    /* number of a device's newest XID errors that are kept */
#define SIM_MIG_INSTANCES 7
#define SIM_MIG_NAME_BYTES 16

/* The duration of a kernel, selected by name. The first rule that matches decides. */
typedef struct sim_kernel_rule {
  char pattern[SIM_NAME_BYTES];   /* shell glob for the kernel's (mangled) name; empty after the last rule */
  uint64_t duration_ns;
  /* number of the 8-byte kernel parameter that holds the nanoseconds, -1 if none */
  int32_t parameter;
  uint32_t action;                /* effect other than taking time (cuda/kernel_rules.c) */
} sim_kernel_rule;

/* Properties of a device. In fields marked (d), 0 means the default that follows. */
typedef struct sim_profile {
  char name[SIM_NAME_BYTES];      /* such as "NVIDIA H200" */
  char source[SIM_NAME_BYTES];    /* source of the figures */
  uint64_t memory_bytes;          /* as cuDeviceTotalMem returns it; an allocation beyond it fails */
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
  double tflops;                  /* rated dense fp16/bf16 tensor performance */
  double memory_bytes_per_ns;     /* (d) 1000: device memory bandwidth in GB/s */
  double host_bytes_per_ns;       /* (d) 25: bandwidth of the host link in GB/s, in one direction */
  uint64_t context_bytes;         /* (d) 256 MiB: device memory of a process's context */
  uint64_t reserved_bytes;        /* part of memory_bytes that an idle driver takes */
  uint64_t slab_bytes;            /* (d) 2 MiB: small allocations share slabs of this size */
  uint64_t time_slice_ns;         /* (d) 2 ms */
  uint64_t context_switch_ns;     /* (d) 50 us: time without computation when the device switches processes */
  uint64_t event_tick_ns;         /* (d) 500 */
  int64_t clock_offset_ns;        /* device clock minus CLOCK_MONOTONIC when the machine is created */
  double clock_drift_ppm;         /* rate by which the device clock is too fast, negative if it is slow */
  uint32_t queue_depth;           /* (d) 1024: launches that a stream holds before a launch blocks */
  uint32_t launch_ns;             /* (d) 1800: host cost of a launch */
  uint32_t event_record_ns;       /* (d) 1000 */
  uint32_t query_ns;              /* (d) 500 */
  uint32_t stream_op_ns;          /* (d) 1000: stream memory operation or stream wait */
  uint32_t memory_call_ns;        /* (d) 3000: allocation or free without a new slab */
  uint32_t memory_slab_ns;        /* (d) 60000: allocation or free with a new slab */
  uint32_t kernel_floor_ns;       /* (d) 2000: duration of the shortest kernel */
  /* idle time between two kernels of a stream (0 by default: part of the kernels' duration) */
  uint32_t kernel_gap_ns;
  uint32_t thread_cost_ps;        /* (d) 40: device time per thread of a kernel without a rule */
  uint32_t sample_period_ns;      /* (d) 139 ms: period of utilisation samples */
  uint32_t pci_domain;
  uint32_t pci_bus;               /* (d) 1 + index * 0x10 */
  uint32_t pci_device;
  /* (d) 3000: time from the call to the start of the kernel on an idle stream */
  uint32_t start_ns;
  /* number of the machine's location, which makes its UUIDs unique; 0 if none */
  uint32_t place;
  uint32_t driver_major;          /* (d) 615: major number of the driver's version */
  /* time that a process needs to create its instance of the driver (0 by default) */
  uint32_t driver_start_us;
  uint32_t checkpoint_speedup;    /* (d) 1: factor by which checkpoints are faster than the host link */
  uint32_t reserved[3];
  sim_kernel_rule rules[SIM_MAX_RULES];
} sim_profile;

/* A MIG instance as NVML lists it. No work runs on it. */
typedef struct sim_mig {
  char profile[SIM_MIG_NAME_BYTES]; /* "1g.18gb" */
  uint64_t memory_bytes;
  uint32_t slices;                /* number of slices, out of seven */
  uint32_t sm_count;
} sim_mig;

typedef struct sim_device_info {
  uint8_t uuid[16];               /* stable: derived from kind, index and place */
  uint32_t index;
  uint32_t lost;                  /* 1 after an injected device-lost fault */
  uint32_t wants_reset;           /* 1 after an XID error that only a reset repairs */
  uint32_t mig_count;             /* number of instances, 0 if MIG is off */
  uint64_t xid_count;             /* number of XID errors ever reported */
  uint32_t xids[SIM_XIDS];        /* error number n, counted from 0, is at n % SIM_XIDS */
  sim_mig mig[SIM_MIG_INSTANCES];
  sim_profile profile;            /* with all defaults filled in */
} sim_device_info;

/* The exact record of one process on one device. */
typedef struct sim_process_record {
  int32_t pid;                    /* in the process's own pid namespace */
  uint32_t alive;                 /* 0 if the process has ended */
  uint64_t start_ticks;           /* field 22 of /proc/PID/stat */
  uint64_t pid_namespace;         /* inode of /proc/PID/ns/pid, 0 if unknown */
  char tag[SIM_TAG_BYTES];        /* PENSTOCK_SIM_TAG of the process, or else its comm */
  char comm[16];
  uint64_t began_ns;              /* time of the first context on this device */
  uint64_t ended_ns;              /* time at which the end was noticed, 0 while alive */
  uint64_t busy_ns;               /* device time of its kernels: the union over its streams */
  uint64_t copy_ns;               /* time on copy engines */
  uint64_t memory_bytes;          /* current device memory, including contexts; 0 after its end */
  uint64_t peak_memory_bytes;
  uint64_t launches;              /* kernels started on the device (for a graph, each of its nodes) */
  uint64_t copies;
  uint64_t pending;               /* operations submitted but not completed */
  uint64_t refused;               /* allocations refused because memory was short */
  uint64_t calls;                 /* driver calls while the process had a context here */
} sim_process_record;

/* The use of a device as a whole. */
typedef struct sim_device_usage {
  uint64_t at_ns;                 /* time at which the figures are exact */
  uint64_t created_ns;
  /* time during which a kernel was running: the sum of all processes' busy_ns */
  uint64_t busy_ns;
  uint64_t copy_ns;
  uint64_t switch_ns;             /* time spent on context switches */
  uint64_t switches;
  uint64_t memory_used_bytes;     /* all processes plus reserved_bytes */
  uint64_t memory_total_bytes;
  uint32_t processes;             /* number of living processes with a context */
  uint32_t computing;             /* number of those with kernels waiting or running */
} sim_device_usage;

/* Running totals at a sample time. Samples are taken every sample_period_ns since the machine was
 * created. */
typedef struct sim_sample {
  uint64_t at_ns;
  uint64_t busy_ns;
  uint64_t memory_busy_ns;        /* use of memory bandwidth, as time at full bandwidth */
  uint64_t memory_bytes;
} sim_sample;

#define SIM_FAULT_OUT_OF_MEMORY 1 /* allocations return CUDA_ERROR_OUT_OF_MEMORY */
/* a kernel fails with CUDA_ERROR_LAUNCH_FAILED, which persists in its context */
#define SIM_FAULT_LAUNCH_FAILED 2
/* the device is gone (CUDA_ERROR_DEVICE_UNAVAILABLE; in NVML, GPU is lost) */
#define SIM_FAULT_DEVICE_LOST 3
#define SIM_FAULT_SLOW 4          /* driver calls take value_ns longer */
#define SIM_FAULT_HANG 5          /* a driver call does not return until the fault is lifted */

typedef struct sim_fault {
  uint32_t kind;                  /* SIM_FAULT_*, or 0 to lift every fault of the device */
  int32_t pid;                    /* 0 for any process */
  uint64_t skip;                  /* number of calls to spare first */
  uint64_t count;                 /* number of calls to affect, 0 for all until lifted */
  uint64_t value_ns;              /* for SIM_FAULT_SLOW only */
  /* glob for the base name of the driver function; empty for all functions that the kind applies
   * to */
  char call[SIM_TAG_BYTES];
} sim_fault;

typedef struct sim_machine sim_machine;

/* Creates the machine's file, which must not exist yet, with `count` devices. The file is complete
 * when this function returns. */
int sim_machine_create(const char *path, const sim_profile *profiles, uint32_t count, char *error);

/* Opens an existing machine. Returns NULL with a sentence in `error` if the file is not valid
 * (missing, truncated, or of another version). */
sim_machine *sim_machine_open(const char *path, char *error);
void sim_machine_close(sim_machine *machine);

uint32_t sim_machine_device_count(const sim_machine *machine);
int sim_machine_device(sim_machine *machine, uint32_t device, sim_device_info *info);
int sim_machine_usage(sim_machine *machine, uint32_t device, sim_device_usage *usage);

/* Lists every process that the device has had, including ended ones (of which the oldest are
 * dropped after some thousands). Returns how many there are and fills at most `capacity` records.
 * All figures are exact at *at_ns. */
int sim_machine_record(sim_machine *machine, uint32_t device, sim_process_record *records,
                       uint32_t capacity, uint64_t *at_ns);

/* Fills in the last utilisation samples, oldest first, of the whole device (pid 0) or of one living
 * process. Returns how many were filled in, at most SIM_SAMPLES. */
int sim_machine_samples(sim_machine *machine, uint32_t device, int32_t pid, sim_sample *samples,
                        uint32_t capacity);

int sim_machine_inject(sim_machine *machine, uint32_t device, const sim_fault *fault);

/* Makes the driver report an XID error. An error that no application can cause needs a reset, and
 * lifting the device's faults counts as one. */
int sim_machine_report_xid(sim_machine *machine, uint32_t device, uint32_t xid);

/* Moves the device clock forwards or backwards, so that later events read as if it had drifted by
 * that much. */
int sim_machine_shift_clock(sim_machine *machine, uint32_t device, int64_t ns);

/* Divides the device into MIG instances; `count` 0 turns MIG off. Returns -1 if a process uses the
 * device. */
int sim_machine_set_mig(sim_machine *machine, uint32_t device, const sim_mig *instances,
                        uint32_t count);

/* Returns the CLOCK_MONOTONIC time in nanoseconds, the clock of every figure above. */
uint64_t sim_now_ns(void);
