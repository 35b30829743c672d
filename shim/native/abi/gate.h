/* Words of the compute gate inside the usage page. See mechanism/gate.h for the protocol. */
#pragma once
#define PENSTOCK_RING_WORDS 8192 /* each word has 32 bits of 16 us: 4.19 s */
#define PENSTOCK_RING_BIT_NS 16000
#define PENSTOCK_WORKING_SLOTS 8
#define PENSTOCK_WORKING_TICK_NS 1048576

typedef struct penstock_gate_device {
  uint64_t origin_ns;      /* CLOCK_MONOTONIC of the first launch; 0: none yet */
  uint64_t spent_ns;       /* device time charged since origin: the union of busy intervals */
  uint64_t paid_until_ns;  /* CLOCK_MONOTONIC up to which the share's time is used up; later
                              than now: overdraft. Charging x ns adds x / share to it. */
  uint64_t closed;         /* 1: admission is shut until credit is full again */
  uint64_t launches;       /* launches settled, all processes */
  uint64_t waits;          /* launches that had to wait */
  uint64_t waited_ns;      /* time spent waiting, all threads */
  uint64_t debts;          /* launches admitted as overdraft by the liveness rule */
  uint64_t copied_bytes;   /* copy-engine traffic: metered, not gated */
  uint64_t debt_permille;  /* the share that an overdraft in paid_until_ns assumes; 0: none yet */
  uint64_t calls_paid_ns;  /* CLOCK_MONOTONIC up to which the gate's own driver calls are paid */
  uint64_t quiet_until_ns; /* calibration window: until then only `quiet_slot` may launch */
  uint64_t quiet_slot;     /* slot of the measuring process, plus 1; 0: none */
  uint64_t copies;         /* copies that a copy engine did */
  uint64_t host_functions; /* queued on streams: not gated, they take no device time */
  /* Under contention, charges by learned cost stay within the time that the tenant's work
   * covered: */
  int64_t short_ns;    /* how far charges lie below the least part of it; below zero: above that */
  int64_t over_ns;     /* how far charges exceed it; below zero: less */
  uint64_t vain_debts; /* recent overdraft launches that were not needed: patience grows */
  /* For the time-slice scheduler (mechanism/turn.h): */
  uint64_t wanted_ns;     /* CLOCK_MONOTONIC when a thread was last seen waiting at the gate */
  uint64_t busy_until_ns; /* until then, by learned cost, admitted work keeps it busy */
  uint64_t row_debts;     /* launches admitted as overdraft … */
  uint64_t row_launches;  /* … while `launches` stood at this */
  /* A launch for which the tenant's own work waits goes although the gate is shut
   * (launch_overrun.c): */
  uint64_t overdraft_ns;      /* learned cost of those admitted since the gate last opened */
  uint64_t together;          /* a bit for each device whose work seems to wait for this one's … */
  uint64_t together_seen_ns;  /* … CLOCK_MONOTONIC when that was last seen … */
  uint64_t together_until_ns; /* … until when they open together */
  uint64_t step_ns;           /* CLOCK_MONOTONIC when a program last saw the device idle … */
  uint64_t step_length_ns;    /* … at least this long after it last had … */
  uint64_t let_go;            /* … and launches admitted since */
  uint32_t settled_by;        /* slot that settled the last timing window, plus 1; 0: not known */
  /* Which slots have gate work (mechanism/working.h): */
  uint32_t working_looked;            /* last check of all slots, in PENSTOCK_WORKING_TICK_NS */
  uint64_t working[2];                /* a bit for each group of PENSTOCK_WORKING_SLOTS slots */
  uint64_t ring[PENSTOCK_RING_WORDS]; /* epoch (32 bits) | busy bits (32) */
} penstock_gate_device;

typedef struct penstock_gate_slot {
  uint64_t estimate_ns; /* admitted, not yet measured */
  uint64_t submitted;   /* timing windows opened */
  uint64_t done;        /* timing windows settled */
  /* CLOCK_MONOTONIC since which work has been running that a thread of the process waits for now;
   * 0: none. Time beyond the estimate is charged as it passes. */
  uint64_t busy_since_ns;
  /* CLOCK_MONOTONIC since which there have been unsettled timing windows, give or take 100 ms; 0:
   * none. A process that dies with one is charged from then until its slot is reaped. */
  uint64_t unsettled_since_ns;
  uint64_t waiting_ns; /* CLOCK_MONOTONIC when a thread of it was last seen waiting at the gate */
  uint64_t due_ns;     /* latest time at which the work of `busy_since_ns` should end, by the usual
                          cost of its launches; 0: unknown */
  uint64_t reserved[1];
} penstock_gate_slot;
