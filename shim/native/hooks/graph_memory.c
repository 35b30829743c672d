/* Graph memory nodes: noticed where they are made, charged around launches (graph_memory.h). */
#include "graph_memory.h"

#include "hooks/hook.h"

CUresult CUDAAPI HOOK_NAME(cuGraphAddMemAllocNode)(CUgraphNode *node, CUgraph graph,
                                                   const CUgraphNode *dependencies, size_t count,
                                                   CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
  PENSTOCK_PASS(cuGraphAddMemAllocNode, node, graph, dependencies, count, parameters);
  penstock_graph_memory_seen();
  return PENSTOCK_BELOW(REAL(cuGraphAddMemAllocNode)(node, graph, dependencies, count, parameters));
}

static void look_at(const CUgraphNodeParams *parameters) {
  if (parameters && parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) penstock_graph_memory_seen();
}

CUresult CUDAAPI HOOK_NAME(cuGraphAddNode)(CUgraphNode *node, CUgraph graph,
                                           const CUgraphNode *dependencies, size_t count,
                                           CUgraphNodeParams *parameters) {
  PENSTOCK_PASS(cuGraphAddNode, node, graph, dependencies, count, parameters);
  look_at(parameters);
  return PENSTOCK_BELOW(REAL(cuGraphAddNode)(node, graph, dependencies, count, parameters));
}

CUresult CUDAAPI HOOK_NAME(cuGraphAddNode_v2)(CUgraphNode *node, CUgraph graph,
                                              const CUgraphNode *dependencies,
                                              const CUgraphEdgeData *edges, size_t count,
                                              CUgraphNodeParams *parameters) {
  PENSTOCK_PASS(cuGraphAddNode_v2, node, graph, dependencies, edges, count, parameters);
  look_at(parameters);
  return PENSTOCK_BELOW(
      REAL(cuGraphAddNode_v2)(node, graph, dependencies, edges, count, parameters));
}

CUresult CUDAAPI HOOK_NAME(cuGraphAddNode_v3)(CUgraphNode *node, CUgraph graph,
                                              const CUgraphNode *dependencies,
                                              const CUgraphEdgeData *edges, size_t count,
                                              CUgraphNodeParams *parameters) {
  PENSTOCK_PASS(cuGraphAddNode_v3, node, graph, dependencies, edges, count, parameters);
  look_at(parameters);
  return PENSTOCK_BELOW(
      REAL(cuGraphAddNode_v3)(node, graph, dependencies, edges, count, parameters));
}

CUresult CUDAAPI HOOK_NAME(cuDeviceGraphMemTrim)(CUdevice device) {
  PENSTOCK_PASS(cuDeviceGraphMemTrim, device);
  CUresult result = PENSTOCK_BELOW(REAL(cuDeviceGraphMemTrim)(device));
  penstock_reserve *reserve = penstock_reserve_of_graphs(device);
  if (result == CUDA_SUCCESS && reserve) {
    penstock_reserve_settle(reserve, 0);
    penstock_graph_memory_trimmed(device);
  }
  return result;
}
