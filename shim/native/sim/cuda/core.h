/* What the files of the simulated driver share: objects behind the handles, entry checks.
 *
 * Locks: `sim_big_lock` guards objects of this process; a device's lock (sim/machine) comes after
 * it. Nobody waits for the device with the big lock held. Machine calls never call back.
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
  (64 * SIM_MIB) /* contents kept of one allocation; what lies above reads as zero */

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

/* A device as this process sees it (after CUDA_VISIBLE_DEVICES). */
typedef struct sim_gpu {
  int ordinal;
  uint32_t device; /* index in the machine */
  const sim_profile *profile;
  const uint8_t *uuid;
  uint32_t client;      /* SIM_NONE before the first context */
  sim_context *primary; /* NULL while inactive */
  unsigned primary_refs, primary_flags;
  sim_pool *default_pool, *current_pool;
  struct sim_slab *slabs;           /* small allocations, all contexts */
  struct sim_graph_use *graph_uses; /* by launches that run or are to run */
  uint64_t graph_bytes, graph_high_bytes, graph_used_bytes, graph_used_high_bytes;
} sim_gpu;

struct sim_context {
  sim_gpu *gpu;
  sim_context *next; /* of all that there ever were */
  uint64_t id;       /* never used again in this process */
  uint32_t number;   /* part of its streams' numbers */
  uint32_t next_stream, next_queue;
  unsigned flags, api_version;
  bool primary, alive;
  int attached;    /* cuCtxAttach */
  CUresult sticky; /* error that stays until the context is destroyed */
  size_t limits[SIM_LIMITS];
  uint64_t charged_bytes; /* the context's own, and what its limits and local memory reserve */
  uint64_t local_bytes;   /* a thread's most, of all kernels launched so far */
  sim_stream *legacy;
  sim_stream *streams; /* all, the default ones included */
  unsigned capturing;  /* how many of them capture, */
  unsigned drawing;    /* and of those the blocking ones, which the legacy stream would wait for */
  CUfunc_cache cache;
  CUsharedconfig shared_config;
  uint64_t peers;        /* bit: ordinal with peer access on */
  unsigned sms;          /* of a green context; 0: all of the device */
  sim_context *green_of; /* the primary context that a green one is a part of; NULL: not green */
};

struct sim_stream {
  sim_context *ctx;
  sim_stream *next;
  uint32_t lane;
  uint32_t lane_kind; /* enum sim_lane_kind */
  uint8_t queue;      /* the hardware queue of its work; 0: of none */
  unsigned flags;
  int priority;
  uint64_t id;
  sim_capture *capture;           /* NULL: not capturing */
  sim_stream *capture_next;       /* of those that take part in it */
  struct sim_node **capture_tail; /* nodes that the next captured one depends on */
  size_t capture_tail_count;
};

typedef struct sim_event {
  sim_context *ctx;
  sim_gpu *gpu;
  unsigned flags;
  uint32_t device, client, cell; /* of another process for an imported one */
  bool imported;
  bool recorded;
  uint64_t capture_id; /* last recorded in this capture, at these nodes; 0: in none */
  struct sim_node **capture_nodes;
  size_t capture_node_count;
} sim_event;

/* entry.c */
typedef struct sim_thread {
  bool per_thread;  /* of the call under way */
  bool in_callback; /* a function that a stream called: it may not call the driver */
  const char *call; /* its base name */
  uint64_t entered_ns;
  CUstreamCaptureMode mode; /* cuThreadExchangeStreamCaptureMode */
  char *param_bytes;        /* parameters of the launch under way; a node copies them */
  void **param_list;
  int calls;       /* that this thread is in: more than one where one makes another */
  CUresult failed; /* what went wrong last in the outermost of them */
  int depth;       /* of the context stack */
  sim_context *stack[32];
  struct {
    uint64_t ctx_id;
    sim_stream *stream;
  } default_streams[8];
} sim_thread;
/* Kept on the heap: a library that is opened late gets little thread-local room. */
extern __thread sim_thread *sim_self_pointer;
extern __thread bool sim_next_per_thread; /* set by the _ptsz/_ptds entries just before they jump */
sim_thread *sim_thread_new(void);
#define sim_self (*(sim_self_pointer ? sim_self_pointer : sim_thread_new()))

typedef struct sim_process {
  sim_machine *machine;
  bool launches_block;          /* CUDA_LAUNCH_BLOCKING */
  bool loads_lazily;            /* CUDA_MODULE_LOADING: all but EAGER */
  bool forces_ptx, forbids_ptx; /* CUDA_FORCE_PTX_JIT, CUDA_DISABLE_PTX_JIT */
  uint32_t connections;         /* CUDA_DEVICE_MAX_CONNECTIONS: hardware queues of a context */
  int gpu_count;
  sim_gpu gpus[SIM_MAX_DEVICES];
} sim_process;
extern sim_process sim_here;

void sim_big_lock(void);
void sim_big_unlock(void);
bool sim_initialized(void);
CUresult sim_enter(const char *call);
CUresult sim_enter_context(const char *call, sim_context **ctx);
/* A call begins, and ends however its function is left: then those who want to hear of errors do.
 */
typedef struct sim_call {
  CUresult result;
} sim_call;
sim_call sim_call_begin(const char *call, sim_context **ctx);
void sim_call_end(sim_call *call);
/* Runs what the program gave the driver to call, inside of a call: it may make calls itself. */
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
void sim_spend(uint32_t ns); /* the call lasts at least this long since it was entered */

/* Every exported function begins with one of these. */
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

/* An error that is going to be the call's. */
static inline CUresult sim_fail(CUresult error) { return sim_self.failed = error; }

/* handle.c: which pointers are live handles */
void sim_handle_add(const void *handle, enum sim_type type);
void sim_handle_remove(const void *handle);
bool sim_handle_is(const void *handle, enum sim_type type);
uint64_t sim_next_id(void);

/* logs.c: an error goes to who asked for that; no lock held */
void sim_logs_tell(CUresult error);

/* init.c */
CUresult sim_gpu_of(CUdevice device, sim_gpu **gpu);

/* context.c */
sim_context *sim_current(void);
CUresult sim_context_error(sim_context *ctx); /* its sticky error, learned from the device */
CUresult sim_attach_gpu(sim_gpu *gpu);
sim_context *sim_contexts(void); /* also those that are destroyed: not alive. Big lock held. */
/* Big lock held. */
CUresult sim_context_make(sim_gpu *gpu, unsigned flags, bool primary, sim_context **out);
void sim_context_destroy(sim_context *ctx); /* big lock not held */
/* What two contexts must have in common to use each other's functions and streams. */
static inline const sim_context *sim_home(const sim_context *ctx) {
  return ctx->green_of ? ctx->green_of : ctx;
}

/* service.c: the thread that holds the process's place on a device and does what streams ask of it
 */
typedef struct sim_errand {
  CUhostFn function;
  CUstreamCallback callback;
  CUstream stream;
  void *user_data;
  uint64_t address, value;
  unsigned flags;
  uint8_t width; /* bytes of a value: 4 or 8 */
  bool write;
  uint64_t store_address, store_value; /* of a kernel that awaits: as it begins; 0: nothing */
  bool adds;                           /* the value is added, not stored */
} sim_errand;
void sim_write_values(sim_gpu *gpu);
uint32_t sim_service_start(sim_gpu *gpu, const char *tag);

/* stream.c */
/* The stream that a call names, and the one that it uses: a use of the legacy stream is an error
 * while a blocking stream of its context captures. */
CUresult sim_stream_named(CUstream handle, sim_context *ctx, sim_stream **stream);
CUresult sim_stream_of(CUstream handle, sim_context *ctx, sim_stream **stream);
sim_stream *sim_stream_new(sim_context *ctx, unsigned flags, int priority, uint32_t lane_kind);
void sim_stream_drop(sim_stream *stream);
CUresult sim_submit_work(sim_stream *stream, sim_op *op, sim_ref *ref);
CUresult sim_wait_on(sim_stream *stream, const sim_ref *ref); /* the stream waits for it */
sim_ref sim_tail_of(const sim_stream *stream);                /* its newest work */
CUresult sim_wait_for(sim_stream *stream);                    /* all its work so far */
CUresult sim_synchronize_context(sim_context *ctx);
CUresult sim_capture_forbids(sim_context *ctx); /* unsafe call while a capture is live */
/* To wait for, or ask after, what captures: a stream, all of a context, an event. */
CUresult sim_capture_forbids_stream(sim_stream *stream);
CUresult sim_capture_forbids_context(sim_context *ctx);
CUresult sim_capture_forbids_event(const sim_event *event);
CUresult sim_capture_forbids_legacy(sim_context *ctx); /* the use of its legacy stream */
void sim_pools_settle(sim_gpu *gpu);                   /* pool.c: after a synchronisation */

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
  uint64_t address, bytes; /* as asked for */
  uint64_t mapped_bytes;   /* address space taken */
  uint64_t charged_bytes;  /* 0: shares a slab, or host memory */
  struct sim_slab *slab;
  sim_gpu *gpu;
  sim_context *ctx; /* NULL: of no context */
  enum sim_alloc_kind kind;
  unsigned flags;
  uint64_t id;
  sim_pool *pool;
  struct sim_block *block;
  struct sim_physical *physical;
  uint64_t host_pointer;
  uint64_t shared;  /* what the device knows it as when several processes refer to it */
  bool own_mapping; /* unmap when freed */
} sim_alloc;
bool sim_heap_start(void);
uint64_t sim_pages_take(uint64_t bytes); /* address space, 2 MiB aligned; 0: none left */
void sim_pages_give(uint64_t address, uint64_t bytes);
int sim_heap_fd(void); /* the file of the contents; -1: none could be made */
uint64_t sim_heap_offset(uint64_t address);
bool sim_heap_map_at(uint64_t address, uint64_t offset, uint64_t bytes, int fd, int protection);
sim_alloc *sim_alloc_new(sim_gpu *gpu, sim_context *ctx, uint64_t bytes, enum sim_alloc_kind kind);
void sim_alloc_free(sim_alloc *alloc);
void sim_pool_free_now(sim_alloc *alloc); /* pool.c */
void sim_alloc_insert(sim_alloc *alloc);
void sim_alloc_remove(sim_alloc *alloc);
sim_alloc *sim_alloc_find(uint64_t address);  /* the allocation that holds this address */
void sim_allocs_of_context(sim_context *ctx); /* frees them all */
/* Bytes of [address, address + bytes) whose contents are kept. 0 beyond. */
uint64_t sim_kept_bytes(uint64_t address, uint64_t bytes);

bool sim_is_managed(const sim_alloc *alloc);    /* managed.c */
bool sim_pool_is_on_host(const sim_pool *pool); /* pool.c */

/* copy.c */
struct sim_move {
  uint64_t to, from, bytes; /* `from` 0: fill */
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
  sim_library *library; /* a CUkernel: of no context */
  struct sim_kernel *kernel;
  sim_context *ctx;
  int max_dynamic_shared, carveout, cluster_allowed;
  bool loaded; /* its code is on the device */
  int cluster[3];
  struct sim_old_launch *old_launch; /* launch_old.c; NULL: never launched that way */
  struct sim_function *bound;        /* of a CUkernel: functions made from it, one a context */
  struct sim_function *next;
} sim_function;
CUresult sim_function_of(CUfunction handle, sim_context *ctx, sim_function **function);
int sim_blocks_per_sm(const sim_function *f, const sim_gpu *gpu, int threads, size_t dynamic_bytes);
const char *sim_function_name(const sim_function *function);

/* context_limits.c: memory that a context's limits and the local memory of its kernels reserve */
uint64_t sim_limit_bytes(const sim_context *ctx);
CUresult sim_local_memory_take(sim_context *ctx, uint64_t bytes_per_thread);
void sim_default_limits(sim_context *ctx);
