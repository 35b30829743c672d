/* The gate's private state: kinds of launches, contexts, streams, timing windows.
 *
 * A *timing window* (gate_window) covers consecutive launches on one stream without a pause. Each
 * launch belongs to one window. A window stands for an interval of device time on the host's clock.
 * That interval is charged once, however many windows overlap in it:
 *   It starts when the previous window of the stream ended or, on an idle stream, a constant time
 *     after the launch call was entered (GATE_START_NS). No driver call is made for that.
 *   It ends when an event after its launches says so (*measured*), or shortly before the program's
 *     own wait for the stream returned (*waited*), or, if there is neither, when it should end
 *     according to the learned cost of its launches (*presumed*).
 * A *sample* is a window that also has an event before it, so it is exact even if it is short.
 * Samples are drawn by count and not by time, so that long and short launches of one kind are
 * equally likely to be measured. If the program does not wait for the stream, the event after the
 * window *rolls*: it is recorded again after each launch that joins, so the sample contains the
 * whole batch.
 *
 * To *settle* a window is to find its interval, charge it and learn from it. Single launches of
 * well known cost do not get a window each: the open window continues with the next launch, and its
 * intervals so far are charged together later (launch_arrears.c).
 *
 * While the device is *contended*, that is, while other tenants or other processes of this tenant
 * use it too, an interval also contains their time. The window is then charged the learned cost of
 * its launches, somewhere inside its interval (launch_charge.c).
 *
 * Threads. All state lies in memory that a fork wipes. A `lock` is held for a few instructions,
 * never across a driver call. A stream's `working` flag marks that one thread makes driver calls
 * for its windows. Only a thread that is about to destroy the stream waits for that flag; other
 * threads count their launches as the stream's *strays*, which belong to no window yet. Objects are
 * reused, never freed. */
#pragma once

#include "hooks/launch.h"
#include "mechanism/cost.h"
#include "mechanism/gate.h"
#include "process/process.h"

#define GATE_WINDOW_NS 1000000      /* estimated work that ends a window */
#define GATE_FREE_WINDOW_NS 8000000 /* estimated work that ends a window if nothing is gated */
#define GATE_UNKNOWN_NS 500000      /* estimate of a launch before the first measurement */
#define GATE_DONE_WORDS 4096        /* streams of a context whose completion is read from memory */
#define GATE_HELD_UP_NS 20000       /* a driver call that takes longer was held up */
#define GATE_DRY_SLACK_NS 5000      /* a stream counts as dry this long after it should be */
/* Handle of a context that the driver has destroyed and whose state is being removed. */
#define GATE_LEAVING ((CUcontext)(intptr_t)-1)
#define GATE_SEVERAL UINT64_MAX /* stands for more than one thread */
#define GATE_PARTS 4            /* kinds that one window counts separately */
/* Time from entering a launch call to the start of the kernel on an idle device. This is the usual
 * order of magnitude for this driver family and must be measured on a real device. */
#define GATE_START_NS 3200
/* Longest usual time from a stream's end to the return of a wait for it. If the wait takes longer,
 * the host was held up. */
#define GATE_LONGEST_WAKE_NS 15000
/* A thread that takes this long for a launch and the event after it was stopped, loaded a module or
 * waited for room in a queue. The device may have been idle in the meantime. */
#define GATE_STALL_NS 100000000
#define GATE_FULL_SCALE 1024 /* value of gate_state.overlap without overlap */

/* Sizes of the two tables in launch_kind.c. */
#define GATE_KINDS 8192
#define GATE_FUNCTIONS 4096
#define GATE_KIND_WAYS 8

struct gate_function;

typedef struct gate_kind {
  penstock_kind_key key;
  uint32_t generation; /* even, and odd while the entry is being reused for another kind; grows with
                          each reuse */
  uint32_t unmeasured; /* number of launches before the first measurement */
  uint32_t version;    /* grows when an executable's nodes, and so what is launched, change */
  uint32_t arrivals;   /* gate_state.arrivals at the last measurement of this kind */
  bool changed;        /* changed since its last measurement, so its cost is an estimate */
  bool estimated;      /* no measurement of this kind is part of the estimate */
  bool doubted;        /* its only measurement is unreliable and must be repeated */
  bool used;           /* used since a place for another kind was last searched */
  uint64_t admitted;   /* admission under which its memory was charged (penstock_admission_of) */
  penstock_cost cost;
  struct gate_function
      *function;          /* may be NULL; guarded by state->kinds_lock, like the fields below */
  struct gate_kind *next; /* next kind of the function */
  uint64_t size;          /* number of threads, with which the cost is expected to grow */
} gate_kind;

typedef struct gate_function {
  const void *what;  /* NULL if the entry is free */
  const void *owner; /* module or library that the function belongs to */
  bool sure;         /* `owner` is certain */
  bool used;
  uint32_t count; /* number of kinds that the function has had since it entered the table */
  gate_kind *kinds;
  double ns;   /* decaying sum of the costs of its kinds at each measurement */
  double size; /* decaying sum of the sizes of its kinds at each measurement */
  uint64_t longest_ns;
} gate_function;

typedef struct gate_marker {
  struct gate_marker *next;
  CUevent event;
  uint32_t references;
  uint64_t recorded_ns; /* time at which the driver was called to record the event */
  uint64_t
      took_ns; /* duration of that call; if long, the device got the event at an unknown time */
} gate_marker;

/* Data that converts device times to the host's clock. */
typedef struct gate_base {
  gate_marker *marker; /* event from which device times are counted */
  uint64_t ns;      /* CLOCK_MONOTONIC time at which the device passed the event, at the latest */
  uint64_t late_ns; /* how much earlier the device may have passed the event */
  double drift;     /* host time in excess of device time, per ns */
  uint64_t compared_ns; /* length of the comparison that gave `drift`, 0 if there was none yet */
} gate_base;

typedef struct gate_context {
  struct gate_context *next;
  CUcontext handle; /* NULL if the object is free for reuse */
  uint64_t birth;   /* number that no two contexts share */
  uint64_t life;    /* number of contexts that have used this object */
  int grant;
  uint32_t lock;        /* guards the lists and `words_used` */
  gate_marker *markers; /* free markers */
  gate_marker *blanks;  /* free markers without an event */
  uint64_t *done;       /* words that the device writes, NULL if completion is queried by event */
  CUdeviceptr done_device;
  uint64_t words_used[GATE_DONE_WORDS / 64];
  CUstream clock; /* the shim's own stream, always idle, on which bases are recorded */
  gate_base base;
  gate_marker *renewal; /* marker of the next base, recorded but not yet evaluated */
  uint64_t host_ns;     /* start of the comparison of the clocks */
  uint64_t device_ns;   /* device time that the comparison covers */
  /* thread that queues on the context's blocking streams, 0 if none, GATE_SEVERAL if more than
   * one */
  uint64_t blocking;
} gate_context;

typedef struct gate_part {
  gate_kind *kind;
  uint32_t generation;
  uint32_t version;
  uint32_t launches;
  uint64_t cost_ns; /* learned cost of the launches at the time of launch */
} gate_part;

/* A timing window, as explained at the top of this file. */
typedef struct gate_window {
  struct gate_window *next;
  gate_marker *start; /* set for a sample or after work that is not compute, otherwise NULL */
  gate_marker *end;
  bool by_event;    /* its completion is seen by event, not by the done word */
  bool rolling;     /* `end` is recorded again after each launch */
  bool watched;     /* `end` is recorded only while the budget of calls allows; not a sample
                       (gate_stream.unclear_ns) */
  bool sample;      /* `start` is directly before the first launch, on an idle stream */
  bool contended;   /* another process of the tenant had work when the window was opened */
  bool calibrating; /* opened in a calibration slice of this process */
  bool waited;      /* the program waited for the window's stream */
  bool lost; /* follows work that is not compute without a `start`, so its start is unknown */
  uint32_t part_count;
  uint32_t launches;
  uint32_t ended;   /* launches before `end`: not all while other threads are in their calls */
  uint64_t number;  /* counts up in a stream; the done word gets this value when the window is
                       completed */
  uint64_t held_ns; /* total duration of its launch calls that took too long, if it is a sample or
                       its end rolls */
  uint64_t counted_ns;   /* time at which its last launch was counted if the same thread then ended
                            the window, otherwise 0 */
  uint64_t opened_ns;    /* when its first launch call was entered, after the shim's own calls */
  uint64_t slice_ns;     /* start of the tenant's time slice that the window falls in, 0 if none */
  uint64_t estimate_ns;  /* contribution of the window to the slot's estimate */
  uint64_t cost_ns;      /* learned cost of its launches at the time of launch */
  uint64_t rest_ns;      /* part of `cost_ns` from launches that are not in `parts` */
  uint64_t overdraft_ns; /* overdraft of those of its launches that were admitted because other work
                            overran */
  gate_part parts[GATE_PARTS];
} gate_window;

/* Presumed intervals of single launches, each followed by a pause, that are not charged yet and are
 * charged many at a time. */
#define GATE_ARREARS 16
typedef struct gate_arrears {
  uint32_t count;
  uint32_t launches;
  uint64_t since_ns;    /* start of the first interval */
  uint64_t estimate_ns; /* contribution of these launches to the slot's estimate */
  uint64_t cost_ns;
  struct {
    uint64_t begin_ns;
    uint64_t end_ns;
  } of[GATE_ARREARS];
} gate_arrears;

typedef struct gate_stream {
  struct gate_stream *next;
  CUstream handle;   /* canonical handle: the default streams are CU_STREAM_LEGACY or _PER_THREAD */
  const void *owner; /* context of a default stream */
  uint64_t thread;   /* thread of a per-thread default stream */
  uint64_t birth;    /* distinguishes the threads that had this id one after another */
  gate_context *context;
  uint32_t lock; /* guards the fields below */
  uint32_t word; /* index of the done word, UINT32_MAX if none */
  bool dead;
  bool gone; /* the program destroyed the stream: its last windows are not settled, and no new ones
                open */
  bool working;
  uint64_t held;    /* hold of the context that has the `working` flag (launch_end.c), 0 if none */
  bool captures;    /* a capture started on the stream and has not ended */
  bool blocking;    /* the stream and the legacy stream wait for each other's work */
  bool interrupted; /* work that is not compute was queued since the last window */
  bool idle; /* nothing is queued for certain, because the stream was waited for or its last end was
                measured */
  bool prompt;  /* the program waits late or never, so the end of a sample rolls */
  bool exact;   /* last_end_ns was measured */
  bool stalled; /* the last measured window stalled; repeated stalls are normal for the stream's
                   launches */
  uint8_t left_open;   /* counts down after windows were left open and their ends presumed */
  bool probed;         /* a window was measured only to learn whether the stream is idle after it */
  uint64_t unclear_ns; /* when an end was last presumed far later than by mean cost */
  gate_window *open;
  gate_window *oldest; /* ended windows that wait for their done word, in order */
  gate_window *newest;
  uint64_t number;          /* number of the window opened last */
  uint64_t asked_at;        /* `number` when the driver last reported the stream as busy */
  uint64_t launched;        /* total number of launches */
  uint64_t launched_before; /* `launched` when the first of `waiters` started to wait */
  uint64_t waited_since_ns; /* when the first of `waiters` started to wait */
  uint32_t waiters;
  uint32_t queued;     /* number of launches that are not settled */
  uint64_t queued_ns;  /* learned cost of the launches that are not settled */
  uint64_t drained_ns; /* time at which the stream should have run dry according to learned costs */
  uint64_t last_end_ns; /* end of the last settled window, 0 if none */
  uint64_t stray_ns;    /* estimate of the strays, launches that belong to no window yet */
  uint64_t stray_cost_ns;
  uint32_t stray_launches; /* number of strays */
  uint64_t stray_since_ns; /* time at which the first stray was counted */
  gate_arrears arrears;
  const struct gate_round *round; /* round of the thread that launched here last */
  uint64_t round_ns; /* `launched_ns` of that round when its run of launches here started */
  /* Total number of launches whose driver calls have returned, counted without the lock. Like
   * `launched` it is not reset when the object is reused, because earlier calls may still be under
   * way. */
  uint64_t left;
  uint32_t
      generation; /* grows when the stream leaves the tables, which makes cached pointers stale */
} gate_stream;

/* A thread's most recent lookups: one block for each thread, reused after the thread ends. */
#define GATE_RECENT_KINDS 64 /* two for each hash */
#define GATE_RECENT_STREAMS 8

typedef struct gate_recent_kind {
  penstock_kind_key key;
  gate_kind *kind;
  uint32_t generation;
} gate_recent_kind;

typedef struct gate_recent_stream {
  CUstream handle;
  const void *owner;
  gate_stream *stream;
  uint32_t generation;
} gate_recent_stream;

/* A thread's launches on several streams of one device, one after the other (launch_round.c). */
#define GATE_ROUNDS 8
typedef struct gate_round {
  uint32_t device;                  /* grant index of the device plus 1, 0 if none yet */
  const struct gate_stream *stream; /* stream that the thread launched on last */
  uint64_t launched_ns;             /* sum of the usual times of all its launches there */
  uint64_t longest_ns; /* estimate of its longest recent round, 0 if it uses one stream */
  uint64_t asked_ns;   /* time at which its next launch first requested admission, 0 if not yet */
  uint64_t waits;      /* the thread's `waits` at its last launch there */
} gate_round;

typedef struct gate_thread {
  struct gate_thread *next; /* next free block */
  uint32_t ready; /* gate_state.ready when the block was made; the block is invalid after a fork */
  gate_recent_stream streams[GATE_RECENT_STREAMS];
  gate_recent_kind kinds[GATE_RECENT_KINDS];
  gate_round rounds[GATE_ROUNDS];
  uint64_t waits; /* number of waits for work that this thread has completed */
} gate_thread;

#define GATE_BUCKETS 1024
/* The last list holds streams that were destroyed while their work was still running. */
#define GATE_GONE GATE_BUCKETS
#define GATE_LISTS (GATE_BUCKETS + 1)

/* Draws of samples among windows on idle streams. The second entry is for windows of well known
 * cost, the first for all others. */
typedef struct gate_draws {
  uint32_t gap;       /* mean number of windows between two samples */
  uint32_t countdown; /* windows until the next sample */
  uint32_t drawn;     /* samples drawn since period_ns */
  uint32_t missed;    /* samples drawn since period_ns without budget */
  uint64_t period_ns;
} gate_draws;

typedef struct gate_state {
  uint32_t ready;      /* number of this process's state, 0 after a fork */
  uint32_t lock;       /* guards the tables and free lists */
  uint32_t kinds_lock; /* guards kinds, functions and learned costs */
  uint32_t captures;   /* number of stream captures under way in this process */
  bool few_queues;     /* streams wait for each other (CUDA_DEVICE_MAX_CONNECTIONS) */
  bool launches_block; /* launch calls return when their kernel is done (CUDA_LAUNCH_BLOCKING) */
  uint32_t next_way;   /* where the next search for a place starts */
  uint32_t kind_tags[GATE_KINDS]; /* tags from the hashes of the kinds' keys, 0 if free */
  gate_kind kinds[GATE_KINDS];
  gate_function functions[GATE_FUNCTIONS];
  gate_stream *streams[GATE_LISTS];
  gate_context *contexts;
  gate_thread *free_threads;
  gate_stream *free_streams;
  gate_window *free_windows;
  uint32_t arrivals;                    /* number of times that a device became contended */
  bool contended[PENSTOCK_MAX_DEVICES]; /* the device is contended now */
  uint64_t others_seen_ns[PENSTOCK_MAX_DEVICES]; /* time at which other processes last had work */
  uint64_t drained_ns[PENSTOCK_MAX_DEVICES]; /* time at which all streams should be dry according to
                                                learned costs */
  uint32_t waiters[PENSTOCK_MAX_DEVICES]; /* number of threads that wait for work or at the gate */
  uint64_t let_go_ns[PENSTOCK_MAX_DEVICES]; /* time at which a launch was last admitted although the
                                               gate was shut */
  uint64_t calibration_next_ns[PENSTOCK_MAX_DEVICES]; /* no calibration slice starts before */
  uint64_t calibrations[PENSTOCK_MAX_DEVICES];        /* number of slices started by this process */
  uint32_t calibration_settled[PENSTOCK_MAX_DEVICES]; /* number of windows settled in the current
                                                         slice */
  gate_draws draws[2];
  uint64_t sampled_ns; /* time at which the last sample was taken */
  uint64_t unseen_ns;  /* last pause into which unmeasured launches may have run */
  uint32_t random;
  uint32_t overlap;   /* charged time / learned cost, in 1/1024: below 1 when streams overlap */
  uint32_t late_ends; /* number of recent ends that the device passed before their calls returned */
  double charged_ns;  /* decaying sum from which `overlap` is computed, like `cost_ns` */
  double cost_ns;
  uint64_t forgiven_ns; /* time at which a late wait was last attributed to the host */
  uint64_t wake_ns;     /* time from a stream's end to the return of the program's wait */
  uint64_t typical_ns;  /* assumed cost of a launch of unknown cost, 0 while nothing was measured */
  penstock_gate_slot spare[PENSTOCK_MAX_DEVICES]; /* used by a process that got no slot */
} gate_state;

/* Functions of launch_state.c. */
gate_state *gate_state_get(void);
/* Returns NULL if there is no memory, so that nothing can be cached. */
gate_thread *gate_thread_get(gate_state *state);
gate_stream *gate_stream_get(gate_state *state, CUstream handle, bool per_thread_default);
/* Returns the index of the list that contains such a stream. */
unsigned gate_stream_list(CUstream handle, const void *owner, uint64_t thread);
/* Returns the result of a launch for which gate_stream_get failed. This is CUDA_SUCCESS if the
 * driver itself will refuse the call because there is no context or no such stream, and otherwise
 * the error to return. */
CUresult gate_stream_missing(CUstream handle);
gate_window *gate_window_get(gate_state *state);
void gate_window_put(gate_state *state, gate_window *window);
uint64_t gate_now_ns(void);  /* CLOCK_MONOTONIC */
uint64_t gate_tick_ns(void); /* CLOCK_MONOTONIC at the last tick: a few ms old, but cheap */

/* Functions of launch_kind.c. */
/* Returns the kind and its generation, because the entry can be reused for another kind at any
 * time. */
gate_kind *gate_kind_get(gate_state *state, const penstock_kind_key *key, uint32_t *generation);
static inline bool gate_kind_is_gone(const gate_kind *kind, uint32_t generation) {
  return __atomic_load_n(&kind->generation, __ATOMIC_ACQUIRE) != generation;
}
/* Call after a measurement of the kind, with state->kinds_lock held. */
void gate_kind_learned(gate_kind *kind);

/* Functions of launch_round.c. All of them concern the calling thread. */
void gate_round_launched(gate_state *state, gate_stream *stream, const penstock_pass *pass);
void gate_round_waited(gate_state *state);
/* Fills in `launch` with the time that should be admitted together with it, and with whether none
 * of that is in flight yet. */
void gate_round_ask(gate_state *state, int grant, const penstock_gate_slot *own, uint32_t permille,
                    penstock_gate_launch *launch);

/* Functions of launch_release.c: releases of the tenant's device memory (ADR 53). */
/* Returns the time of the last release if it is after `since_ns`, otherwise 0. A window that was
 * opened at `since_ns` ended by then at the latest. */
uint64_t gate_release_after(uint64_t since_ns);
/* Returns false if a release lies between the two markers, so that the time between them means
 * nothing: their times may be those of different devices. */
bool gate_are_comparable(const gate_marker *a, const gate_marker *b);
/* Moves the window of a launch to now, because the driver held its call during a release. */
void gate_release_held(const penstock_pass *pass);

/* Functions of launch_end.c. */
void gate_capture_ended(gate_state *state);
/* Removes a stream from the tables after its thread has ended. The stream's work continues. */
void gate_stream_retire(gate_state *state, gate_stream *stream);
/* Frees destroyed streams whose last work is settled. */
void gate_streams_sweep(gate_state *state);

/* Functions of launch_marker.c. */
gate_marker *gate_marker_record(gate_context *context, CUstream stream);
/* Records an event, and once more if the call was held up. If the second call is slow too, the
 * driver itself is slow. */
gate_marker *gate_marker_record_promptly(const gate_stream *stream, CUstream handle);
/* Returns true if the marker's call was held up, so that it is unknown when the device got the
 * event. */
bool gate_marker_is_slow(const gate_marker *marker);
/* Returns when the device got the event, or the latest possible time if its call was held up. */
uint64_t gate_marker_told_ns(const gate_marker *marker);
void gate_marker_put(gate_context *context, gate_marker *marker);
bool gate_marker_is_passed(const gate_marker *marker);
/* Enclose the shim's own calls that a capture in another thread would forbid. */
CUstreamCaptureMode gate_relax(void);
void gate_restore(CUstreamCaptureMode mode);
/* Measures the device time between two passed markers, which is negative if `to` was passed
 * first. */
bool gate_elapsed_ns(const gate_marker *from, const gate_marker *to, int64_t *ns);
void gate_words_prepare(gate_context *context);
/* Clears the state of a context that is gone, together with its events, its clock and the
 * registration of its words. */
void gate_context_clear(gate_context *context);
/* Returns the index of a free done word of the context, and its value, or UINT32_MAX if there is
 * none. */
uint32_t gate_word_take(gate_context *context, uint64_t *value);
void gate_word_put(gate_context *context, uint32_t word);
/* Makes the device write the window's number once the window is done. */
void gate_word_write(gate_stream *stream, gate_window *window);
/* gate_is_through returns true if the device has passed the end of `window`. gate_asks_driver
 * returns true if that check takes a driver call. */
bool gate_asks_driver(const gate_stream *stream, const gate_window *window);
bool gate_is_through(const gate_stream *stream, const gate_window *window);
/* Returns true if the tenant's budget of driver calls on the device has room for `calls` more, with
 * `spare` kept in reserve. */
bool gate_may_call(const gate_stream *stream, uint64_t now_ns, unsigned calls, unsigned spare);
void gate_called(const gate_stream *stream, unsigned calls);

/* Functions of launch_clock.c, which convert device times to the host's clock. */
void gate_clock_prepare(gate_context *context); /* `context` must be current */
void gate_clock_renew(gate_stream *stream, uint64_t now_ns);
/* Finds the time of the marker on the host's clock. `*wrong_ns` receives its possible error. */
bool gate_clock_place(gate_stream *stream, const gate_marker *marker, uint64_t *ns,
                      uint64_t *wrong_ns);
/* Converts a length of device time to one on the host's clock. */
uint64_t gate_clock_passed_ns(gate_stream *stream, uint64_t device_ns, uint64_t *wrong_ns);
void gate_clock_clear(gate_context *context);

/* Functions of launch_charge.c. */
/* Returns what was measured of the part's kind, all zero if nothing was measured or the entry was
 * reused. */
const penstock_cost *gate_measured(const gate_part *part);
/* Returns the learned cost of the window's launches. */
uint64_t gate_learned_ns(const gate_window *window);
/* Returns true if launches of the window's kinds vary so little that the learned cost is better
 * than the host's clock. */
bool gate_is_even(const gate_window *window);
/* Returns when the window should have ended at the latest according to the longest measured
 * launches of its kinds. */
uint64_t gate_latest_ns(const gate_window *window, uint64_t begin_ns);
/* Returns true if the longest recent launch of the window's kinds was several times as long as
 * their mean. */
bool gate_may_be_much_longer(const gate_window *window);
/* Charges device time that is not in the ring of busy time yet. `cost_ns` is its learned cost. */
void gate_charge_fresh(gate_state *state, penstock_process *process, int grant, uint64_t ns,
                       uint64_t cost_ns);
/* Charges the part of [begin, end) that is not charged yet. `cost_ns` is the learned cost of its
 * launches. */
void gate_charge(gate_state *state, gate_stream *stream, uint64_t begin_ns, uint64_t end_ns,
                 uint64_t cost_ns);
/* Charges work of this length whose time is unknown, scaled by the usual overlap of streams.
 * Otherwise streams that wait for each other would seem to run in parallel. */
void gate_charge_somewhere(gate_state *state, const gate_stream *stream, uint64_t ns);
/* Does the same as gate_charge under contention: charges `cost_ns`, anywhere in the interval and
 * after it. */
void gate_charge_contended(gate_state *state, gate_stream *stream, const gate_window *window,
                           uint64_t begin_ns, uint64_t end_ns, uint64_t cost_ns);
/* Learns that the window's launches took `time_ns`. */
void gate_learn(gate_state *state, const gate_window *window, uint64_t time_ns, bool disturbed,
                uint64_t now_ns);
/* Marks the first measurement of the window's kinds as unreliable. It stays as an estimate, and the
 * next measurement replaces it. If it were kept as the shortest sample, it would rule out all
 * longer ones. */
void gate_doubt_first(gate_state *state, const gate_window *window);
/* Returns true if the device was contended during the window, by another tenant or another process
 * of this one. */
bool gate_is_contended(gate_state *state, const gate_stream *stream, const gate_window *window);

/* Functions of launch_calibration.c, for slices in which one process of a tenant launches alone, to
 * measure undisturbed. */
bool gate_calibration_forbids(penstock_process *process, gate_state *state, int grant,
                              uint64_t now_ns, uint64_t *wait_ns);
void gate_calibration_begin(penstock_process *process, gate_state *state, int grant,
                            uint64_t now_ns);
/* Returns true if this process is in its calibration slice. */
bool gate_calibration_is_ours(penstock_process *process, int grant, uint64_t now_ns);
/* Counts a settled window of this process. Returns true if it was measured in the calibration
 * slice, with the process's context on the device from the start. `latest_ns` is when the longest
 * launches of its kinds would have ended. If the window's own end decided instead, short launches
 * would count more often. */
bool gate_calibration_settled(penstock_process *process, gate_state *state, int grant,
                              uint64_t now_ns, uint64_t latest_ns);

/* Functions of launch_sample.c, which choose the windows on idle streams that are measured. */
/* Returns true if a sample is due. `known` is true if the cost of this window is well known. */
bool gate_sample_due(gate_state *state, const gate_stream *stream, bool known, uint64_t now_ns);
/* Returns true if no sample is due yet, and counts this window in that case. */
bool gate_sample_is_far(gate_state *state, bool known);

/* Functions of launch_arrears.c. */
/* Returns true if work that should have ended at `end_ns` may have run on for long because its end
 * was not measured. */
bool gate_is_unseen_pause(uint64_t end_ns, uint64_t now_ns);
/* Returns true if the cost of a launch of the kind that starts now, uncontended, is well known. */
bool gate_is_plain(const gate_state *state, const gate_stream *stream, const gate_kind *kind,
                   uint64_t now_ns);
/* Returns true if the open window can continue with a launch of the kind after a pause, with its
 * interval so far added to the arrears. Otherwise the window would be presumed to have ended. The
 * caller holds the stream's lock. */
bool gate_arrears_may_grow(gate_state *state, const gate_stream *stream,
                           const penstock_gate_slot *own, const gate_kind *kind, uint64_t now_ns);
/* Adds the open window's interval to the arrears and lets the window continue. */
void gate_arrears_grow(gate_stream *stream, uint64_t now_ns);
/* Charges the stream's arrears. The caller holds its `working` flag. */
void gate_arrears_charge(gate_state *state, gate_stream *stream);

/* Functions of launch_window.c. For all of them the caller holds the stream's `working` flag. */
void gate_window_open(gate_state *state, gate_stream *stream, bool sample, uint64_t now_ns);
/* Opens a window for strays if none is open, without a driver call. Otherwise their estimates would
 * remain until the stream's next launch, which may be waiting at the gate because of them. */
void gate_window_adopt(gate_state *state, gate_stream *stream, uint64_t now_ns);
/* Ends the open window by an event, or presumes its end if no event may be recorded. If `word` is
 * true, the device writes the done word; otherwise the caller will wait for the stream. */
void gate_window_end(gate_state *state, gate_stream *stream, bool word);
/* Records the end of the open window after its launches so far. The window stays open. */
void gate_window_roll(gate_state *state, gate_stream *stream);
/* Drops the end of the open window, which no longer rolls. */
void gate_window_unwatch(gate_stream *stream);
/* Ends the open window at its presumed end, without driver calls. */
void gate_window_presume(gate_state *state, gate_stream *stream);
/* Ends the open window of a stream that should have run dry, at the window's rolled end if it has
 * one, otherwise at its presumed end. `handle_is_ours` is true if the stream's handle means this
 * stream in this thread. */
void gate_window_close(gate_state *state, gate_stream *stream, bool handle_is_ours);
/* Calls gate_window_close if the stream should have run dry. */
void gate_window_expire(gate_state *state, gate_stream *stream, uint64_t now_ns);
/* Settles the windows that the device has completed. */
void gate_window_settle(gate_state *state, gate_stream *stream);
/* Settles all windows of a stream that was found to be drained at `waited_ns`. */
void gate_window_drained(gate_state *state, gate_stream *stream, uint64_t waited_ns);
/* Ends the open window of a stream that will be destroyed, and settles what the device has
 * completed. */
void gate_stream_finish(gate_state *state, gate_stream *stream);
/* Removes the events from all windows of a stream whose context will be destroyed. */
void gate_window_unmark(gate_stream *stream);
/* Settles all windows at their presumed ends and removes their estimates, without driver calls. */
void gate_stream_abandon(gate_state *state, gate_stream *stream);
bool gate_stream_claim(gate_stream *stream);
/* Claims the stream only if there is something to settle. */
bool gate_stream_claim_busy(gate_stream *stream);
/* Returns the number of counted launches whose driver calls have not returned. An event recorded
 * now may lie before them. The caller holds the stream's lock. */
uint64_t gate_stream_entering(const gate_stream *stream);
void gate_stream_release(gate_stream *stream);

/* Functions of launch_settle.c. To settle a window is to charge it, learn costs from it and free
 * it. The window must no longer be in any list. */
/* Settles a window by its events, if it has any. `waited_ns` is when a wait for its stream
 * returned, 0 if none did. */
void gate_settle_measured(gate_state *state, gate_stream *stream, gate_window *window,
                          uint64_t waited_ns);
/* Settles a window by the wait that returned at `waited_ns`, or at its presumed end if that is
 * 0. */
void gate_settle_presumed(gate_state *state, gate_stream *stream, gate_window *window,
                          uint64_t waited_ns);
/* Removes the estimates of launches that were charged or never will be. */
void gate_give_up(gate_state *state, const gate_stream *stream, uint64_t ns, uint32_t launches,
                  uint32_t windows);

/* Functions of launch_gate.c. */
penstock_gate_device *gate_device(const penstock_process *process, int grant);
penstock_gate_slot *gate_slot(penstock_process *process, gate_state *state, int grant);
uint32_t gate_permille(const penstock_process *process, int grant);
/* Returns the number of other tenants that may be on the device at the same time. */
uint32_t gate_neighbours(const penstock_process *process, int grant);
bool gate_is_suspended(const penstock_process *process);
bool gate_is_capturing(const gate_state *state, const gate_stream *stream);
/* Returns true if an event may be recorded on the stream, directly before or after a launch on it,
 * without making any other work wait. */
bool gate_may_mark(const gate_state *state, const gate_stream *stream);
/* Returns true if an event may be recorded at any other place, where the program queues nothing
 * itself. */
bool gate_may_mark_apart(const gate_state *state, const gate_stream *stream);
/* Returns true if the driver is queried for this stream's completion because no event may be
 * recorded on the stream. */
bool gate_is_asked(const gate_state *state, const gate_stream *stream);
/* Notes that this thread queues something on the stream. */
void gate_note_blocking(gate_stream *stream);
/* Returns gate_neighbours for the time of the window, which is 0 in a time slice of this tenant. */
uint32_t gate_neighbours_of(const penstock_process *process, int grant, const gate_window *window);
/* Returns the expected cost of a launch of the kind, which is that of a typical launch if the
 * kind's cost is unknown. */
uint64_t gate_likely_ns(const gate_state *state, const gate_kind *kind);
/* Returns true if a launch of `cost_ns` may be admitted now. Otherwise `*wait_ns` receives how long
 * to wait before the next try. Does not wait. */
bool gate_may_go(penstock_process *process, gate_state *state, int grant, uint64_t now_ns,
                 uint64_t cost_ns, uint64_t *wait_ns);

/* Functions of launch_slice.c. */
typedef enum gate_slice_answer { GATE_NO_SLICES, GATE_OWN_SLICE, GATE_NOT_NOW } gate_slice_answer;
bool gate_slices_on(const penstock_process *process, int grant); /* costs one relaxed load */
bool gate_slices_live(const penstock_process *process, int grant, uint64_t now_ns);
/* Returns the start of this tenant's current time slice if the tenant has the device to itself,
 * otherwise 0. */
uint64_t gate_slice_own(const penstock_process *process, int grant, uint64_t now_ns);
gate_slice_answer gate_slice_ask(penstock_process *process, gate_state *state, int grant,
                                 uint64_t now_ns, uint64_t cost_ns, uint64_t *wait_ns);
/* Notes that a thread waits at the gate. */
void gate_slice_wanted(penstock_process *process, gate_state *state, int grant, uint64_t now_ns);
/* Notes that this process keeps the device busy until `until_ns` according to learned costs. */
void gate_slice_launched(penstock_process *process, int grant, uint64_t until_ns);

/* Functions of launch_flight.c, for admitted device time that is not charged yet. */
/* Returns the time in flight of the tenant's other processes, or only the sum of their estimates if
 * `now_ns` is 0. */
uint64_t gate_others_ns(penstock_process *process, gate_state *state, int grant, uint64_t now_ns);
/* Does the same as gate_others_ns for a known own slot, and takes no lock. */
uint64_t gate_other_slots_ns(penstock_process *process, int grant, const penstock_gate_slot *own,
                             uint64_t now_ns);
/* Adds admitted time to the estimate in this process's slot, where other processes see it. */
void gate_admitted(penstock_process *process, penstock_gate_slot *slot, int grant, uint64_t ns);
/* Notes that a window of this process is settled. */
void gate_settled(const penstock_process *process, int grant);
/* Returns true if another process of the tenant has settled a window since this one last did. */
bool gate_others_settled(const penstock_process *process, int grant);
/* Returns the number of the tenant's processes that have unfinished work, including this one. */
uint32_t gate_busy_processes(penstock_process *process, gate_state *state, int grant);
uint64_t gate_in_flight_ns(penstock_process *process, gate_state *state, int grant,
                           uint64_t now_ns);
/* Returns the sum of the estimates only, without work that runs beyond them. */
uint64_t gate_estimates_ns(penstock_process *process, gate_state *state, int grant);

/* Functions of launch_overrun.c. */
/* Returns when the oldest unsettled work of this process on the device started, or 0 if there is
 * none. */
uint64_t gate_oldest_ns(gate_state *state, int grant);
/* Call `begin` when a thread starts to wait for work or at the gate, and `end` when it stops. While
 * the thread waits, other processes see in its slot that the oldest unfinished work (of `stream`,
 * or of all streams if NULL) is still running. */
void gate_watch_begin(penstock_process *process, gate_state *state, int grant, gate_stream *stream);
void gate_watch_update(penstock_process *process, gate_state *state, int grant,
                       gate_stream *stream);
/* `goes_on` is true if no thread waits for the work any more, but the time that it has been running
 * still counts. */
void gate_watch_end(penstock_process *process, gate_state *state, int grant, bool goes_on);
/* Returns the usual duration of the window's launches, or UINT64_MAX if it is unknown for some of
 * them. */
uint64_t gate_usual_ns(const gate_window *window);
/* Returns when the tenant's work that is due first should end, according to its usual duration.
 * Returns 0 if there is no unfinished work or some work of this process was never measured. */
uint64_t gate_expected_ns(penstock_process *process, gate_state *state, int grant, uint64_t now_ns);
/* Returns true if a launch of the kind on the stream may be admitted although the gate is shut,
 * because other work of the tenant overruns; `*overdraft_ns` then receives the overdraft that the
 * launch counts as. Otherwise `*check_ns` receives when to ask again at the latest, 0 if there is
 * no need. */
bool gate_overrun_lets_go(penstock_process *process, gate_state *state, gate_stream *stream,
                          uint64_t now_ns, const gate_kind *kind, uint64_t *check_ns,
                          uint64_t *overdraft_ns);
/* Call when the window has ended. If the work for which its overdraft launches were admitted was
 * due before the window opened and is still running, these launches did not lengthen the device's
 * busy time, so they no longer count. */
void gate_overrun_outlasts(gate_state *state, const gate_stream *stream, const gate_window *window);

/* Functions of launch_overdraft.c, which decide how long a launch waits at the gate while nothing
 * is settled. */
typedef struct gate_patience {
  uint64_t moved_ns;   /* time since which there was no progress */
  uint64_t progress;   /* number of launches settled at the last check */
  bool moved;          /* `progress` had grown since the check before */
  uint64_t overdrafts; /* number of overdraft launches of all processes at the last check */
} gate_patience;
void gate_patience_begin(gate_patience *patience, penstock_process *process, int grant,
                         uint64_t now_ns);
/* Returns true if there has been no progress for so long that the launch is admitted as
 * overdraft. */
bool gate_patience_ends(gate_patience *patience, penstock_process *process, gate_state *state,
                        int grant, uint64_t now_ns);

/* Functions of launch_wait.c. */
/* Waits until the launch may or must be admitted. Returns the overdraft that the launch counts as
 * if it is admitted because other work overruns, otherwise 0. */
uint64_t gate_wait(penstock_process *process, gate_state *state, gate_stream *stream,
                   const gate_kind *kind, uint64_t wait_ns);
/* Settles this process's windows that the device has completed, or should have completed. */
void gate_settle_all(gate_state *state, uint64_t now_ns);
/* Settles the windows of streams that were destroyed, which are then freed. */
void gate_settle_gone(gate_state *state, uint64_t now_ns);

/* Functions of launch_sync.c. */
/* Called before and after calls that wait for a stream, a context (NULL means the current one) or
 * an event. */
void gate_before_wait(CUstream stream, bool per_thread_default);
void gate_after_wait(bool drained); /* `drained` is false if the wait failed */
/* Ends the windows of a context that this thread may end, as far as the budget of calls allows. */
void gate_before_wait_all(CUcontext context);
void gate_after_wait_all(bool drained);
void gate_after_event(void);
