/* Graph launches, and calls that change the cost of an executable. */
#include "memory/graph_memory.h"
#include "hooks/hook.h"
#include "hooks/launch.h"
#include "hooks/launch_pass.h"
#include "hooks/local_memory.h"

/* A graph's memory is charged before the gate, so that a refused launch does not wait. */
#define GRAPH_HOOKS(symbol, per_thread)                                                 \
  static CUresult gated_##symbol(CUgraphExec graph, CUstream stream) {                  \
    PENSTOCK_GATED(stream, per_thread, false, ((penstock_kind_key){graph, 0, 0, 0}),    \
                   REAL(symbol)(graph, stream));                                        \
  }                                                                                     \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUgraphExec graph, CUstream stream) {              \
    penstock_graph_memory_pass memory;                                                  \
    CUresult refused = penstock_graph_memory_enter(&memory, graph, stream, per_thread); \
    if (refused != CUDA_SUCCESS) return refused;                                        \
    return penstock_graph_memory_leave(&memory, gated_##symbol(graph, stream));         \
  }
GRAPH_HOOKS(cuGraphLaunch, false)
GRAPH_HOOKS(cuGraphLaunch_ptsz, true)

/* Calls that change what an executable does. Its cost becomes an estimate until it is measured
 * again, and memory that new kernels in it need is charged first. Calls that replace an event or a
 * semaphore change no cost, so they have no hook. */
#define CHANGING_ALSO(symbol, parameters, arguments, admit, memory) \
  CUresult CUDAAPI HOOK_NAME(symbol) parameters {                   \
    CUresult result = (admit);                                      \
    if (result == CUDA_SUCCESS) result = REAL(symbol) arguments;    \
    if (result != CUDA_SUCCESS) return result;                      \
    penstock_gate_relearn_kind(exec);                               \
    memory;                                                         \
    return result;                                                  \
  }
#define CHANGING(symbol, parameters, arguments, admit) \
  CHANGING_ALSO(symbol, parameters, arguments, admit, (void)0)

CHANGING_ALSO(cuGraphExecUpdate,
              (CUgraphExec exec, CUgraph graph, CUgraphNode *node, CUgraphExecUpdateResult *how),
              (exec, graph, node, how), penstock_graph_kernels_admit(graph),
              penstock_graph_memory_made(exec, graph, false))
CHANGING_ALSO(cuGraphExecUpdate_v2,
              (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *how),
              (exec, graph, how), penstock_graph_kernels_admit(graph),
              penstock_graph_memory_made(exec, graph, false))

static CUresult admit_kernel_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *value) {
  return value ? penstock_node_admit(value->func, NULL, NULL) : CUDA_SUCCESS;
}

static CUresult admit_kernel(const CUDA_KERNEL_NODE_PARAMS *value) {
  return value ? penstock_node_admit(value->func, value->kern, value->ctx) : CUDA_SUCCESS;
}

static CUresult admit_node(const CUgraphNodeParams *value) {
  if (value && value->type == CU_GRAPH_NODE_TYPE_KERNEL) {
    return penstock_node_admit(value->kernel.func, value->kernel.kern, value->kernel.ctx);
  }
  return value && value->type == CU_GRAPH_NODE_TYPE_GRAPH
             ? penstock_graph_kernels_admit(value->graph.graph)
             : CUDA_SUCCESS;
}

#define SETTING(symbol, type, admit) \
  CHANGING(symbol, (CUgraphExec exec, CUgraphNode node, type value), (exec, node, value), admit)
CHANGING_ALSO(cuGraphExecNodeSetParams,
              (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *value), (exec, node, value),
              admit_node(value),
              if (value->type == CU_GRAPH_NODE_TYPE_GRAPH)
                  penstock_graph_memory_changed(exec, value->graph.graph))
SETTING(cuGraphExecKernelNodeSetParams, const CUDA_KERNEL_NODE_PARAMS_v1 *, admit_kernel_v1(value))
SETTING(cuGraphExecKernelNodeSetParams_v2, const CUDA_KERNEL_NODE_PARAMS *, admit_kernel(value))
SETTING(cuGraphExecHostNodeSetParams, const CUDA_HOST_NODE_PARAMS *, CUDA_SUCCESS)
SETTING(cuGraphExecBatchMemOpNodeSetParams, const CUDA_BATCH_MEM_OP_NODE_PARAMS *, CUDA_SUCCESS)
CHANGING_ALSO(cuGraphExecChildGraphNodeSetParams,
              (CUgraphExec exec, CUgraphNode node, CUgraph child), (exec, node, child),
              penstock_graph_kernels_admit(child), penstock_graph_memory_changed(exec, child))
SETTING(cuGraphNodeSetEnabled, unsigned int, CUDA_SUCCESS)

#define SETTING_IN(symbol, type)                                                               \
  CHANGING(symbol, (CUgraphExec exec, CUgraphNode node, const type *value, CUcontext context), \
           (exec, node, value, context), CUDA_SUCCESS)
SETTING_IN(cuGraphExecMemcpyNodeSetParams, CUDA_MEMCPY3D)
SETTING_IN(cuGraphExecMemsetNodeSetParams, CUDA_MEMSET_NODE_PARAMS)
