/* A piece of work of a stream, which is either submitted at once or kept as a node of a graph. */
#pragma once
#include "sim/cuda/core.h"

typedef struct sim_work {
  CUgraphNodeType type;
  union {
    struct {
      sim_function *function, *as_given; /* `as_given` may be a CUkernel */
      unsigned grid[3], block[3], shared_bytes, cluster[3];
      bool cooperative;
      bool early; /* true for programmatic stream serialisation */
      /* multiprocessors of the green context that the kernel runs in, 0 for the whole device */
      unsigned sms;
      uint32_t param_count;
      size_t param_bytes;
      void *params; /* copied, in the kernel's layout; owned by the node if there is one */
      /* one pointer into `params` for each parameter; owned by the node if there is one */
      void **param_list;
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
      CUstreamBatchMemOpParams *ops; /* owned by the node if there is one */
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
      struct sim_graph *graph; /* owned by the node; a clone of the program's graph */
    } child;
    struct {
      uint64_t handle;
      CUgraphConditionalNodeType kind;
      unsigned count;
      struct sim_graph **bodies; /* owned by the node */
      sim_context *ctx;
    } conditional;
  };
} sim_work;

/* The actions that a rule can give a kernel (kernel_rules.c). */
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
  uint64_t words[4]; /* parameters of the rule */
} sim_kernel_act;
sim_kernel_act sim_kernel_act_of(const sim_work *work);
/* Parses one rule of PENSTOCK_SIM_KERNELS, up to the comma or the end of `text`. Returns false if
 * the rule is invalid. */
bool sim_kernel_rule_parse(const char *text, size_t length, sim_kernel_rule *rule);
/* returns true if a rule makes any kernel launch a graph */
bool sim_kernels_launch_graphs(void);
void sim_condition_set(uint64_t handle, uint64_t value);

/* Prepares a kernel to run in a context: loads its code and takes its local memory. */
CUresult sim_work_prepare(const sim_work *work, sim_context *ctx);
/* Adds the work to the stream's graph if the stream is capturing, or else runs it. */
CUresult sim_issue(sim_stream *stream, const sim_work *work);
CUresult sim_run(sim_stream *stream, const sim_work *work);
/* Turns `work` into an operation on the SMs or a copy engine. Returns false if there is no such
 * operation. Submit the operation, or discard it with sim_work_op_drop. */
bool sim_work_op(const sim_work *work, sim_op *op);
void sim_work_op_drop(const sim_op *op);
/* Performs the copy or fill of `work` on the contents of memory. */
void sim_work_contents(const sim_work *work);
/* Make a deep copy for a node, and release it. */
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
