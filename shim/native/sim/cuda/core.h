/* Internal interface of the simulated driver: the objects behind the handles, and the checks at the
 * start of each call.
 *
 * Locking: `sim_big_lock` guards the objects of this process. A device's lock (sim/machine) is
 * taken only after the big lock. No thread waits for a device while it holds the big lock. The
 * functions of sim/machine never call back.
 */
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#include <cudaProfiler.h>
#pragma GCC visibility pop
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim/machine/model.h"

#define SIM_LIMITS 16
#define SIM_MIB (1ull << 20)
#define SIM_CONTENT_BYTES \
  (64 * SIM_MIB) /* bytes of an allocation that keep their contents; the rest reads as zero */

enum sim_type {
  SIM_CONTEXT = 1,
  SIM_STREAM,
  SIM_EVENT,
  SIM_MODULE,
  SIM_LIBRARY,
  SIM_FUNCTION,
  SIM_ARRAY,
  SIM_MIPMAP,
  SIM_POOL,
  SIM_PHYSICAL,
  SIM_GRAPH,
  SIM_NODE,
  SIM_EXEC,
  SIM_LINK,
  SIM_LINKING,
  SIM_EXTERNAL,
  SIM_OTHER,
};

typedef struct sim_context sim_context;
typedef struct sim_stream sim_stream;
typedef struct sim_capture sim_capture;
typedef struct sim_pool sim_pool;
typedef struct sim_library sim_library;

/* A device as this process sees it, after applying CUDA_VISIBLE_DEVICES. */
typedef struct sim_gpu {
  int ordinal;
  uint32_t device; /* index of the device in the machine */
  const sim_profile *profile;
  const uint8_t *uuid;
  uint32_t client; /* SIM_NONE before the first context */
  uint64_t served; /* device and client as one word, for the service thread */
  bool has_service;
  sim_context *primary; /* NULL while inactive */
  unsigned primary_refs, primary_flags;
  sim_pool *default_pool, *current_pool;
  struct sim_slab *slabs;           /* small allocations of all contexts */
  struct sim_graph_use *graph_uses; /* graph launches that are running or queued */
  uint64_t graph_bytes, graph_high_bytes, graph_used_bytes, graph_used_high_bytes;
} sim_gpu;

struct sim_context {
  sim_gpu *gpu;
  sim_context *next; /* next in the list of all contexts, including destroyed ones */
  uint64_t id;       /* never reused in this process */
  uint32_t number;   /* high bits of the numbers of the context's streams */
  uint32_t next_stream, next_queue;
  unsigned flags, api_version;
  bool primary, alive;
  int attached;    /* number of references by cuCtxAttach */
  CUresult sticky; /* error that persists until the context is destroyed */
  size_t limits[SIM_LIMITS];
  /* memory of the context itself, of its limits and of its local memory */
  uint64_t charged_bytes;
  /* largest local memory for one thread over all kernels launched so far */
  uint64_t local_bytes;
  sim_stream *legacy;
  sim_stream *streams;         /* all streams, including the default ones */
  unsigned capturing;          /* number of streams that are capturing */
  unsigned capturing_blocking; /* number of blocking streams that are capturing */
  CUfunc_cache cache;
  CUsharedconfig shared_config;
  uint64_t peers; /* one bit for each ordinal to which peer access is enabled */
  unsigned sms;   /* multiprocessors of a green context, 0 for the whole device */
  /* primary context that a green context belongs to, NULL if this is not a green context */
  sim_context *green_of;
};

struct sim_stream {
  sim_context *ctx;
  sim_stream *next;
  uint32_t lane;
  uint32_t lane_kind; /* enum sim_lane_kind */
  uint8_t queue;      /* hardware queue of the stream's work, 0 if none */
  unsigned flags;
  int priority;
  uint64_t id;
  sim_capture *capture;           /* NULL if not capturing */
  sim_stream *capture_next;       /* next in the list of streams that take part in the capture */
  struct sim_node **capture_tail; /* nodes that the next captured node depends on */
  size_t capture_tail_count;
};

typedef struct sim_event {
  sim_context *ctx;
  sim_gpu *gpu;
  unsigned flags;
  /* position of the event's cell; that of the exporting process if the event is imported */
  uint32_t device, client, cell;
  bool imported, exported;
  bool recorded;
  /* capture in which the event was last recorded, at capture_nodes; 0 if none */
  uint64_t capture_id;
  struct sim_node **capture_nodes;
  size_t capture_node_count;
} sim_event;

/* entry.c */
typedef struct sim_thread {
  bool per_thread;  /* whether the current call uses the per-thread default stream */
  bool in_callback; /* true in a host function, which must not call the driver */
  const char *call; /* base name of the current call */
  uint64_t entered_ns;
  CUstreamCaptureMode mode; /* cuThreadExchangeStreamCaptureMode */
  char *param_bytes;        /* parameters of the current launch; a graph node copies them */
  void **param_list;
  int calls;       /* nesting depth of this thread's calls */
  int inside;      /* the same, counted through callbacks */
  bool counted;    /* this thread is counted as inside a call that a lock waits for */
  CUresult failed; /* last error in the outermost call */
  int depth;       /* depth of the context stack */
  sim_context *stack[32];
  struct {
    uint64_t ctx_id;
    sim_stream *stream;
  } default_streams[8];
} sim_thread;
/* Allocated on the heap, because a library that is opened late gets little thread-local storage. */
extern __thread sim_thread *sim_self_pointer;
/* set by the _ptsz/_ptds entries just before they jump */
extern __thread bool sim_next_per_thread;
sim_thread *sim_thread_new(void);
#define sim_self (*(sim_self_pointer ? sim_self_pointer : sim_thread_new()))

typedef struct sim_process {
  sim_machine *machine;
  bool launches_block;          /* CUDA_LAUNCH_BLOCKING */
  bool loads_lazily;            /* CUDA_MODULE_LOADING: true unless EAGER */
  bool forces_ptx, forbids_ptx; /* CUDA_FORCE_PTX_JIT, CUDA_DISABLE_PTX_JIT */
  uint32_t connections;         /* CUDA_DEVICE_MAX_CONNECTIONS: hardware queues per context */
  int gpu_count;
  sim_gpu gpus[SIM_MAX_DEVICES];
} sim_process;
extern sim_process sim_here;

void sim_big_lock(void);
void sim_big_unlock(void);
bool sim_initialized(void);
CUresult sim_enter(const char *call);
CUresult sim_enter_context(const char *call, sim_context **ctx);
/* A call of the driver. It ends when its function returns, on any path; log callbacks then receive
 * its error. */
typedef struct sim_call {
  CUresult result;
  bool entered;
} sim_call;
sim_call sim_call_begin(const char *call, sim_context **ctx);
void sim_call_end(sim_call *call);
/* Runs a callback of the program during a call. The callback may call the driver itself. */
#define SIM_CALL_BACK(what)                     \
  do {                                          \
    const char *call_ = sim_self.call;          \
    uint64_t entered_ns_ = sim_self.entered_ns; \
    bool per_thread_ = sim_self.per_thread;     \
    int calls_ = sim_self.calls;                \
    sim_self.calls = 0;                         \
    what;                                       \
    sim_self.calls = calls_;                    \
    sim_self.call = call_;                      \
    sim_self.entered_ns = entered_ns_;          \
    sim_self.per_thread = per_thread_;          \
  } while (0)
void sim_spend(uint32_t ns); /* makes the call last at least this long, counted from its start */

/* Every exported function starts with one of these macros. */
#define SIM_CALL_OF(call, ctx)                                                                \
  sim_call call_under_way __attribute__((cleanup(sim_call_end))) = sim_call_begin(call, ctx); \
  if (call_under_way.result != CUDA_SUCCESS) return call_under_way.result
#define ENTER(call) SIM_CALL_OF(call, NULL)
#define ENTER_CONTEXT(call) \
  sim_context *ctx;         \
  SIM_CALL_OF(call, &ctx)
#define TRY(expression)                                  \
  do {                                                   \
    CUresult tried_ = (expression);                      \
    if (tried_ != CUDA_SUCCESS) return sim_fail(tried_); \
  } while (0)
#define REQUIRE(condition, error)             \
  do {                                        \
    if (!(condition)) return sim_fail(error); \
  } while (0)

/* Records the error that the call will return. */
static inline CUresult sim_fail(CUresult error) { return sim_self.failed = error; }

/* handle.c: the set of live handles */
void sim_handle_add(const void *handle, enum sim_type type);
void sim_handle_remove(const void *handle);
bool sim_handle_is(const void *handle, enum sim_type type);
/* returns true as soon as `visit` does, for a live handle of the type */
bool sim_handle_any(enum sim_type type, bool (*visit)(void *handle));
uint64_t sim_next_id(void);

/* logs.c: passes an error to the log callbacks; called without locks */
void sim_logs_tell(CUresult error);

/* init.c */
void sim_driver_start(uint64_t begun_ns); /* takes the time of creating an instance of the driver */
CUresult sim_gpu_of(CUdevice device, sim_gpu **gpu);

/* context.c */
sim_context *sim_current(void);
/* returns the context's sticky error, read from the device */
CUresult sim_context_error(sim_context *ctx);
CUresult sim_attach_gpu(sim_gpu *gpu);
/* includes destroyed contexts, which are not alive; the caller holds the big lock */
sim_context *sim_contexts(void);
/* The caller holds the big lock. */
CUresult sim_context_make(sim_gpu *gpu, unsigned flags, bool primary, sim_context **out);
void sim_context_destroy(sim_context *ctx); /* the caller must not hold the big lock */
/* Returns the same context for all contexts that can use each other's functions and streams. */
static inline const sim_context *sim_home(const sim_context *ctx) {
  return ctx->green_of ? ctx->green_of : ctx;
}

/* service.c: the thread that does the host work of a device's streams */
typedef struct sim_errand {
  CUhostFn function;
  CUstreamCallback callback;
  CUstream stream;
  void *user_data;
  uint64_t address, value;
  unsigned flags;
  uint8_t width; /* width of a value in bytes, 4 or 8 */
  bool write;
  /* value that a waiting kernel stores when it starts, 0 if none */
  uint64_t store_address, store_value;
  bool adds; /* true if the value is added, false if it is stored */
} sim_errand;
void sim_write_values(sim_gpu *gpu);
bool sim_service_start(sim_gpu *gpu);

/* keeper.c: the thread that keeps the process attached and carries out its checkpoints */
bool sim_keeper_start(void);
uint32_t sim_keeper_attach(uint32_t device, const char *tag);
/* A call begins and ends here. It waits while the process is locked, and fails if its checkpoint
 * has failed. */
CUresult sim_keeper_enter(const char *call);
void sim_keeper_leave(void);
bool sim_calls_are_under_way(void);

/* suspend.c: what a checkpoint does to this process; called by the keeper while no call is under
 * way */
CUresult sim_suspend_save(void);
CUresult sim_suspend_restore(const sim_pair *pairs, uint32_t count);
bool sim_is_mps_client(void); /* device.c */

/* stream.c */
/* The first finds the stream of a handle. The second also checks that a call may use the stream:
 * use of the legacy stream is an error while a blocking stream of its context captures. */
CUresult sim_stream_named(CUstream handle, sim_context *ctx, sim_stream **stream);
CUresult sim_stream_of(CUstream handle, sim_context *ctx, sim_stream **stream);
sim_stream *sim_stream_new(sim_context *ctx, unsigned flags, int priority, uint32_t lane_kind);
void sim_stream_drop(sim_stream *stream);
CUresult sim_submit_work(sim_stream *stream, sim_op *op, sim_ref *ref);
/* makes the stream wait for the work */
CUresult sim_wait_on(sim_stream *stream, const sim_ref *ref);
sim_ref sim_tail_of(const sim_stream *stream); /* returns the stream's newest work */
CUresult sim_wait_for(sim_stream *stream);     /* waits for all of the stream's work so far */
CUresult sim_synchronize_context(sim_context *ctx);
/* fails a call that is unsafe while a capture is live */
CUresult sim_capture_forbids(sim_context *ctx);
/* Fail a call that waits for, or queries, a stream, context or event that takes part in a
 * capture. */
CUresult sim_capture_forbids_stream(sim_stream *stream);
CUresult sim_capture_forbids_context(sim_context *ctx);
CUresult sim_capture_forbids_event(const sim_event *event);
/* fails the use of the context's legacy stream */
CUresult sim_capture_forbids_legacy(sim_context *ctx);
void sim_pools_settle(sim_gpu *gpu); /* pool.c; called after a synchronisation */

/* event.c */
CUresult sim_event_of(CUevent handle, sim_event **event);
CUresult sim_event_record_on(sim_event *event, sim_stream *stream);
CUresult sim_event_wait_on(sim_event *event, sim_stream *stream);

/* heap.c: addresses and contents of device memory */
enum sim_alloc_kind {
  SIM_DEVICE,
  SIM_MANAGED,
  SIM_HOST_MEMORY,
  SIM_REGISTERED,
  SIM_RESERVED_MAP,
  SIM_POOLED,
  SIM_IMPORTED,
  SIM_POOL_IMPORTED,
  SIM_EXTERNAL_MAP,
  SIM_GLOBAL,
  SIM_GRAPH_MEMORY
};
typedef struct sim_alloc {
  uint64_t address, bytes; /* size as requested */
  uint64_t mapped_bytes;   /* size of the address space */
  uint64_t charged_bytes;  /* 0 if the allocation shares a slab, or is host memory */
  struct sim_slab *slab;
  sim_gpu *gpu;
  sim_context *ctx; /* NULL if the allocation belongs to no context */
  enum sim_alloc_kind kind;
  unsigned flags;
  uint64_t id;
  sim_pool *pool;
  struct sim_block *block;
  struct sim_physical *physical;
  uint64_t host_pointer;
  uint64_t shared;  /* ID of the shared memory if several processes refer to it */
  bool exported;    /* another process may have opened it */
  bool own_mapping; /* true if the mapping must be removed when the memory is freed */
} sim_alloc;
bool sim_heap_start(void);
/* returns address space aligned to 2 MiB, 0 if none is left */
uint64_t sim_pages_take(uint64_t bytes);
void sim_pages_give(uint64_t address, uint64_t bytes);
/* returns the file that holds the contents, -1 if it could not be created */
int sim_heap_fd(void);
uint64_t sim_heap_offset(uint64_t address);
bool sim_heap_map_at(uint64_t address, uint64_t offset, uint64_t bytes, int fd, int protection);
sim_alloc *sim_alloc_new(sim_gpu *gpu, sim_context *ctx, uint64_t bytes, enum sim_alloc_kind kind);
void sim_alloc_free(sim_alloc *alloc);
void sim_pool_free_now(sim_alloc *alloc); /* pool.c */
void sim_alloc_insert(sim_alloc *alloc);
void sim_alloc_remove(sim_alloc *alloc);
/* returns the allocation that contains the address */
sim_alloc *sim_alloc_find(uint64_t address);
/* returns true as soon as `visit` does, in the order of addresses */
bool sim_alloc_any(bool (*visit)(sim_alloc *alloc));
void sim_allocs_of_context(sim_context *ctx); /* frees all allocations of the context */
/* Returns how many bytes of [address, address + bytes) keep their contents. */
uint64_t sim_kept_bytes(uint64_t address, uint64_t bytes);

bool sim_is_managed(const sim_alloc *alloc);    /* managed.c */
bool sim_pool_is_on_host(const sim_pool *pool); /* pool.c */

/* copy.c */
struct sim_move {
  uint64_t to, from, bytes; /* `from` is 0 for a fill */
  uint64_t to_pitch, from_pitch, rows, to_slice, from_slice, layers;
  uint32_t value;
  uint8_t value_bytes;
  bool to_host, from_host, pageable;
};
void sim_move_contents(const struct sim_move *move);
void sim_move_op(sim_gpu *gpu, const struct sim_move *move, sim_op *op);

/* launch.c */
typedef struct sim_function {
  struct sim_module *module;
  sim_library *library; /* set for a CUkernel, which belongs to no context */
  struct sim_kernel *kernel;
  sim_context *ctx;
  int max_dynamic_shared, carveout, cluster_allowed;
  bool loaded; /* the function's code is on the device */
  int cluster[3];
  /* launch_old.c; NULL if the function was never launched that way */
  struct sim_old_launch *old_launch;
  /* for a CUkernel: the functions made from it, one for each context */
  struct sim_function *bound;
  struct sim_function *next;
} sim_function;
CUresult sim_function_of(CUfunction handle, sim_context *ctx, sim_function **function);
int sim_blocks_per_sm(const sim_function *f, const sim_gpu *gpu, int threads, size_t dynamic_bytes);
const char *sim_function_name(const sim_function *function);

/* context_limits.c: memory reserved by a context's limits and by the local memory of its kernels */
uint64_t sim_limit_bytes(const sim_context *ctx);
CUresult sim_local_memory_take(sim_context *ctx, uint64_t bytes_per_thread);
void sim_default_limits(sim_context *ctx);
