/* The typed calls for nodes: each fills the general parameters and goes the general way. */
#include <string.h>

#include "sim/cuda/graph.h"

#define COPY_IN(params, member, given)      \
  CUgraphNodeParams params;                 \
  memset(&params, 0, sizeof params);        \
  REQUIRE(given, CUDA_ERROR_INVALID_VALUE); \
  memcpy(&params.member, given, sizeof *(given))

/* ---- kernels: v1 of the struct lacks the last two members ---- */

#define KERNEL_CALLS(suffix, Given)                                                           \
  CUresult CUDAAPI cuGraphAddKernelNode##suffix(                                              \
      CUgraphNode *out, CUgraph g, const CUgraphNode *from, size_t n, const Given *p) {       \
    ENTER("cuGraphAddKernelNode");                                                            \
    COPY_IN(params, kernel, p);                                                               \
    params.type = CU_GRAPH_NODE_TYPE_KERNEL;                                                  \
    return sim_node_add(out, g, from, n, &params);                                            \
  }                                                                                           \
  CUresult CUDAAPI cuGraphKernelNodeGetParams##suffix(CUgraphNode node, Given *p) {           \
    ENTER("cuGraphKernelNodeGetParams");                                                      \
    CUgraphNodeParams params;                                                                 \
    REQUIRE(p, CUDA_ERROR_INVALID_VALUE);                                                     \
    TRY(sim_node_get(node, CU_GRAPH_NODE_TYPE_KERNEL, &params));                              \
    memcpy(p, &params.kernel, sizeof *p);                                                     \
    return CUDA_SUCCESS;                                                                      \
  }                                                                                           \
  CUresult CUDAAPI cuGraphKernelNodeSetParams##suffix(CUgraphNode node, const Given *p) {     \
    ENTER("cuGraphKernelNodeSetParams");                                                      \
    COPY_IN(params, kernel, p);                                                               \
    params.type = CU_GRAPH_NODE_TYPE_KERNEL;                                                  \
    return sim_node_set(node, &params);                                                       \
  }                                                                                           \
  CUresult CUDAAPI cuGraphExecKernelNodeSetParams##suffix(CUgraphExec exec, CUgraphNode node, \
                                                          const Given *p) {                   \
    ENTER("cuGraphExecKernelNodeSetParams");                                                  \
    COPY_IN(params, kernel, p);                                                               \
    params.type = CU_GRAPH_NODE_TYPE_KERNEL;                                                  \
    return sim_exec_set(exec, node, &params);                                                 \
  }
KERNEL_CALLS(, CUDA_KERNEL_NODE_PARAMS_v1)
KERNEL_CALLS(_v2, CUDA_KERNEL_NODE_PARAMS)

CUresult CUDAAPI cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  ENTER("cuGraphKernelNodeCopyAttributes");
  sim_node *node;
  TRY(sim_node_of(to, &node));
  return sim_node_of(from, &node);
}
CUresult CUDAAPI cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                               CUkernelNodeAttrValue *value) {
  ENTER("cuGraphKernelNodeGetAttribute");
  sim_node *node;
  REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_of(handle, &node));
  memset(value, 0, sizeof *value);
  if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
    value->cooperative = node->work.kernel.cooperative;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                               const CUkernelNodeAttrValue *value) {
  ENTER("cuGraphKernelNodeSetAttribute");
  sim_node *node;
  REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_of(handle, &node));
  if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
    node->work.kernel.cooperative = value->cooperative;
  return CUDA_SUCCESS;
}

/* ---- copies and fills ---- */

static void copy_params(CUgraphNodeParams *params, const CUDA_MEMCPY3D *p, CUcontext ctx) {
  memset(params, 0, sizeof *params);
  params->type = CU_GRAPH_NODE_TYPE_MEMCPY;
  params->memcpy.copyCtx = ctx;
  params->memcpy.copyParams = *p;
}
static void set_params(CUgraphNodeParams *params, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx) {
  memset(params, 0, sizeof *params);
  params->type = CU_GRAPH_NODE_TYPE_MEMSET;
  memcpy(&params->memset, p, sizeof *p);
  params->memset.ctx = ctx;
}

CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph g, const CUgraphNode *from,
                                      size_t n, const CUDA_MEMCPY3D *p, CUcontext ctx) {
  ENTER("cuGraphAddMemcpyNode");
  CUgraphNodeParams params;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  copy_params(&params, p, ctx);
  return sim_node_add(out, g, from, n, &params);
}
CUresult CUDAAPI cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *p) {
  ENTER("cuGraphMemcpyNodeGetParams");
  CUgraphNodeParams params;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_get(node, CU_GRAPH_NODE_TYPE_MEMCPY, &params));
  *p = params.memcpy.copyParams;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D *p) {
  ENTER("cuGraphMemcpyNodeSetParams");
  sim_node *node;
  CUgraphNodeParams params;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_of(handle, &node));
  REQUIRE(node->work.type == CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_ERROR_INVALID_VALUE);
  copy_params(&params, p, (CUcontext)node->work.copy.ctx);
  return sim_node_replace(node, &params);
}
CUresult CUDAAPI cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_MEMCPY3D *p, CUcontext ctx) {
  ENTER("cuGraphExecMemcpyNodeSetParams");
  CUgraphNodeParams params;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  copy_params(&params, p, ctx);
  return sim_exec_set(exec, node, &params);
}
CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode *out, CUgraph g, const CUgraphNode *from,
                                      size_t n, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx) {
  ENTER("cuGraphAddMemsetNode");
  CUgraphNodeParams params;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  set_params(&params, p, ctx);
  return sim_node_add(out, g, from, n, &params);
}
CUresult CUDAAPI cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *p) {
  ENTER("cuGraphMemsetNodeGetParams");
  CUgraphNodeParams params;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_get(node, CU_GRAPH_NODE_TYPE_MEMSET, &params));
  memcpy(p, &params.memset, sizeof *p);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphMemsetNodeSetParams(CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS *p) {
  ENTER("cuGraphMemsetNodeSetParams");
  sim_node *node;
  CUgraphNodeParams params;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_of(handle, &node));
  REQUIRE(node->work.type == CU_GRAPH_NODE_TYPE_MEMSET, CUDA_ERROR_INVALID_VALUE);
  set_params(&params, p, (CUcontext)node->work.set.ctx);
  return sim_node_replace(node, &params);
}
CUresult CUDAAPI cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx) {
  ENTER("cuGraphExecMemsetNodeSetParams");
  CUgraphNodeParams params;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  set_params(&params, p, ctx);
  return sim_exec_set(exec, node, &params);
}

/* ---- host functions, children, events, the rest ---- */

CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode *out, CUgraph g, const CUgraphNode *from, size_t n,
                                    const CUDA_HOST_NODE_PARAMS *p) {
  ENTER("cuGraphAddHostNode");
  COPY_IN(params, host, p);
  params.type = CU_GRAPH_NODE_TYPE_HOST;
  return sim_node_add(out, g, from, n, &params);
}
CUresult CUDAAPI cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *p) {
  ENTER("cuGraphHostNodeGetParams");
  CUgraphNodeParams params;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_get(node, CU_GRAPH_NODE_TYPE_HOST, &params));
  memcpy(p, &params.host, sizeof *p);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p) {
  ENTER("cuGraphHostNodeSetParams");
  COPY_IN(params, host, p);
  params.type = CU_GRAPH_NODE_TYPE_HOST;
  return sim_node_set(node, &params);
}
CUresult CUDAAPI cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                              const CUDA_HOST_NODE_PARAMS *p) {
  ENTER("cuGraphExecHostNodeSetParams");
  COPY_IN(params, host, p);
  params.type = CU_GRAPH_NODE_TYPE_HOST;
  return sim_exec_set(exec, node, &params);
}
CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph g, const CUgraphNode *from,
                                          size_t n, CUgraph child) {
  ENTER("cuGraphAddChildGraphNode");
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
  params.graph.graph = child;
  return sim_node_add(out, g, from, n, &params);
}
CUresult CUDAAPI cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *out) {
  ENTER("cuGraphChildGraphNodeGetGraph");
  CUgraphNodeParams params;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_get(node, CU_GRAPH_NODE_TYPE_GRAPH, &params));
  *out = params.graph.graph;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                    CUgraph child) {
  ENTER("cuGraphExecChildGraphNodeSetParams");
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
  params.graph.graph = child;
  return sim_exec_set(exec, node, &params);
}
CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode *out, CUgraph g, const CUgraphNode *from,
                                     size_t n) {
  ENTER("cuGraphAddEmptyNode");
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
  return sim_node_add(out, g, from, n, &params);
}

#define EVENT_CALLS(Name, TYPE, member)                                                         \
  CUresult CUDAAPI cuGraphAdd##Name##Node(CUgraphNode *out, CUgraph g, const CUgraphNode *from, \
                                          size_t n, CUevent e) {                                \
    ENTER("cuGraphAdd" #Name "Node");                                                           \
    CUgraphNodeParams params = {.type = TYPE};                                                  \
    params.member.event = e;                                                                    \
    return sim_node_add(out, g, from, n, &params);                                              \
  }                                                                                             \
  CUresult CUDAAPI cuGraph##Name##NodeGetEvent(CUgraphNode node, CUevent *out) {                \
    ENTER("cuGraph" #Name "NodeGetEvent");                                                      \
    CUgraphNodeParams params;                                                                   \
    REQUIRE(out, CUDA_ERROR_INVALID_VALUE);                                                     \
    TRY(sim_node_get(node, TYPE, &params));                                                     \
    *out = params.member.event;                                                                 \
    return CUDA_SUCCESS;                                                                        \
  }                                                                                             \
  CUresult CUDAAPI cuGraph##Name##NodeSetEvent(CUgraphNode node, CUevent e) {                   \
    ENTER("cuGraph" #Name "NodeSetEvent");                                                      \
    CUgraphNodeParams params = {.type = TYPE};                                                  \
    params.member.event = e;                                                                    \
    return sim_node_set(node, &params);                                                         \
  }                                                                                             \
  CUresult CUDAAPI cuGraphExec##Name##NodeSetEvent(CUgraphExec exec, CUgraphNode node,          \
                                                   CUevent e) {                                 \
    ENTER("cuGraphExec" #Name "NodeSetEvent");                                                  \
    CUgraphNodeParams params = {.type = TYPE};                                                  \
    params.member.event = e;                                                                    \
    return sim_exec_set(exec, node, &params);                                                   \
  }
EVENT_CALLS(EventRecord, CU_GRAPH_NODE_TYPE_EVENT_RECORD, eventRecord)
EVENT_CALLS(EventWait, CU_GRAPH_NODE_TYPE_WAIT_EVENT, eventWait)

CUresult CUDAAPI cuGraphAddBatchMemOpNode(CUgraphNode *out, CUgraph g, const CUgraphNode *from,
                                          size_t n, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
  ENTER("cuGraphAddBatchMemOpNode");
  COPY_IN(params, memOp, p);
  params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  return sim_node_add(out, g, from, n, &params);
}
CUresult CUDAAPI cuGraphBatchMemOpNodeGetParams(CUgraphNode node,
                                                CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
  ENTER("cuGraphBatchMemOpNodeGetParams");
  CUgraphNodeParams params;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_get(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &params));
  memcpy(p, &params.memOp, sizeof *p);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                                const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
  ENTER("cuGraphBatchMemOpNodeSetParams");
  COPY_IN(params, memOp, p);
  params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  return sim_node_set(node, &params);
}
CUresult CUDAAPI cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
  ENTER("cuGraphExecBatchMemOpNodeSetParams");
  COPY_IN(params, memOp, p);
  params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  return sim_exec_set(exec, node, &params);
}
CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph g, const CUgraphNode *from,
                                        size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
  ENTER("cuGraphAddMemAllocNode");
  COPY_IN(params, alloc, p);
  params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  TRY(sim_node_add(out, g, from, n, &params));
  p->dptr = params.alloc.dptr;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
  ENTER("cuGraphMemAllocNodeGetParams");
  CUgraphNodeParams params;
  REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_get(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &params));
  memcpy(p, &params.alloc, sizeof *p);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph g, const CUgraphNode *from,
                                       size_t n, CUdeviceptr pointer) {
  ENTER("cuGraphAddMemFreeNode");
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE};
  params.free.dptr = pointer;
  return sim_node_add(out, g, from, n, &params);
}
CUresult CUDAAPI cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *out) {
  ENTER("cuGraphMemFreeNodeGetParams");
  CUgraphNodeParams params;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_get(node, CU_GRAPH_NODE_TYPE_MEM_FREE, &params));
  *out = params.free.dptr;
  return CUDA_SUCCESS;
}
