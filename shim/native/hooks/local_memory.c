#include "hooks/local_memory.h"

#include <stdlib.h>

#include "memory/charge.h"
#include "hooks/hook.h"
#include "hooks/library.h"
#include "memory/objects.h"

#define DEEPEST_GRAPH 16

uint64_t penstock_functions_gone;

void penstock_functions_go(void) {
  __atomic_fetch_add(&penstock_functions_gone, 1, __ATOMIC_ACQ_REL);
}

/* Returns the local memory of a thread of the function in the current context, or 0 for an unknown
 * function, which the driver refuses to launch. */
static uint64_t local_bytes(CUfunction function) {
  const CUfunction_attribute local = CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
  int bytes = 0;
  CUdevice device;
  CUresult result;
  if (!penstock_is_kernel(function)) {
    result = REAL(cuFuncGetAttribute)(&bytes, local, function);
  } else {
    result = REAL(cuCtxGetDevice)(&device);
    if (result == CUDA_SUCCESS) {
      result = REAL(cuKernelGetAttribute)(&bytes, local, (CUkernel)function, device);
    }
  }
  return result == CUDA_SUCCESS && bytes > 0 ? (uint64_t)bytes : 0;
}

static CUresult admit(CUfunction function, CUcontext context, int grant,
                      penstock_local_raise *raise) {
  CUcontext current = NULL, popped;
  CUresult result = penstock_library_use(function, context, grant);
  if (result != CUDA_SUCCESS) return result;
  REAL(cuCtxGetCurrent)(&current);
  bool other = current != context;
  if (other && REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) return CUDA_SUCCESS;
  result = penstock_local_memory_admit(context, grant, local_bytes(function), raise);
  if (other) REAL(cuCtxPopCurrent_v2)(&popped);
  return result;
}

/* Only kernels have a grid. */
CUresult penstock_kernel_admit(const penstock_kind_key *key, CUcontext context, int grant,
                               penstock_local_raise *raise) {
  raise->to = 0;
  if (key->grid == 0 || key->what <= PENSTOCK_KIND_COPY) return CUDA_SUCCESS;
  return admit((CUfunction)(uintptr_t)key->what, context, grant, raise);
}

/* ---- graphs ---- */

/* Keeps a raise so that it can be undone later. Without memory for the list, the raise cannot be
 * undone. */
static void keep(penstock_local_raises *raises, const penstock_local_raise *raise) {
  if (!raises || !raise->to) return;
  if (raises->count == raises->room) {
    size_t room = raises->room ? raises->room * 2 : 8;
    penstock_local_raise *larger = realloc(raises->all, room * sizeof *larger);
    if (!larger) return;
    raises->all = larger;
    raises->room = room;
  }
  raises->all[raises->count++] = *raise;
}

static CUresult admit_in(CUfunction function, CUcontext context, penstock_local_raises *raises) {
  penstock_object entry;
  penstock_local_raise raise = {.to = 0};
  if (!context && REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS) return CUDA_SUCCESS;
  if (!penstock_object_find(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)context, &entry)) {
    return CUDA_SUCCESS; /* the driver returns the error */
  }
  CUresult result = admit(function, context, entry.grant, &raise);
  keep(raises, &raise);
  return result;
}

/* Charges one kernel node's needs. A function belongs to a context, whereas a kernel runs in the
 * context that its node names. For a kernel some drivers also return the function. */
static CUresult admit_kernel(CUfunction function, CUkernel kernel, CUcontext named,
                             penstock_local_raises *raises) {
  CUcontext own = function ? penstock_function_context(function) : NULL;
  CUresult result = function ? admit_in(function, own ? own : named, raises) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS || !kernel) return result;
  return admit_in((CUfunction)kernel, named, raises);
}

CUresult penstock_node_admit(CUfunction function, CUkernel kernel, CUcontext named) {
  return admit_kernel(function, kernel, named, NULL);
}

/* Charges the kernel of a graph node. Drivers before CUDA 12 have only the first version of
 * cuGraphKernelNodeGetParams. */
static CUresult admit_kernel_node(CUgraphNode node, penstock_local_raises *raises) {
  CUDA_KERNEL_NODE_PARAMS now;
  CUDA_KERNEL_NODE_PARAMS_v1 before;
  if (REAL(cuGraphKernelNodeGetParams_v2)(node, &now) == CUDA_SUCCESS) {
    return admit_kernel(now.func, now.kern, now.ctx, raises);
  }
  if (REAL(cuGraphKernelNodeGetParams)(node, &before) == CUDA_SUCCESS) {
    return admit_kernel(before.func, NULL, NULL, raises);
  }
  return CUDA_SUCCESS;
}

static CUresult admit_graph(CUgraph graph, int depth, penstock_local_raises *raises);

static CUresult admit_bodies(CUgraphNode node, int depth, penstock_local_raises *raises) {
  CUgraphNodeParams parameters;
  CUresult result = CUDA_SUCCESS;
  if (REAL(cuGraphNodeGetParams)(node, &parameters) != CUDA_SUCCESS) return result;
  const CUDA_CONDITIONAL_NODE_PARAMS *inner = &parameters.conditional;
  for (unsigned i = 0; i < inner->size && result == CUDA_SUCCESS; i++) {
    if (inner->phGraph_out) result = admit_graph(inner->phGraph_out[i], depth + 1, raises);
  }
  return result;
}

static CUresult admit_node(CUgraphNode node, int depth, penstock_local_raises *raises) {
  CUgraphNodeType type;
  CUgraph child;
  if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) return CUDA_SUCCESS;
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return admit_kernel_node(node, raises);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS
                 ? admit_graph(child, depth + 1, raises)
                 : CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return admit_bodies(node, depth, raises);
    default:
      return CUDA_SUCCESS;
  }
}

static CUresult admit_graph(CUgraph graph, int depth, penstock_local_raises *raises) {
  size_t count = 0;
  if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0) return CUDA_SUCCESS;
  CUgraphNode *nodes = depth < DEEPEST_GRAPH ? calloc(count, sizeof *nodes) : NULL;
  if (!nodes) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = CUDA_SUCCESS;
  if (REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS) count = 0;
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
    result = admit_node(nodes[i], depth, raises);
  }
  free(nodes);
  return result;
}

CUresult penstock_graph_kernels_begin(CUgraph graph, penstock_local_raises *raises) {
  *raises = (penstock_local_raises){.count = 0};
  return admit_graph(graph, 0, raises);
}

void penstock_graph_kernels_end(penstock_local_raises *raises, CUresult result) {
  while (result != CUDA_SUCCESS && raises->count) {
    penstock_local_memory_undo(&raises->all[--raises->count]);
  }
  free(raises->all);
}

CUresult penstock_graph_kernels_admit(CUgraph graph) {
  penstock_local_raises raises;
  CUresult result = penstock_graph_kernels_begin(graph, &raises);
  penstock_graph_kernels_end(&raises, result);
  return result;
}
