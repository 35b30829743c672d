/* Compute-gate words inside the usage page. See mechanism/gate.h for the protocol. */
#pragma once
#define PENSTOCK_RING_WORDS 8192 /* 32 bits of 16 us each a word: 4.19 s */
#define PENSTOCK_RING_BIT_NS 16000
#define PENSTOCK_WORKING_SLOTS 8
#define PENSTOCK_WORKING_TICK_NS 1048576

typedef struct penstock_gate_device {
  uint64_t origin_ns;      /* CLOCK_MONOTONIC of the first launch; 0: none yet */
  uint64_t spent_ns;       /* device time charged since origin: the union of busy intervals */
  uint64_t paid_until_ns;  /* CLOCK_MONOTONIC up to which the share's time is used up; later
                              than now: debt. Charging x ns moves it on by x / share. */
  uint64_t closed;         /* 1: admission is shut until credit is full again */
  uint64_t launches;       /* launches settled, all processes */
  uint64_t waits;          /* launches that had to wait */
  uint64_t waited_ns;      /* time spent waiting, all threads */
  uint64_t debts;          /* launches admitted as debt by the liveness rule */
  uint64_t copied_bytes;   /* copy-engine traffic: metered, not gated */
  uint64_t debt_permille;  /* the share that a debt in paid_until_ns is told in; 0: none yet */
  uint64_t calls_paid_ns;  /* CLOCK_MONOTONIC up to which the gate's own driver calls are paid */
  uint64_t quiet_until_ns; /* till then only the process of `quiet_slot` launches: it measures */
  uint64_t quiet_slot;     /* its slot, plus 1; 0: none */
  uint64_t copies;         /* copies that a copy engine did */
  uint64_t host_functions; /* queued on streams: not gated, they take no device time */
  /* Beside others, charges by experience stay within what the tenant's work covered: */
  int64_t short_ns; /* what they fall short of the least part of it; below zero: more than that */
  int64_t over_ns;  /* what they exceed it by; below zero: less */
  uint64_t vain_debts; /* launches let through as debt without need, of late: patience grows */
  /* For whoever hands out turns (mechanism/turn.h): */
  uint64_t wanted_ns;     /* CLOCK_MONOTONIC when a thread was last seen waiting at the gate */
  uint64_t busy_until_ns; /* until then, by experience, work that was let go keeps it busy */
  uint64_t row_debts;     /* launches let through as debt … */
  uint64_t row_launches;  /* … while `launches` stood at this */
  /* Launches that work of the tenant's waits for go although the gate is shut (launch_overrun.c):
   */
  uint64_t overdraft_ns;      /* cost by experience of those let go since the gate last opened */
  uint64_t together;          /* bit for each device whose work seems to wait for this one's … */
  uint64_t together_seen_ns;  /* … CLOCK_MONOTONIC when that was last seen … */
  uint64_t together_until_ns; /* … until when they open together */
  uint64_t step_ns;           /* CLOCK_MONOTONIC when a program last saw the device drained … */
  uint64_t step_length_ns;    /* … how long before that it had, at least … */
  uint64_t let_go;            /* … and launches let go since */
  uint32_t settled_by; /* the slot whose process settled a bracket last, plus 1; 0: not known */
  /* Which slots have gate work (mechanism/working.h): */
  uint32_t working_looked; /* when all slots were looked at last, in PENSTOCK_WORKING_TICK_NS */
  uint64_t working[2];     /* a bit for each PENSTOCK_WORKING_SLOTS of them */
  uint64_t ring[PENSTOCK_RING_WORDS]; /* epoch (32 bits) | busy bits (32) */
} penstock_gate_device;

typedef struct penstock_gate_slot {
  uint64_t estimate_ns; /* admitted, not yet measured */
  uint64_t submitted;   /* brackets opened */
  uint64_t done;        /* brackets settled */
  /* CLOCK_MONOTONIC since which work of the process has been running that a thread of it is waiting
   * for at this moment; 0: none. Beyond the estimate it is charged as it passes. */
  uint64_t busy_since_ns;
  /* CLOCK_MONOTONIC since which there have been brackets that are not settled, give or take 100 ms;
   * 0: none. A process that dies with such is charged from then on until its slot is reaped. */
  uint64_t unsettled_since_ns;
  uint64_t waiting_ns; /* CLOCK_MONOTONIC when a thread of it was last seen waiting at the gate */
  uint64_t due_ns;     /* when the work of `busy_since_ns` should be through at the latest, by what
                          its launches usually take; 0: nobody knows */
  uint64_t reserved[1];
} penstock_gate_slot;
