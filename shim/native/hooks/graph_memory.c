/* Graph memory nodes. They are recorded when they are made and charged around launches
 * (memory/graph_memory.h). */
#include "memory/graph_memory.h"

#include "hooks/hook.h"
#include "hooks/launch.h"
#include "hooks/local_memory.h"

CUresult CUDAAPI HOOK_NAME(cuGraphAddMemAllocNode)(CUgraphNode *node, CUgraph graph,
                                                   const CUgraphNode *dependencies, size_t count,
                                                   CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
  penstock_graph_memory_seen();
  return REAL(cuGraphAddMemAllocNode)(node, graph, dependencies, count, parameters);
}

static void look_at(const CUgraphNodeParams *parameters) {
  if (parameters && parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) penstock_graph_memory_seen();
}

CUresult CUDAAPI HOOK_NAME(cuGraphAddNode)(CUgraphNode *node, CUgraph graph,
                                           const CUgraphNode *dependencies, size_t count,
                                           CUgraphNodeParams *parameters) {
  look_at(parameters);
  return REAL(cuGraphAddNode)(node, graph, dependencies, count, parameters);
}

CUresult CUDAAPI HOOK_NAME(cuGraphAddNode_v2)(CUgraphNode *node, CUgraph graph,
                                              const CUgraphNode *dependencies,
                                              const CUgraphEdgeData *edges, size_t count,
                                              CUgraphNodeParams *parameters) {
  look_at(parameters);
  return REAL(cuGraphAddNode_v2)(node, graph, dependencies, edges, count, parameters);
}

CUresult CUDAAPI HOOK_NAME(cuGraphAddNode_v3)(CUgraphNode *node, CUgraph graph,
                                              const CUgraphNode *dependencies,
                                              const CUgraphEdgeData *edges, size_t count,
                                              CUgraphNodeParams *parameters) {
  look_at(parameters);
  return REAL(cuGraphAddNode_v3)(node, graph, dependencies, edges, count, parameters);
}

CUresult CUDAAPI HOOK_NAME(cuDeviceGraphMemTrim)(CUdevice device) {
  CUresult result = REAL(cuDeviceGraphMemTrim)(device);
  penstock_reserve *reserve = penstock_reserve_of_graphs(device);
  if (result == CUDA_SUCCESS && reserve) {
    penstock_reserve_settle(reserve, 0);
    penstock_graph_memory_trimmed(device);
  }
  return result;
}

/* An instantiation with upload maps the graph's memory at once. */
#define INSTANTIATE(symbol, parameters, arguments, flags, stream, per_thread)            \
  CUresult CUDAAPI HOOK_NAME(symbol) parameters {                                        \
    penstock_graph_memory_pass pass = {.count = 0};                                      \
    bool uploads = (flags) & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;                         \
    penstock_local_raises raises;                                                        \
    CUresult result = penstock_graph_kernels_begin(graph, &raises);                      \
    if (result == CUDA_SUCCESS && uploads) {                                             \
      result = penstock_graph_memory_enter_new(&pass, graph, (stream), (per_thread));    \
    }                                                                                    \
    if (result == CUDA_SUCCESS) {                                                        \
      result = penstock_graph_memory_leave(&pass, REAL(symbol) arguments);               \
    }                                                                                    \
    penstock_graph_kernels_end(&raises, result);                                         \
    if (result == CUDA_SUCCESS) penstock_graph_memory_made(*executable, graph, uploads); \
    return result;                                                                       \
  }
#define WITH_LOG \
  (CUgraphExec * executable, CUgraph graph, CUgraphNode * culprit, char *log, size_t log_bytes)
INSTANTIATE(cuGraphInstantiate, WITH_LOG, (executable, graph, culprit, log, log_bytes), 0, NULL,
            false)
INSTANTIATE(cuGraphInstantiate_v2, WITH_LOG, (executable, graph, culprit, log, log_bytes), 0, NULL,
            false)
INSTANTIATE(cuGraphInstantiateWithFlags,
            (CUgraphExec * executable, CUgraph graph, unsigned long long flags),
            (executable, graph, flags), flags, NULL, false)
#define WITH_PARAMETERS \
  (CUgraphExec * executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS * parameters)
#define FLAGS (parameters ? parameters->flags : 0)
#define UPLOAD_STREAM parameters->hUploadStream
INSTANTIATE(cuGraphInstantiateWithParams, WITH_PARAMETERS, (executable, graph, parameters), FLAGS,
            UPLOAD_STREAM, false)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, WITH_PARAMETERS, (executable, graph, parameters),
            FLAGS, UPLOAD_STREAM, true)

#define UPLOAD(symbol, per_thread)                                                         \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUgraphExec executable, CUstream stream) {            \
    penstock_graph_memory_pass pass;                                                       \
    CUresult refused = penstock_graph_memory_enter(&pass, executable, stream, per_thread); \
    if (refused != CUDA_SUCCESS) return refused;                                           \
    return penstock_graph_memory_leave(&pass, REAL(symbol)(executable, stream));           \
  }
UPLOAD(cuGraphUpload, false)
UPLOAD(cuGraphUpload_ptsz, true)

CUresult CUDAAPI HOOK_NAME(cuGraphExecDestroy)(CUgraphExec executable) {
  penstock_graph_memory_gone(executable);
  penstock_gate_forget_kind(executable);
  return REAL(cuGraphExecDestroy)(executable);
}
