/* The gate's private parts: kinds, contexts, streams, brackets, and how they are kept.
 *
 * A *bracket* covers a run of launches on one stream; every launch lies in one. A timed bracket has
 * an event before and one after, and what lies between is charged. When the stream runs dry inside,
 * or other processes share the device meanwhile, the part charged is what the launches cost by
 * experience (a *learned* charge, clipped to the bracket). Brackets on a backlogged stream are
 * chained: one's end is the next one's start.
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
#define GATE_DRY_SLACK_NS 5000       /* a stream counts as dry this long after it should be */
#define GATE_PARTS 4                 /* kinds that one bracket tells apart */

typedef struct gate_kind {
  struct gate_kind *next;
  penstock_kind_key key;
  uint32_t generation; /* grows when the entry is reused for another kind */
  uint32_t unmeasured; /* launches before the first measurement was in */
  penstock_cost cost;
} gate_kind;

typedef struct gate_marker {
  struct gate_marker *next;
  CUevent event;
  uint32_t references;
} gate_marker;

typedef struct gate_context {
  struct gate_context *next;
  CUcontext handle; /* NULL: free for reuse */
  int grant;
  uint32_t lock;        /* guards the lists and `words_used` */
  gate_marker *markers; /* free ones */
  gate_marker *blanks;  /* free ones without an event */
  uint64_t *done;       /* words that the device writes; NULL: completion is asked for by event */
  CUdeviceptr done_device;
  uint64_t words_used[GATE_DONE_WORDS / 64];
  gate_marker *base; /* device times are counted from this event … */
  uint64_t base_ns;  /* … which happened at this CLOCK_MONOTONIC, as far as known */
} gate_context;

typedef struct gate_part {
  gate_kind *kind;
  uint32_t generation;
  uint32_t launches;
} gate_part;

typedef struct gate_bracket {
  struct gate_bracket *next;
  gate_marker *start; /* NULL: charged by learned cost */
  gate_marker *end;
  bool chained; /* starts where the one before it ended */
  bool crowd;   /* others were on the device when it was opened */
  uint32_t part_count;
  uint64_t number; /* counts up in a stream; the done word's value once it is through */
  uint64_t opened_ns;
  uint64_t lead_ns;     /* from the start event to the first kernel, on a stream that was dry */
  uint64_t estimate_ns; /* all of it is in the slot's estimate */
  uint64_t rest_ns;     /* of that: launches that are not in `parts` */
  uint32_t launches;
  gate_part parts[GATE_PARTS];
} gate_bracket;

typedef struct gate_stream {
  struct gate_stream *next;
  CUstream handle;   /* canonical: the default streams are CU_STREAM_LEGACY or _PER_THREAD */
  const void *owner; /* of a default stream: its context */
  uint64_t thread;   /* of a per-thread default stream */
  gate_context *context;
  uint32_t lock; /* guards what follows */
  bool dead;
  bool working;
  bool interrupted; /* something else than compute was queued since the last bracket */
  gate_bracket *open;
  gate_bracket *oldest; /* closed, waiting for their done word, in order */
  gate_bracket *newest;
  uint64_t number;      /* of the bracket opened last */
  uint64_t drained_ns;  /* when the stream will have run dry, by learned cost; 0: it has */
  uint64_t last_end_ns; /* device time of the last settled end, from the base */
  const gate_marker *last_base;
  uint64_t carry_ns; /* learned charge below the ring's resolution */
  uint64_t stray_ns;
  uint32_t stray_launches;
  uint32_t word; /* index of the done word; UINT32_MAX: none */
} gate_stream;

#define GATE_BUCKETS 1024

typedef struct gate_state {
  uint32_t ready;      /* this process's number; 0 after a fork */
  uint32_t lock;       /* guards the tables and free lists */
  uint32_t generation; /* grows when anything is forgotten: per-thread caches are stale then */
  uint32_t captures;   /* stream captures under way in this process */
  gate_kind *kinds[GATE_BUCKETS];
  gate_stream *streams[GATE_BUCKETS];
  gate_context *contexts;
  gate_kind *free_kinds;
  gate_stream *free_streams;
  gate_bracket *free_brackets;
  uint64_t calls_paid_ns;                        /* budget of driver calls: see gate_may_call */
  uint64_t others_settled[PENSTOCK_MAX_DEVICES]; /* brackets of the tenant's other processes … */
  uint64_t others_seen_ns[PENSTOCK_MAX_DEVICES]; /* … and when they were last seen at work */
  uint64_t typical_ns; /* what a launch of unknown cost is taken to cost; 0: nothing known */
  penstock_gate_slot spare[PENSTOCK_MAX_DEVICES]; /* of a process that got no slot */
} gate_state;

/* launch_state.c */
gate_state *gate_state_get(void);
gate_kind *gate_kind_get(gate_state *state, const penstock_kind_key *key);
gate_stream *gate_stream_get(gate_state *state, CUstream handle, bool per_thread_default);
gate_bracket *gate_bracket_get(gate_state *state);
void gate_bracket_put(gate_state *state, gate_bracket *bracket);
uint64_t gate_now_ns(void);  /* CLOCK_MONOTONIC */
uint64_t gate_tick_ns(void); /* the same, at the last tick: a few ms old, but cheap */

/* launch_marker.c */
gate_marker *gate_marker_record(gate_stream *stream);
void gate_marker_put(gate_context *context, gate_marker *marker);
/* Own calls that a capture in another thread would forbid go between these two. */
CUstreamCaptureMode gate_relax(void);
void gate_restore(CUstreamCaptureMode mode);
bool gate_elapsed_ns(const gate_marker *from, const gate_marker *to, uint64_t *ns);
void gate_words_prepare(gate_context *context);
void gate_context_clear(gate_context *context);
/* A free done word of the context and what stands in it; UINT32_MAX: none. */
uint32_t gate_word_take(gate_context *context, uint64_t *value);
void gate_word_put(gate_context *context, uint32_t word);
/* Has the device write the bracket's number once it is through. */
void gate_word_write(gate_stream *stream, gate_bracket *bracket);
/* Has the device passed the end of `bracket`? */
bool gate_is_through(const gate_stream *stream, const gate_bracket *bracket);
/* Has the shim's budget room for `calls` more driver calls, keeping `spare` back? */
bool gate_may_call(gate_state *state, uint64_t now_ns, unsigned calls, unsigned spare);
void gate_called(gate_state *state, unsigned calls);

/* launch_bracket.c: all take a stream whose `working` flag the caller holds. */
void gate_bracket_open(gate_state *state, gate_stream *stream, bool timed, uint64_t now_ns);
/* `timed`: record its end; else it is charged by learned cost, at once and without driver calls. */
void gate_bracket_close(gate_state *state, gate_stream *stream, bool timed);
/* Closes the open bracket of a stream that has run dry, by experience: without driver calls. */
void gate_bracket_expire(gate_state *state, gate_stream *stream);
void gate_bracket_settle(gate_state *state, gate_stream *stream, uint64_t now_ns);
/* Drops all brackets and gives their estimates up; no driver calls. */
void gate_stream_abandon(gate_state *state, gate_stream *stream);
bool gate_stream_claim(gate_stream *stream);
void gate_stream_release(gate_stream *stream);

/* launch_gate.c */
penstock_gate_device *gate_device(const penstock_process *process, int grant);
penstock_gate_slot *gate_slot(penstock_process *process, gate_state *state, int grant);
/* Estimated device time that is out, of the tenant's other processes and of all. `settled` (may be
 * NULL): how many brackets the others ever settled. */
uint64_t gate_others_ns(penstock_process *process, gate_state *state, int grant, uint64_t *settled);
uint64_t gate_in_flight_ns(penstock_process *process, gate_state *state, int grant);
uint32_t gate_permille(const penstock_process *process, int grant);
/* Tenants beside this one that may be on the device. */
uint32_t gate_neighbours(const penstock_process *process, int grant);
bool gate_is_suspended(const penstock_process *process);
bool gate_is_capturing(const gate_state *state, const gate_stream *stream);
bool gate_may_mark(const gate_state *state, const gate_stream *stream);
/* One look: may a launch go now? Otherwise when to look again. */
bool gate_may_go(penstock_process *process, gate_state *state, int grant, uint64_t now_ns,
                 uint64_t *wait_ns);

/* launch_wait.c */
/* Returns when the launch may go, or must. */
void gate_wait(penstock_process *process, gate_state *state, gate_stream *stream, uint64_t wait_ns);
/* Settles whatever of this process's brackets the device is through with, or should be. */
void gate_settle_all(gate_state *state, uint64_t now_ns);
/* Around calls that wait for a stream, for a context (NULL: the current one), for an event. */
void gate_before_wait(CUstream stream, bool per_thread_default);
void gate_after_wait(CUstream stream, bool per_thread_default);
/* Ends what this thread may end of a context's brackets, as far as the budget of calls goes. */
void gate_before_wait_all(CUcontext context);
void gate_after_wait_all(CUcontext context);
void gate_after_event(void);
