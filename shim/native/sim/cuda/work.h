/* One piece of work of a stream: submitted at once, or kept as a node of a graph. */
#pragma once
#include "sim/cuda/core.h"

typedef struct sim_work {
  CUgraphNodeType type;
  union {
    struct {
      sim_function *function, *as_given; /* a CUkernel may be given */
      unsigned grid[3], block[3], shared_bytes, cluster[3];
      bool cooperative;
      bool early;   /* programmatic stream serialisation */
      unsigned sms; /* of the green context that it runs in; 0: all */
      uint32_t param_count;
      size_t param_bytes;
      void *params;      /* copied, laid out as the kernel has them; owned by a node */
      void **param_list; /* one pointer a parameter into `params`; owned by a node */
    } kernel;
    struct {
      CUDA_MEMCPY3D as_given;
      sim_context *ctx;
      struct sim_move move;
    } copy;
    struct {
      CUDA_MEMSET_NODE_PARAMS as_given;
      sim_context *ctx;
      struct sim_move move;
    } set;
    struct {
      CUhostFn function;
      CUstreamCallback callback;
      void *user_data;
    } host;
    struct {
      sim_event *event;
    } event;
    struct {
      CUstreamBatchMemOpParams *ops; /* owned by a node */
      unsigned count;
      sim_context *ctx;
    } batch;
    struct {
      sim_gpu *gpu;
      CUDA_MEM_ALLOC_NODE_PARAMS as_given;
      sim_alloc *alloc;
    } take;
    struct {
      CUdeviceptr pointer;
    } give;
    struct {
      struct sim_graph *graph; /* owned: a clone */
    } child;
    struct {
      uint64_t handle;
      CUgraphConditionalNodeType kind;
      unsigned count;
      struct sim_graph **bodies; /* owned */
      sim_context *ctx;
    } conditional;
  };
} sim_work;

/* What a kernel does (kernel_rules.c). */
enum sim_kernel_action {
  SIM_LASTS,
  SIM_LASTS_UNTIL,
  SIM_SETS_CONDITION,
  SIM_LAUNCHES_GRAPH,
  SIM_JOINS
};
typedef struct sim_kernel_act {
  enum sim_kernel_action what;
  uint64_t duration_ns;
  bool by_rule;
  uint64_t words[4]; /* the parameters that it goes by */
} sim_kernel_act;
sim_kernel_act sim_kernel_act_of(const sim_work *work);
/* One rule of PENSTOCK_SIM_KERNELS, up to the comma or the end of `text`. False: it is none. */
bool sim_kernel_rule_parse(const char *text, size_t length, sim_kernel_rule *rule);
bool sim_kernels_launch_graphs(void); /* is there a rule that has any do so? */
void sim_condition_set(uint64_t handle, uint64_t value);

/* Before a kernel runs in a context: its code is loaded, and there is the local memory for it. */
CUresult sim_work_prepare(const sim_work *work, sim_context *ctx);
/* Captures into the stream's graph when it is capturing, else runs. */
CUresult sim_issue(sim_stream *stream, const sim_work *work);
CUresult sim_run(sim_stream *stream, const sim_work *work);
/* The operation on the SMs or a copy engine that `work` is; false: it is none. To be submitted, or
 * let go of by sim_work_op_drop. */
bool sim_work_op(const sim_work *work, sim_op *op);
void sim_work_op_drop(const sim_op *op);
/* Moves the contents that `work` moves. */
void sim_work_contents(const sim_work *work);
/* Deep copy for a node, and its release. */
bool sim_work_keep(sim_work *work);
void sim_work_release(sim_work *work);

/* capture.c */
CUresult sim_capture_add(sim_stream *stream, const sim_work *work);
CUresult sim_capture_record(sim_event *event, sim_stream *stream);
CUresult sim_capture_wait(sim_event *event, sim_stream *stream);
CUresult sim_capture_launch(sim_stream *stream, struct sim_graph *graph);
void sim_capture_stream_gone(sim_stream *stream);

/* copy.c */
CUresult sim_copy_work(sim_context *ctx, const CUDA_MEMCPY3D *given, sim_work *work);
CUresult sim_set_work(sim_context *ctx, const CUDA_MEMSET_NODE_PARAMS *given, sim_work *work);

/* launch.c */
CUresult sim_kernel_work(sim_context *ctx, CUfunction function, const unsigned grid[3],
                         const unsigned block[3], unsigned shared_bytes, const unsigned cluster[3],
                         bool cooperative, void **params, void **extra, sim_work *work);

/* streamop.c */
CUresult sim_check_batch(sim_context *ctx, const CUstreamBatchMemOpParams *ops, unsigned count);
CUresult sim_run_batch(sim_stream *stream, const CUstreamBatchMemOpParams *ops, unsigned count);
