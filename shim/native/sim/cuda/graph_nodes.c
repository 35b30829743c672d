/* Calls for nodes of one type. Each fills in the general parameters and uses the general calls. */
#include <string.h>

#include "sim/cuda/graph.h"

#define COPY_IN(params, member, given)      \
  CUgraphNodeParams params;                 \
  memset(&params, 0, sizeof params);        \
  REQUIRE(given, CUDA_ERROR_INVALID_VALUE); \
  memcpy(&params.member, given, sizeof *(given))

/* ---- kernels; v1 of the struct lacks the last two members ---- */

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

#define COPY_CALLS(Name, TYPE, Params, fill, kept, member)                                      \
  CUresult CUDAAPI cuGraphAdd##Name##Node(CUgraphNode *out, CUgraph g, const CUgraphNode *from, \
                                          size_t n, const Params *p, CUcontext ctx) {           \
    ENTER("cuGraphAdd" #Name "Node");                                                           \
    CUgraphNodeParams params;                                                                   \
    REQUIRE(p, CUDA_ERROR_INVALID_VALUE);                                                       \
    fill(&params, p, ctx);                                                                      \
    return sim_node_add(out, g, from, n, &params);                                              \
  }                                                                                             \
  CUresult CUDAAPI cuGraph##Name##NodeGetParams(CUgraphNode node, Params *p) {                  \
    ENTER("cuGraph" #Name "NodeGetParams");                                                     \
    CUgraphNodeParams params;                                                                   \
    REQUIRE(p, CUDA_ERROR_INVALID_VALUE);                                                       \
    TRY(sim_node_get(node, TYPE, &params));                                                     \
    memcpy(p, &params.member, sizeof *p);                                                       \
    return CUDA_SUCCESS;                                                                        \
  }                                                                                             \
  CUresult CUDAAPI cuGraph##Name##NodeSetParams(CUgraphNode handle, const Params *p) {          \
    ENTER("cuGraph" #Name "NodeSetParams");                                                     \
    sim_node *node;                                                                             \
    CUgraphNodeParams params;                                                                   \
    REQUIRE(p, CUDA_ERROR_INVALID_VALUE);                                                       \
    TRY(sim_node_of(handle, &node));                                                            \
    REQUIRE(node->work.type == TYPE, CUDA_ERROR_INVALID_VALUE);                                 \
    fill(&params, p, (CUcontext)node->work.kept.ctx);                                           \
    return sim_node_replace(node, &params);                                                     \
  }                                                                                             \
  CUresult CUDAAPI cuGraphExec##Name##NodeSetParams(CUgraphExec exec, CUgraphNode node,         \
                                                    const Params *p, CUcontext ctx) {           \
    ENTER("cuGraphExec" #Name "NodeSetParams");                                                 \
    CUgraphNodeParams params;                                                                   \
    REQUIRE(p, CUDA_ERROR_INVALID_VALUE);                                                       \
    fill(&params, p, ctx);                                                                      \
    return sim_exec_set(exec, node, &params);                                                   \
  }
COPY_CALLS(Memcpy, CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_MEMCPY3D, copy_params, copy, memcpy.copyParams)
COPY_CALLS(Memset, CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEMSET_NODE_PARAMS, set_params, set, memset)

/* ---- host functions, children, events, the rest ---- */

#define PARAMS_CALLS(Name, TYPE, Params, member)                                                \
  CUresult CUDAAPI cuGraphAdd##Name##Node(CUgraphNode *out, CUgraph g, const CUgraphNode *from, \
                                          size_t n, const Params *p) {                          \
    ENTER("cuGraphAdd" #Name "Node");                                                           \
    COPY_IN(params, member, p);                                                                 \
    params.type = TYPE;                                                                         \
    return sim_node_add(out, g, from, n, &params);                                              \
  }                                                                                             \
  CUresult CUDAAPI cuGraph##Name##NodeGetParams(CUgraphNode node, Params *p) {                  \
    ENTER("cuGraph" #Name "NodeGetParams");                                                     \
    CUgraphNodeParams params;                                                                   \
    REQUIRE(p, CUDA_ERROR_INVALID_VALUE);                                                       \
    TRY(sim_node_get(node, TYPE, &params));                                                     \
    memcpy(p, &params.member, sizeof *p);                                                       \
    return CUDA_SUCCESS;                                                                        \
  }                                                                                             \
  CUresult CUDAAPI cuGraph##Name##NodeSetParams(CUgraphNode node, const Params *p) {            \
    ENTER("cuGraph" #Name "NodeSetParams");                                                     \
    COPY_IN(params, member, p);                                                                 \
    params.type = TYPE;                                                                         \
    return sim_node_set(node, &params);                                                         \
  }                                                                                             \
  CUresult CUDAAPI cuGraphExec##Name##NodeSetParams(CUgraphExec exec, CUgraphNode node,         \
                                                    const Params *p) {                          \
    ENTER("cuGraphExec" #Name "NodeSetParams");                                                 \
    COPY_IN(params, member, p);                                                                 \
    params.type = TYPE;                                                                         \
    return sim_exec_set(exec, node, &params);                                                   \
  }
PARAMS_CALLS(Host, CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS, host)
PARAMS_CALLS(BatchMemOp, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CUDA_BATCH_MEM_OP_NODE_PARAMS, memOp)

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
