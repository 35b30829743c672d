/* Words of the compute gate inside the usage page. mechanism/gate.h has the protocol. */
#pragma once
#define PENSTOCK_RING_WORDS 8192 /* each word has 32 bits of 16 us, so the ring spans 4.19 s */
#define PENSTOCK_RING_BIT_NS 16000
#define PENSTOCK_WORKING_SLOTS 8
#define PENSTOCK_WORKING_TICK_NS 1048576

typedef struct penstock_gate_device {
  uint64_t origin_ns; /* CLOCK_MONOTONIC time of the first launch, 0 before it */
  uint64_t spent_ns;  /* device time charged since origin_ns: the union of busy intervals */
  /* CLOCK_MONOTONIC time up to which the share is used up. A time in the future is an overdraft.
   * Charging x ns adds x / share. */
  uint64_t paid_until_ns;
  uint64_t closed;       /* 1 while no launch is admitted because credit is not yet full again */
  uint64_t launches;     /* number of settled launches, over all processes */
  uint64_t waits;        /* number of launches that had to wait */
  uint64_t waited_ns;    /* time spent waiting, over all threads */
  uint64_t debts;        /* number of launches admitted as overdraft by the liveness rule */
  uint64_t copied_bytes; /* bytes moved by copy engines: metered, not gated */
  /* share on which the overdraft in paid_until_ns is based, 0 before the first */
  uint64_t overdraft_permille;
  /* CLOCK_MONOTONIC time up to which the gate's own driver calls are paid */
  uint64_t calls_paid_ns;
  /* end of the calibration slice, in which only calibration_slot launches */
  uint64_t calibration_until_ns;
  uint64_t calibration_slot; /* slot of the process that measures, plus 1; 0 if none does */
  uint64_t copies;           /* number of copies done by a copy engine */
  /* number of host functions queued on streams: not gated, because they take no device time */
  uint64_t host_functions;
  /* Under contention, charges by learned cost are kept within the time that the tenant's work
   * covered: */
  /* amount by which charges fall short of the required minimum; negative if they exceed it */
  int64_t short_ns;
  /* amount by which charges exceed the covered time; negative if they are below it */
  int64_t over_ns;
  /* recent overdraft launches that proved needless; the more there are, the longer the gate
   * waits before the next */
  uint64_t needless_overdrafts;
  /* Words for the time-slice scheduler (mechanism/slice.h): */
  /* CLOCK_MONOTONIC time at which a thread was last seen waiting at the gate */
  uint64_t wanted_ns;
  /* time until which admitted work keeps the device busy, by learned cost */
  uint64_t busy_until_ns;
  /* number of launches admitted as overdraft while `launches` had the value of row_launches */
  uint64_t row_overdrafts;
  uint64_t row_launches; /* value of `launches` that row_overdrafts refers to */
  /* A launch that the tenant's own running work waits for is admitted even while the gate is shut
   * (hooks/launch_overrun.c): */
  /* learned cost of the launches admitted that way since the gate last opened */
  uint64_t overdraft_ns;
  /* bit mask of the devices whose work seems to wait for this device's work */
  uint64_t together;
  uint64_t together_seen_ns; /* CLOCK_MONOTONIC time at which such a wait was last seen */
  /* time until which the gates of these devices open and shut together */
  uint64_t together_until_ns;
  uint64_t step_ns;        /* CLOCK_MONOTONIC time at which a program last found the device idle */
  uint64_t step_length_ns; /* lower bound of the time between the last two such observations */
  uint64_t let_go;         /* number of launches admitted since step_ns */
  uint32_t settled_by;     /* slot that settled the last timing window, plus 1; 0 if unknown */
  /* Words that show which slots have gate work (mechanism/working.h): */
  /* time of the last check of all slots, in units of PENSTOCK_WORKING_TICK_NS */
  uint32_t working_scanned;
  uint64_t working[2];                /* one bit for each group of PENSTOCK_WORKING_SLOTS slots */
  uint64_t ring[PENSTOCK_RING_WORDS]; /* epoch (32 bits) | busy bits (32) */
} penstock_gate_device;

typedef struct penstock_gate_slot {
  /* estimated device time of launches that are admitted but not yet measured */
  uint64_t estimate_ns;
  uint64_t submitted; /* number of timing windows opened */
  uint64_t done;      /* number of timing windows settled */
  /* CLOCK_MONOTONIC time since which the work has been running that a thread of the process is
   * waiting for; 0 if no thread waits. Time beyond the estimate is charged as it passes. */
  uint64_t busy_since_ns;
  /* CLOCK_MONOTONIC time, accurate to 100 ms, since which the process has had unsettled timing
   * windows; 0 if it has none. If the process dies, the time from then until its slot is reaped is
   * charged. */
  uint64_t unsettled_since_ns;
  /* CLOCK_MONOTONIC time at which a thread of the process was last seen waiting at the gate */
  uint64_t waiting_ns;
  /* latest time at which the work of `busy_since_ns` should end, by the usual cost of its
   * launches; 0 if unknown */
  uint64_t due_ns;
  uint64_t reserved[1];
} penstock_gate_slot;
