/* What launch-like hooks do before and after the driver's call, and what other hooks must tell the
 * gate. See launch_state.h for the parts behind it and mechanism/gate.h for the arithmetic.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "abi/gate.h"
#include "driver.h"
#include "hooks/limit.h"

/* What a launch is, as far as its cost goes: launches of one kind are expected to cost alike. */
typedef struct penstock_kind_key {
  const void *what; /* function or graph executable; NULL with one of the names below in `shape` */
  uint64_t grid;
  uint64_t block;
  uint64_t shape; /* shared memory, bytes of a memset, … */
} penstock_kind_key;

/* Sizes are told apart to an eighth: near sizes cost alike, and the kinds stay few. */
static inline uint64_t penstock_size_class(uint64_t size) {
  if (size < 16) return size;
  unsigned low = 60 - (unsigned)__builtin_clzll(size);
  return size >> low << low;
}

#define PENSTOCK_KIND_MEMSET ((const void *)1)
#define PENSTOCK_KIND_COPY ((const void *)2)

struct gate_context;
struct gate_stream;
struct gate_kind;

/* One launch on its way through the gate. The caller sets `overlapping`. */
typedef struct penstock_pass {
  struct gate_stream *stream; /* NULL: not gated (capture, no context) */
  struct gate_kind *kind;
  uint32_t generation; /* of `kind`: its entry may be used for another one meanwhile */
  penstock_gate_slot *slot;
  uint64_t bracket;      /* number of the bracket that the launch was counted in; 0: none */
  uint64_t bracket_ns;   /* cost by experience of that bracket, this launch included */
  uint64_t cost_ns;      /* by experience */
  uint64_t estimate_ns;  /* the same, less what overlaps of late; more where it is unknown */
  uint64_t overdraft_ns; /* it went at the shut gate for work that overruns, as this much; else 0 */
  uint64_t enough_ns;    /* cost at which the bracket is ended */
  uint64_t counted_ns;   /* when it was counted there */
  uint64_t turn_ns;      /* begin of the turn that it goes in, alone on the device; 0: none such */
  uint64_t
      entered_ns;    /* its bracket is to be measured closely: when its call was entered; else 0 */
  uint64_t place;    /* number of the bracket that it is counted in, sooner or later; 0: in none */
  uint64_t ahead_ns; /* by so much later the stream should run dry */
  penstock_local_raise raise; /* of its context's local memory, for this launch */
  bool overlapping;           /* programmatic stream serialisation: no marker directly before it */
  bool stray;                 /* counted while another thread was at work on the stream */
  bool guessed;               /* its cost is unknown */
  bool alone;                 /* its bracket is ended right behind it */
  bool rolling;               /* its bracket's end is recorded anew behind it */
} penstock_pass;

/* Waits until the launch may go (never for any completion) and opens a bracket where one is due.
 * Anything but CUDA_SUCCESS is to be returned to the program without calling the driver. */
CUresult penstock_gate_enter(penstock_pass *pass, CUstream stream, bool per_thread_default,
                             const penstock_kind_key *key);

/* Takes in the driver's answer and returns it. */
CUresult penstock_gate_leave(penstock_pass *pass, CUresult result);

/* Something that is not compute is about to be queued on the stream (a copy engine's copy, a host
 * function, a wait): measured time must not run across it. False when it is not queued now: the
 * stream captures, or the driver will refuse. */
bool penstock_gate_interrupt(CUstream stream, bool per_thread_default);
/* The same for all streams of a context. */
void penstock_gate_interrupt_all(CUcontext context);

/* Copy-engine traffic and host functions of the current context's device: metered, not gated. */
void penstock_gate_copied(uint64_t bytes);
void penstock_gate_called_host(void);

/* Before the driver destroys a stream: its work runs on and is charged when it ends. */
void penstock_gate_forget_stream(CUstream stream);
/* Around a call that may be the end of a context: `hold` keeps other threads from making driver
 * calls for what the gate keeps in it, which is settled before if it still lives. Where the context
 * lives on, nothing of that is touched; else its work is charged until now at most, and forgotten.
 */
typedef struct gate_hold {
  struct gate_context *context; /* NULL: nothing of it was gated */
  uint64_t life;
  uint64_t number;
  uint64_t since_ns;
} gate_hold;
gate_hold penstock_gate_context_hold(CUcontext handle, bool lives);
void penstock_gate_context_let_go(gate_hold hold, bool gone);

/* Whether a stream capture of this process may be under way: own calls must mind it then. */
bool penstock_gate_sees_captures(void);

/* A module or library was unloaded: its functions' handles may come back with another meaning. */
void penstock_gate_forget_functions(const void *owner);
/* A function, or a kernel of no context, that `owner` goes with. */
void penstock_gate_function_of(const void *what, const void *owner);
/* The same for one handle: a graph executable that was destroyed. */
void penstock_gate_forget_kind(const void *what);
/* What a handle stands for was changed: the cost stays an estimate and is measured again. */
void penstock_gate_relearn_kind(const void *what);
