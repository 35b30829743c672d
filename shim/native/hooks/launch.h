/* The compute gate's interface for hooks: what launch hooks call before and after the driver's
 * call, and what other hooks must report. The gate's state is in launch_state.h, its arithmetic in
 * mechanism/gate.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "abi/gate.h"
#include "loading/driver.h"
#include "hooks/limit.h"

/* Identifies a kind of launch. Launches of one kind are expected to have similar costs. */
typedef struct penstock_kind_key {
  const void *what; /* function or graph executable, or one of PENSTOCK_KIND_* below */
  uint64_t grid;
  uint64_t block;
  uint64_t shape; /* shared memory, number of bytes of a memset, … */
} penstock_kind_key;

/* Rounds a size down by at most an eighth, so that similar sizes, which have similar costs, share a
 * kind and the number of kinds stays small. */
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
  struct gate_stream *stream; /* NULL if the launch is not gated (capture, no context) */
  struct gate_kind *kind;
  uint32_t generation; /* generation of `kind`, whose entry may be reused for another kind in the
                          meantime */
  penstock_gate_slot *slot;
  uint64_t window;      /* number of the timing window that the launch was counted in, 0 if none */
  uint64_t window_ns;   /* learned cost of that window, including this launch */
  uint64_t cost_ns;     /* learned cost of this launch */
  uint64_t estimate_ns; /* learned cost scaled by the recent overlap of streams, or more if the cost
                           is unknown */
  uint64_t overdraft_ns; /* overdraft that the launch counts as if it was admitted at the shut gate
                            because other work overruns, otherwise 0 */
  uint64_t enough_ns;    /* cost at which the window ends */
  uint64_t counted_ns;   /* time at which the launch was counted in the window */
  uint64_t slice_ns;     /* start of the tenant's time slice that the launch falls in, 0 if none */
  uint64_t entered_ns;   /* time at which the launch call was entered if its window is a sample or
                            rolls, otherwise 0 */
  uint64_t place;        /* number of the window that counts the launch, now or later, 0 if none */
  uint64_t released_ns;  /* time of the tenant's last release of memory before the launch */
  uint64_t ahead_ns;     /* how much later the stream should run dry because of this launch */
  penstock_local_raise raise; /* raise of the context's local memory for this launch */
  bool overlapping; /* programmatic stream serialization, so no marker goes directly before the
                       launch */
  bool stray;       /* counted while another thread held the stream's `working` flag */
  bool guessed;     /* the launch's cost is unknown */
  bool alone;       /* the launch's window ends directly after it */
  bool rolling;     /* the end of the launch's window is recorded again after it */
} penstock_pass;

/* Waits until the launch may be admitted, but never for work to complete, and opens a timing window
 * if one is due. If the result is not CUDA_SUCCESS, return it to the program and do not call the
 * driver. */
CUresult penstock_gate_enter(penstock_pass *pass, CUstream stream, bool per_thread_default,
                             const penstock_kind_key *key);

/* Accounts for the driver's result and returns it. */
CUresult penstock_gate_leave(penstock_pass *pass, CUresult result);

/* Call before work that is not compute is queued on the stream (a copy engine's copy, a host
 * function, a wait), because measured time must not include it. Returns false if the work will not
 * be queued now because the stream captures or the driver will refuse it. */
bool penstock_gate_interrupt(CUstream stream, bool per_thread_default);
/* Does the same for all streams of a context. */
void penstock_gate_interrupt_all(CUcontext context);

/* Count copy-engine traffic and host functions on the current context's device, which are metered
 * but not gated. */
void penstock_gate_copied(uint64_t bytes);
void penstock_gate_called_host(void);

/* Call before the driver destroys a stream. The stream's work continues and is charged when it
 * ends. */
void penstock_gate_forget_stream(CUstream stream);
/* Call `hold` before and `let_go` after a driver call that may end a context. `hold` settles the
 * context's windows if it still lives, and keeps other threads from making driver calls for them.
 * If `gone` is true, `let_go` charges the rest of the context's work, up to now at most, and drops
 * its state; otherwise it changes nothing. */
typedef struct gate_hold {
  struct gate_context *context; /* NULL if the context had no gated work */
  uint64_t life;
  uint64_t number;
  uint64_t since_ns;
} gate_hold;
gate_hold penstock_gate_context_hold(CUcontext handle, bool lives);
void penstock_gate_context_let_go(gate_hold hold, bool gone);

/* Returns true if a stream capture of this process may be under way, which the shim's own calls
 * must not disturb. */
bool penstock_gate_sees_captures(void);

/* Call after a module or library was unloaded, because the handles of its functions may be reused
 * for other functions. */
void penstock_gate_forget_functions(const void *owner);
/* Records that `what`, a function or a context-free kernel, belongs to `owner`. */
void penstock_gate_function_of(const void *what, const void *owner);
/* Call after a graph executable was destroyed, because its handle may be reused. */
void penstock_gate_forget_kind(const void *what);
/* Call after a change of what the handle launches. Its cost is kept as an estimate and measured
 * again. */
void penstock_gate_relearn_kind(const void *what);
