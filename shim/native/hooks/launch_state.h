/* The gate's private parts: kinds, contexts, streams, brackets, and how they are kept.
 *
 * A *bracket* covers a run of launches on one stream without a pause; every launch lies in one. It
 * stands for an interval of device time on the host's clock, and that interval is what is charged,
 * once, however many brackets cover it:
 *   it begins when the bracket before it on the stream ended, or, on an idle stream, a constant
 *     after the launch call was entered (GATE_START_NS); no driver call is made for that;
 *   it ends where an event behind it says (*measured*), a little before the program's own wait for
 *     the stream returned (*waited*), or, where neither is to be had, when it should end by
 *     experience (*presumed*).
 * A *sample* has an event before it as well: exact even when it is short. Samples are drawn by
 * count, not by time, so that long and short launches of one kind are drawn alike. Where the
 * program does not wait for the stream, the event behind *rolls*: it is recorded anew behind each
 * launch that joins, so that the sample holds the whole batch.
 *
 * Launches that come singly and are well known are presumed without a bracket each: the open one
 * goes on to stand for the next, and intervals wait to be charged together (launch_arrears.c).
 *
 * While others share the device (a *crowd*) an interval also holds their time. Then the bracket is
 * charged what it cost by experience, somewhere inside its interval (launch_charge.c).
 *
 * Threads. Everything lies in memory that a fork wipes. `lock`s are held for a few instructions,
 * never across a driver call. A stream's `working` flag says that one thread makes driver calls
 * for its brackets; nobody waits for it but who is about to destroy the stream: others leave their
 * launch on the stream's `stray` account. Objects are reused, never freed.
 */
#pragma once

#include "hooks/launch.h"
#include "mechanism/cost.h"
#include "mechanism/gate.h"
#include "process.h"

#define GATE_BRACKET_NS 1000000      /* a bracket is closed at this much estimated work */
#define GATE_FREE_BRACKET_NS 8000000 /* the same where nothing is gated */
#define GATE_UNKNOWN_NS 500000       /* estimate of a launch before anything was ever measured */
#define GATE_DONE_WORDS 4096         /* streams a context whose completion is read from memory */
#define GATE_HELD_UP_NS 20000        /* a call of the driver that takes longer was held up */
#define GATE_DRY_SLACK_NS 5000       /* a stream counts as dry this long after it should be */
/* In place of a handle: the driver destroyed the context, and it is being forgotten. */
#define GATE_LEAVING ((CUcontext)(intptr_t)-1)
#define GATE_SEVERAL UINT64_MAX /* in place of a thread */
#define GATE_PARTS 4            /* kinds that one bracket tells apart */
/* From entering a launch call to the kernel's begin on an idle device: of common order for this
 * driver family, to be measured on a real device. */
#define GATE_START_NS 3200
/* From a stream's end to the return of a wait for it, at most; beyond, the host was held up. */
#define GATE_LONGEST_WAKE_NS 15000
/* Who takes so long for a launch and the end behind it was stopped, or loaded a module, or waited
 * for room in a queue: the device may have had nothing to do. */
#define GATE_STALL_NS 100000000
#define GATE_FULL_SCALE 1024 /* of gate_state.overlap */

/* Two tables of a fixed size (launch_kind.c). */
#define GATE_KINDS 8192
#define GATE_FUNCTIONS 4096
#define GATE_KIND_WAYS 8

struct gate_function;

typedef struct gate_kind {
  penstock_kind_key key;
  uint32_t generation; /* even; grows when the entry is used for another kind, odd meanwhile */
  uint32_t unmeasured; /* launches before the first measurement was in */
  uint32_t version;    /* grows when what it stands for is changed: an executable's nodes */
  uint32_t arrivals;   /* of neighbours, when it was learned last */
  bool changed;        /* … and not measured since: its cost is an estimate … */
  bool estimated;      /* … and not even one that was measured of this kind before */
  bool doubted;        /* its only measurement is a guess: it is to be measured again */
  bool used;           /* since somebody last looked for a place */
  uint64_t admitted;   /* where what it needs is charged: penstock_admission_of */
  penstock_cost cost;
  struct gate_function *function; /* under state->kinds_lock, as what follows; may be NULL … */
  struct gate_kind *next;         /* … in its list */
  uint64_t size;                  /* what its cost is expected to grow with */
} gate_kind;

typedef struct gate_function {
  const void *what;  /* NULL: free */
  const void *owner; /* the module or library that it goes with … */
  bool sure;         /* … for certain */
  bool used;
  uint32_t count; /* of its kinds, since it is in the table */
  gate_kind *kinds;
  double ns;   /* decaying sum of what its kinds cost as they were measured … */
  double size; /* … and of their sizes */
  uint64_t longest_ns;
} gate_function;

typedef struct gate_marker {
  struct gate_marker *next;
  CUevent event;
  uint32_t references;
  uint64_t recorded_ns; /* when the driver was called for it */
  uint64_t took_ns;     /* the call; a long one leaves open when the device was told */
} gate_marker;

/* Converts device times to the host's clock. */
typedef struct gate_base {
  gate_marker *marker;  /* device times are counted from this event … */
  uint64_t ns;          /* … which happened at this CLOCK_MONOTONIC, … */
  uint64_t late_ns;     /* … or up to so much before */
  double drift;         /* host time that passes beyond each ns of device time, … */
  uint64_t compared_ns; /* … known from comparing them for so long; 0: not yet */
} gate_base;

typedef struct gate_context {
  struct gate_context *next;
  CUcontext handle; /* NULL: free for reuse */
  uint64_t birth;   /* no two contexts have the same */
  uint64_t life;    /* counts the contexts that this stood for */
  int grant;
  uint32_t lock;        /* guards the lists and `words_used` */
  gate_marker *markers; /* free ones */
  gate_marker *blanks;  /* free ones without an event */
  uint64_t *done;       /* words that the device writes; NULL: completion is asked for by event */
  CUdeviceptr done_device;
  uint64_t words_used[GATE_DONE_WORDS / 64];
  CUstream clock; /* the shim's own, always idle: where bases are recorded */
  gate_base base;
  gate_marker *renewal; /* the next base's, recorded but not yet looked at */
  uint64_t host_ns;     /* since this moment the clocks have been compared, … */
  uint64_t device_ns;   /* … so much device time ago */
  /* which thread queues on blocking streams of it; 0: none, GATE_SEVERAL: more */
  uint64_t blocking;
} gate_context;

typedef struct gate_part {
  gate_kind *kind;
  uint32_t generation;
  uint32_t version;
  uint32_t launches;
  uint64_t cost_ns; /* by experience, when they were launched */
} gate_part;

typedef struct gate_bracket {
  struct gate_bracket *next;
  gate_marker *start; /* of a sample, or behind work of another sort; else NULL */
  gate_marker *end;
  bool by_event; /* no word will tell that it is through */
  bool rolling;  /* `end` is recorded anew behind each launch … */
  bool watched;  /* … as the budget goes: no sample was drawn, but ends are to be seen of late */
  bool sample;   /* `start` lies directly before the first launch, on an idle stream */
  bool crowd;    /* others were on the device when it was opened */
  bool quiet;    /* opened in a quiet turn of this process */
  bool waited;   /* the program waited for its stream */
  bool lost;     /* behind work of another sort and without `start`: nobody knows when it began */
  uint32_t part_count;
  uint32_t launches;
  uint32_t ended;   /* those that `end` lies behind: fewer where others' calls are under way */
  uint64_t number;  /* counts up in a stream; the done word's value once it is through */
  uint64_t held_ns; /* how long its launch calls took, if too long, where the end rolls or it is a
                       sample: as likely before their kernels as after */
  uint64_t counted_ns;  /* its last launch was counted then, by the thread that ended it right
                           behind; 0: another did */
  uint64_t opened_ns;   /* its first launch call was entered, our own calls before it made */
  uint64_t turn_ns;     /* begin of the own turn that it lies in, no other tenant beside; 0: none */
  uint64_t estimate_ns; /* its part of the slot's estimate */
  uint64_t cost_ns;     /* what its launches cost by experience, when they were launched */
  uint64_t rest_ns;     /* of that: launches that are not in `parts` */
  uint64_t overdraft_ns; /* what its launches counted as that went for work that overruns */
  gate_part parts[GATE_PARTS];
} gate_bracket;

/* Presumed intervals that are not charged yet: those of brackets with a pause behind, by
 * experience. Launches that come singly are charged many at a time. */
#define GATE_ARREARS 16
typedef struct gate_arrears {
  uint32_t count;
  uint32_t launches;
  uint64_t since_ns;    /* the first began then */
  uint64_t estimate_ns; /* their part of the slot's estimate */
  uint64_t cost_ns;
  struct {
    uint64_t begin_ns;
    uint64_t end_ns;
  } of[GATE_ARREARS];
} gate_arrears;

typedef struct gate_stream {
  struct gate_stream *next;
  CUstream handle;   /* canonical: the default streams are CU_STREAM_LEGACY or _PER_THREAD */
  const void *owner; /* of a default stream: its context */
  uint64_t thread;   /* of a per-thread default stream … */
  uint64_t birth;    /* … and which of the threads of that name */
  gate_context *context;
  uint32_t lock; /* guards what follows */
  uint32_t word; /* index of the done word; UINT32_MAX: none */
  bool dead;
  bool gone; /* the program destroyed it: its last brackets are out, no new ones come */
  bool working;
  uint64_t held;    /* … and this hold of its context has it (launch_end.c); 0: none */
  bool captures;    /* a capture began on it, and has not ended */
  bool blocking;    /* what is queued on the legacy stream waits for it, and it for that */
  bool interrupted; /* something else than compute was queued since the last bracket */
  bool idle;        /* certainly nothing is queued: it was waited for, or its last end was seen */
  bool prompt;      /* a program that waits late or never: a sample's end rolls */
  bool exact;       /* last_end_ns was measured */
  bool stalled; /* the last measured bracket was: what stalls each time is how its launches are */
  uint8_t left_open; /* brackets were left open of late, and ended by experience */
  bool probed;       /* a bracket was measured only to learn that the stream is idle behind it */
  uint64_t
      unclear_ns; /* an end that nobody saw was last taken to be far later than the mean says */
  gate_bracket *open;
  gate_bracket *oldest; /* ended, waiting for their done word, in order */
  gate_bracket *newest;
  uint64_t number;          /* of the bracket opened last */
  uint64_t asked_at;        /* `number` when the driver last said that the stream is busy */
  uint64_t launched;        /* launches ever … */
  uint64_t launched_before; /* … and when the first of `waiters` began to wait for the stream … */
  uint64_t waited_since_ns; /* … which was then */
  uint32_t waiters;
  uint32_t queued;      /* launches that are not settled */
  uint64_t queued_ns;   /* cost by experience of the launches that are not settled */
  uint64_t drained_ns;  /* when the stream will have run dry, by experience */
  uint64_t last_end_ns; /* end of the last settled bracket; 0: none */
  uint64_t stray_ns;    /* estimate of launches without a bracket … */
  uint64_t stray_cost_ns;
  uint32_t stray_launches; /* … how many they are … */
  uint64_t stray_since_ns; /* … and when the first was counted */
  gate_arrears arrears;
  const struct gate_round *round; /* of the thread that launched there last … */
  uint64_t round_ns;              /* … and its `launched_ns` when that run there began */
  /* Launches ever whose driver calls have returned, counted without the lock. It goes on counting
   * when the place is reused, as `launched` does: calls from before may be under way. */
  uint64_t left;
  uint32_t
      generation; /* grows when it is taken out of the tables: what threads remember is stale */
} gate_stream;

/* What a thread looked up last. One block a thread, reused by another when it ends. */
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

/* What a thread launches on several streams of one device in turn (launch_round.c). */
#define GATE_ROUNDS 8
typedef struct gate_round {
  uint32_t device;                  /* its grant, and one; 0: none yet */
  const struct gate_stream *stream; /* it launched on last */
  uint64_t launched_ns;             /* what all its launches there usually take, together */
  uint64_t longest_ns;              /* estimate of its longest round lately; 0: one stream only */
  uint64_t asked_ns;                /* when its next launch first asked to go; 0: not yet */
  uint64_t waits;                   /* the thread's, at its last launch there */
} gate_round;

typedef struct gate_thread {
  struct gate_thread *next; /* a free one */
  uint32_t ready;           /* of the state that it is about: none else after a fork */
  gate_recent_stream streams[GATE_RECENT_STREAMS];
  gate_recent_kind kinds[GATE_RECENT_KINDS];
  gate_round rounds[GATE_ROUNDS];
  uint64_t waits; /* for work, that it has ended */
} gate_thread;

#define GATE_BUCKETS 1024
/* The last list holds the streams that were destroyed while their work ran on. */
#define GATE_GONE GATE_BUCKETS
#define GATE_LISTS (GATE_BUCKETS + 1)

/* Which brackets on idle streams are samples, of those that experience tells enough of (the second)
 * and of others (the first). */
typedef struct gate_draws {
  uint32_t gap;       /* mean number of brackets between two samples */
  uint32_t countdown; /* brackets to the next */
  uint32_t drawn;     /* since window_ns … */
  uint32_t missed;    /* … and of them without budget */
  uint64_t window_ns;
} gate_draws;

typedef struct gate_state {
  uint32_t ready;      /* this process's number; 0 after a fork */
  uint32_t lock;       /* guards the tables and free lists */
  uint32_t kinds_lock; /* guards those of kinds and functions, and what is learned */
  uint32_t captures;   /* stream captures under way in this process */
  bool few_queues;     /* CUDA_DEVICE_MAX_CONNECTIONS: streams wait for what others queued */
  bool launches_block; /* CUDA_LAUNCH_BLOCKING: launch calls return when their kernel is done */
  uint32_t next_way;   /* where the next look for a place begins */
  uint32_t kind_tags[GATE_KINDS]; /* of their keys' hashes; 0: free */
  gate_kind kinds[GATE_KINDS];
  gate_function functions[GATE_FUNCTIONS];
  gate_stream *streams[GATE_LISTS];
  gate_context *contexts;
  gate_thread *free_threads;
  gate_stream *free_streams;
  gate_bracket *free_brackets;
  uint32_t arrivals; /* how often a tenant that was alone on a device was not any more … */
  bool accompanied[PENSTOCK_MAX_DEVICES];        /* … and whether it is now */
  uint64_t others_seen_ns[PENSTOCK_MAX_DEVICES]; /* when other processes were last seen at work */
  uint64_t drained_ns[PENSTOCK_MAX_DEVICES];     /* when all streams should be dry, by experience */
  uint32_t waiters[PENSTOCK_MAX_DEVICES];        /* threads that wait for work, or at the gate */
  uint64_t let_go_ns[PENSTOCK_MAX_DEVICES];      /* when a launch last went at a shut gate */
  uint64_t quiet_next_ns[PENSTOCK_MAX_DEVICES];  /* the next quiet turn, not before */
  uint64_t quiet_turns[PENSTOCK_MAX_DEVICES];    /* begun by this process */
  uint32_t quiet_settled[PENSTOCK_MAX_DEVICES];  /* brackets settled in the one under way */
  gate_draws draws[2];
  uint64_t sampled_ns; /* the last time that a draw was let have one */
  uint64_t unseen_ns;  /* the last pause in which launches may have run on that nobody measured */
  uint32_t random;
  uint32_t overlap;   /* charged / cost by experience, in 1/1024: below 1 when streams overlap */
  uint32_t late_ends; /* ends that the device passed before their calls returned, of late */
  double charged_ns;  /* decaying sums behind it */
  double cost_ns;
  uint64_t forgiven_ns; /* when a wait was last taken to have been late for the host's sake */
  uint64_t wake_ns;     /* from a stream's end to the return of the program's wait */
  uint64_t typical_ns;  /* what a launch of unknown cost is taken to cost; 0: nothing known */
  penstock_gate_slot spare[PENSTOCK_MAX_DEVICES]; /* of a process that got no slot */
} gate_state;

/* launch_state.c */
gate_state *gate_state_get(void);
/* NULL: no memory, nothing can be remembered. */
gate_thread *gate_thread_get(gate_state *state);
gate_stream *gate_stream_get(gate_state *state, CUstream handle, bool per_thread_default);
/* The list that such a stream is in. */
unsigned gate_stream_list(CUstream handle, const void *owner, uint64_t thread);
/* Why there is none, for a launch: CUDA_SUCCESS where the driver will refuse it itself, for want of
 * a context or of such a stream; else what it is to be refused with. */
CUresult gate_stream_missing(CUstream handle);
gate_bracket *gate_bracket_get(gate_state *state);
void gate_bracket_put(gate_state *state, gate_bracket *bracket);
uint64_t gate_now_ns(void);  /* CLOCK_MONOTONIC */
uint64_t gate_tick_ns(void); /* the same, at the last tick: a few ms old, but cheap */

/* launch_kind.c */
/* The kind, and the generation that goes with it: its entry may be another's at any time. */
gate_kind *gate_kind_get(gate_state *state, const penstock_kind_key *key, uint32_t *generation);
static inline bool gate_kind_is_gone(const gate_kind *kind, uint32_t generation) {
  return __atomic_load_n(&kind->generation, __ATOMIC_ACQUIRE) != generation;
}
/* Its cost was just learned. Under state->kinds_lock. */
void gate_kind_learned(gate_kind *kind);

/* launch_round.c, of the calling thread */
void gate_round_launched(gate_state *state, gate_stream *stream, const penstock_pass *pass);
void gate_round_waited(gate_state *state);
/* Says in `launch` what is to go together with it, and whether nothing of that is out yet. */
void gate_round_ask(gate_state *state, int grant, const penstock_gate_slot *own, uint32_t permille,
                    penstock_gate_launch *launch);

/* launch_end.c */
void gate_capture_ended(gate_state *state);
/* Takes a stream out of the tables whose thread has ended: its work runs on. */
void gate_stream_retire(gate_state *state, gate_stream *stream);
/* Frees the streams that are gone and whose last work is settled. */
void gate_streams_sweep(gate_state *state);

/* launch_marker.c */
gate_marker *gate_marker_record(gate_context *context, CUstream stream);
/* Once more if the call was held up: what is slow twice is how the driver is. */
gate_marker *gate_marker_record_promptly(const gate_stream *stream, CUstream handle);
/* Was its call held up, so that it is open when the device was told? */
bool gate_marker_is_slow(const gate_marker *marker);
/* When the device was told of it, at the latest if its call was held up. */
uint64_t gate_marker_told_ns(const gate_marker *marker);
void gate_marker_put(gate_context *context, gate_marker *marker);
bool gate_marker_is_passed(const gate_marker *marker);
/* Own calls that a capture in another thread would forbid go between these two. */
CUstreamCaptureMode gate_relax(void);
void gate_restore(CUstreamCaptureMode mode);
/* Device time between two markers that the device has passed, below zero the other way round. */
bool gate_elapsed_ns(const gate_marker *from, const gate_marker *to, int64_t *ns);
void gate_words_prepare(gate_context *context);
/* The context is gone, and its events, its clock and the registration of its words with it. */
void gate_context_clear(gate_context *context);
/* A free done word of the context and what stands in it; UINT32_MAX: none. */
uint32_t gate_word_take(gate_context *context, uint64_t *value);
void gate_word_put(gate_context *context, uint32_t word);
/* Has the device write the bracket's number once it is through. */
void gate_word_write(gate_stream *stream, gate_bracket *bracket);
/* Has the device passed the end of `bracket`? Some have to be asked for by a call of the driver. */
bool gate_asks_driver(const gate_stream *stream, const gate_bracket *bracket);
bool gate_is_through(const gate_stream *stream, const gate_bracket *bracket);
/* Has the budget of driver calls, one a tenant and device, room for `calls` more, keeping `spare`
 * back? */
bool gate_may_call(const gate_stream *stream, uint64_t now_ns, unsigned calls, unsigned spare);
void gate_called(const gate_stream *stream, unsigned calls);

/* launch_clock.c: device times on the host's clock. */
void gate_clock_prepare(gate_context *context); /* the context is current */
void gate_clock_renew(gate_stream *stream, uint64_t now_ns);
/* `*wrong_ns`: by how much that may be wrong. */
bool gate_clock_place(gate_stream *stream, const gate_marker *marker, uint64_t *ns,
                      uint64_t *wrong_ns);
/* How much time passed on the host's clock while that much did on the device's. */
uint64_t gate_clock_passed_ns(gate_stream *stream, uint64_t device_ns, uint64_t *wrong_ns);
void gate_clock_clear(gate_context *context);

/* launch_charge.c */
/* What was measured of launches of that kind; all zero: nothing, or it is not known any more. */
const penstock_cost *gate_measured(const gate_part *part);
/* What the bracket's launches cost by experience. */
uint64_t gate_learned_ns(const gate_bracket *bracket);
/* Do launches of its kinds take so much alike that experience tells better than a host's clock? */
bool gate_is_even(const gate_bracket *bracket);
/* When the bracket should have ended, by the longest launches of its kinds that were measured. */
uint64_t gate_latest_ns(const gate_bracket *bracket, uint64_t begin_ns);
/* Was the longest recent launch of its kinds several times as long as their mean? */
bool gate_may_be_much_longer(const gate_bracket *bracket);
/* Charges busy time of the device that nobody was charged for. `cost_ns`: by experience. */
void gate_charge_fresh(gate_state *state, penstock_process *process, int grant, uint64_t ns,
                       uint64_t cost_ns);
/* Charges what of [begin, end) is not charged yet. `cost_ns`: of its launches by experience. */
void gate_charge(gate_state *state, gate_stream *stream, uint64_t begin_ns, uint64_t end_ns,
                 uint64_t cost_ns);
/* Charges work of that length of which nobody knows when it ran: as much of it as was new of other
 * work by experience. Streams that wait for each other would else seem to run side by side. */
void gate_charge_somewhere(gate_state *state, const gate_stream *stream, uint64_t ns);
/* As gate_charge, in a crowd: what it cost, anywhere in the interval and in what follows it. */
void gate_charge_in_crowd(gate_state *state, gate_stream *stream, const gate_bracket *bracket,
                          uint64_t begin_ns, uint64_t end_ns, uint64_t cost_ns);
/* Takes in that the bracket's launches took `time_ns`. */
void gate_learn(gate_state *state, const gate_bracket *bracket, uint64_t time_ns, bool disturbed,
                uint64_t now_ns);
/* What was just learned of its kinds for the first time is a guess: it stays the estimate, and the
 * next measurement replaces it. As the shortest sample it would rule out all that are longer. */
void gate_doubt_first(gate_state *state, const gate_bracket *bracket);
/* Were others on the device during the bracket: another tenant, or a process of this one? */
bool gate_in_crowd(gate_state *state, const gate_stream *stream, const gate_bracket *bracket);

/* launch_quiet.c: turns in which one process of a tenant launches alone, to measure undisturbed. */
bool gate_quiet_forbids(penstock_process *process, gate_state *state, int grant, uint64_t now_ns,
                        uint64_t *wait_ns);
void gate_quiet_begin(penstock_process *process, gate_state *state, int grant, uint64_t now_ns);
/* Is this process in its quiet turn? */
bool gate_quiet_is_ours(penstock_process *process, int grant, uint64_t now_ns);
/* One of its brackets is settled. Was it measured in the quiet turn, with its context on the device
 * from the start? `latest_ns`: when the longest of its kinds would have ended that began with it.
 * If only those counted that end in the turn, short ones would count more often. */
bool gate_quiet_settled(penstock_process *process, gate_state *state, int grant, uint64_t now_ns,
                        uint64_t latest_ns);

/* launch_sample.c: which brackets on idle streams are measured. */
/* Is the next one due? `known`: experience tells enough of this bracket. */
bool gate_sample_due(gate_state *state, const gate_stream *stream, bool known, uint64_t now_ns);
/* Is it not due yet? Then this one is counted. */
bool gate_sample_is_far(gate_state *state, bool known);

/* launch_arrears.c */
/* Behind work that should have ended at `end_ns`, and of which nobody saw the end: may it have run
 * on for long since? */
bool gate_is_unseen_pause(uint64_t end_ns, uint64_t now_ns);
/* Is enough known of what a launch of the kind takes that begins now, with nothing beside it? */
bool gate_is_plain(const gate_state *state, const gate_stream *stream, const gate_kind *kind,
                   uint64_t now_ns);
/* A launch of the kind comes behind a pause. Could the open bracket, which would be presumed to be
 * over, stand for the launch from now on, with its own interval among the arrears? Under the
 * stream's lock. */
bool gate_arrears_may_grow(gate_state *state, const gate_stream *stream,
                           const penstock_gate_slot *own, const gate_kind *kind, uint64_t now_ns);
/* Has it so. */
void gate_arrears_grow(gate_stream *stream, uint64_t now_ns);
/* Charges the stream's arrears. The caller holds its `working` flag. */
void gate_arrears_charge(gate_state *state, gate_stream *stream);

/* launch_bracket.c: all take a stream whose `working` flag the caller holds. */
void gate_bracket_open(gate_state *state, gate_stream *stream, bool sample, uint64_t now_ns);
/* Gives strays a bracket where none is open, without a call of the driver: else their estimates
 * would stand until the stream's next launch, which may wait for just that. */
void gate_bracket_adopt(gate_state *state, gate_stream *stream, uint64_t now_ns);
/* Ends the open bracket by an event. `word`: the device is to say when it is there; without, the
 * caller learns so from a wait. Presumes the end where no event may be recorded. */
void gate_bracket_end(gate_state *state, gate_stream *stream, bool word);
/* Records an event behind what the open bracket holds, which stays open. */
void gate_bracket_roll(gate_state *state, gate_stream *stream);
/* Lets go of the open bracket's end, which rolls no more. */
void gate_bracket_unwatch(gate_stream *stream);
/* Ends the open bracket by experience, without driver calls. */
void gate_bracket_presume(gate_state *state, gate_stream *stream);
/* Ends the open bracket where it was rolled to, else by experience: the stream should have run dry.
 * `handle_is_ours`: the stream's handle means this stream in this thread. */
void gate_bracket_close(gate_state *state, gate_stream *stream, bool handle_is_ours);
/* The same, if the stream has run dry. */
void gate_bracket_expire(gate_state *state, gate_stream *stream, uint64_t now_ns);
/* Settles what the device is through with. */
void gate_bracket_settle(gate_state *state, gate_stream *stream);
/* Settles everything: the stream was seen to be drained at `waited_ns`. */
void gate_bracket_drained(gate_state *state, gate_stream *stream, uint64_t waited_ns);
/* Ends the open bracket, and settles what the device is through with: the stream is going. */
void gate_stream_finish(gate_state *state, gate_stream *stream);
/* Takes their events from all brackets: the context is going. */
void gate_bracket_unmark(gate_stream *stream);
/* Drops all brackets, each charged by experience, and gives their estimates up; no driver calls. */
void gate_stream_abandon(gate_state *state, gate_stream *stream);
bool gate_stream_claim(gate_stream *stream);
bool gate_stream_claim_busy(gate_stream *stream); /* only where something is to be settled */
/* How many launches are counted whose driver calls have not returned: what is recorded now may lie
 * before them. Under the stream's lock. */
uint64_t gate_stream_entering(const gate_stream *stream);
void gate_stream_release(gate_stream *stream);

/* launch_settle.c: a bracket that is in no list any more is charged, learned from and put back. */
/* By its events, if it has any. `waited_ns`: when a wait for its stream returned; 0: none did. */
void gate_settle_measured(gate_state *state, gate_stream *stream, gate_bracket *bracket,
                          uint64_t waited_ns);
/* By that wait, else by experience. */
void gate_settle_presumed(gate_state *state, gate_stream *stream, gate_bracket *bracket,
                          uint64_t waited_ns);
/* Gives up the estimates of launches, which were charged or never will be. */
void gate_give_up(gate_state *state, const gate_stream *stream, uint64_t ns, uint32_t launches,
                  uint32_t brackets);

/* launch_gate.c */
penstock_gate_device *gate_device(const penstock_process *process, int grant);
penstock_gate_slot *gate_slot(penstock_process *process, gate_state *state, int grant);
uint32_t gate_permille(const penstock_process *process, int grant);
/* Tenants beside this one that may be on the device. */
uint32_t gate_neighbours(const penstock_process *process, int grant);
bool gate_is_suspended(const penstock_process *process);
bool gate_is_capturing(const gate_state *state, const gate_stream *stream);
/* May an event be recorded on the stream, directly before or behind a launch on it, so that nobody
 * waits who did not before? */
bool gate_may_mark(const gate_state *state, const gate_stream *stream);
/* The same anywhere else, where the program has nothing that others would wait for. */
bool gate_may_mark_apart(const gate_state *state, const gate_stream *stream);
/* Is it asked whether it has run dry, for no event may tell? */
bool gate_is_asked(const gate_state *state, const gate_stream *stream);
/* Something is queued on it by this thread. */
void gate_note_blocking(gate_stream *stream);
/* The same, of those that were when the bracket was made: none in an own turn. */
uint32_t gate_neighbours_of(const penstock_process *process, int grant,
                            const gate_bracket *bracket);
/* What a launch of the kind will likely take: as much as others do where it is unknown. */
uint64_t gate_likely_ns(const gate_state *state, const gate_kind *kind);
/* One look: may a launch of `cost_ns` go now? Otherwise when to look again. */
bool gate_may_go(penstock_process *process, gate_state *state, int grant, uint64_t now_ns,
                 uint64_t cost_ns, uint64_t *wait_ns);

/* launch_turn.c */
typedef enum gate_turn_answer { GATE_NO_TURNS, GATE_OWN_TURN, GATE_NOT_NOW } gate_turn_answer;
bool gate_turns_on(const penstock_process *process, int grant); /* one relaxed load */
bool gate_turns_live(const penstock_process *process, int grant, uint64_t now_ns);
/* The begin of the turn that this tenant is in, alone on the device; 0: it is in none such. */
uint64_t gate_turn_own(const penstock_process *process, int grant, uint64_t now_ns);
gate_turn_answer gate_turn_ask(penstock_process *process, gate_state *state, int grant,
                               uint64_t now_ns, uint64_t cost_ns, uint64_t *wait_ns);
/* A thread waits at the gate. */
void gate_turn_wanted(penstock_process *process, gate_state *state, int grant, uint64_t now_ns);
/* By experience this process keeps the device busy until then. */
void gate_turn_launched(penstock_process *process, int grant, uint64_t until_ns);

/* launch_flight.c: admitted device time that is not charged yet. */
/* Of the tenant's other processes. `now_ns`: 0: their estimates alone. */
uint64_t gate_others_ns(penstock_process *process, gate_state *state, int grant, uint64_t now_ns);
/* The same, where the own slot is known: no lock is taken. */
uint64_t gate_beside_ns(penstock_process *process, int grant, const penstock_gate_slot *own,
                        uint64_t now_ns);
/* Adds what was admitted to the estimate of this process's slot, where others see it. */
void gate_admitted(penstock_process *process, penstock_gate_slot *slot, int grant, uint64_t ns);
/* A bracket of this process is settled. */
void gate_settled(const penstock_process *process, int grant);
/* Did another process of the tenant settle one since this one did? */
bool gate_others_settled(const penstock_process *process, int grant);
/* Processes of the tenant that have work out, this one included. */
uint32_t gate_busy_processes(penstock_process *process, gate_state *state, int grant);
uint64_t gate_in_flight_ns(penstock_process *process, gate_state *state, int grant,
                           uint64_t now_ns);
/* The estimates alone: without what runs on beyond them. */
uint64_t gate_estimates_ns(penstock_process *process, gate_state *state, int grant);

/* launch_overrun.c */
/* When the oldest unsettled work of this process on the device began; 0: there is none. */
uint64_t gate_oldest_ns(gate_state *state, int grant);
/* Between `begin` and `end` a thread waits, for work or at the gate, and so vouches that the oldest
 * unfinished work (of `stream`; NULL: of all) is still running: others see it run on. */
void gate_watch_begin(penstock_process *process, gate_state *state, int grant, gate_stream *stream);
void gate_watch_look(penstock_process *process, gate_state *state, int grant, gate_stream *stream);
/* `goes_on`: nobody waits for it any more, but for how long it has been running still counts. */
void gate_watch_end(penstock_process *process, gate_state *state, int grant, bool goes_on);
/* What the bracket's launches usually take; UINT64_MAX: of some nobody knows. */
uint64_t gate_usual_ns(const gate_bracket *bracket);
/* When the tenant's work that is due first should have ended, by what it usually takes; 0: some of
 * this process's was never measured, or nothing is out. */
uint64_t gate_expected_ns(penstock_process *process, gate_state *state, int grant, uint64_t now_ns);
/* May a launch of the kind on the stream go at the shut gate, for other work of the tenant's runs
 * on longer than it should? `*overdraft_ns`: if so, what it counts as; `*look_ns`: if not, when to
 * look again at the latest; 0: no need to. */
bool gate_overrun_lets_go(penstock_process *process, gate_state *state, gate_stream *stream,
                          uint64_t now_ns, const gate_kind *kind, uint64_t *look_ns,
                          uint64_t *overdraft_ns);
/* The bracket is through. If what ran beside it was due before it was opened, and runs still, then
 * what went for that took no time that the device would not have been busy: it counts no longer. */
void gate_overrun_outlasts(gate_state *state, const gate_stream *stream,
                           const gate_bracket *bracket);

/* launch_debt.c: patience of a launch at the gate. */
typedef struct gate_patience {
  uint64_t moved_ns; /* nothing has moved since */
  uint64_t progress; /* what was settled when it was looked at last … */
  bool moved;        /* … more than the time before */
  uint64_t debts;    /* of all threads */
} gate_patience;
void gate_patience_begin(gate_patience *patience, penstock_process *process, int grant,
                         uint64_t now_ns);
/* Has nothing moved for so long that the launch goes as debt? */
bool gate_patience_ends(gate_patience *patience, penstock_process *process, gate_state *state,
                        int grant, uint64_t now_ns);

/* launch_wait.c */
/* Returns when the launch may go, or must: what it counts as if it goes for work that overruns, or
 * 0.
 */
uint64_t gate_wait(penstock_process *process, gate_state *state, gate_stream *stream,
                   const gate_kind *kind, uint64_t wait_ns);
/* Settles whatever of this process's brackets the device is through with, or should be. */
void gate_settle_all(gate_state *state, uint64_t now_ns);
/* The same for streams that were destroyed, which are freed then. */
void gate_settle_gone(gate_state *state, uint64_t now_ns);

/* launch_sync.c */
/* Around calls that wait for a stream, for a context (NULL: the current one), for an event. */
void gate_before_wait(CUstream stream, bool per_thread_default);
void gate_after_wait(bool drained); /* false: the wait failed */
/* Ends what this thread may end of a context's brackets, as far as the budget of calls goes. */
void gate_before_wait_all(CUcontext context);
void gate_after_wait_all(bool drained);
void gate_after_event(void);
