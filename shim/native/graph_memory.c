#include "graph_memory.h"

#include <stdlib.h>

#include "driver.h"
#include "hooks/hook.h"
#include "common/log.h"
#include "objects.h"

static bool seen; /* in this process, or in the one that it was forked from */

void penstock_graph_memory_seen(void) { __atomic_store_n(&seen, true, __ATOMIC_RELEASE); }

static bool is_in_use(void) { return __atomic_load_n(&seen, __ATOMIC_ACQUIRE); }

typedef struct needs {
  uint64_t bytes[PENSTOCK_GRAPH_MEMORY_DEVICES]; /* by device ordinal */
} needs;

static void add_node(CUgraphNode node, needs *sum) {
  CUDA_MEM_ALLOC_NODE_PARAMS parameters;
  if (REAL(cuGraphMemAllocNodeGetParams)(node, &parameters) != CUDA_SUCCESS) return;
  int device = parameters.poolProps.location.id;
  if (parameters.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 ||
      device >= PENSTOCK_GRAPH_MEMORY_DEVICES) {
    return;
  }
  sum->bytes[device] += parameters.bytesize;
}

/* Adds up the allocation nodes of a graph and of the graphs in it. */
static void add_graph(CUgraph graph, needs *sum, int depth) {
  size_t count = 0;
  if (depth > 8 || REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0) return;
  CUgraphNode *nodes = calloc(count, sizeof *nodes);
  if (!nodes || REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS) count = 0;
  for (size_t i = 0; i < count; i++) {
    CUgraphNodeType type;
    CUgraph child;
    if (REAL(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS) continue;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) add_node(nodes[i], sum);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS) {
      add_graph(child, sum, depth + 1);
    }
  }
  free(nodes);
}

/* One entry a device: executables lie at addresses with room for that. `bytes` is 1 once its memory
 * was there. */
static uint64_t key_of(CUgraphExec exec, int device) {
  return (uint64_t)(uintptr_t)exec * PENSTOCK_GRAPH_MEMORY_DEVICES + (uint64_t)device;
}

void penstock_graph_memory_made(CUgraphExec exec, CUgraph graph) {
  if (!is_in_use()) return;
  needs sum = {{0}};
  add_graph(graph, &sum, 0);
  for (int device = 0; device < PENSTOCK_GRAPH_MEMORY_DEVICES; device++) {
    if (sum.bytes[device] == 0) continue;
    penstock_object object = {.key = key_of(exec, device),
                              .detail = sum.bytes[device],
                              .grant = -1,
                              .kind = PENSTOCK_GRAPH_EXEC};
    if (!penstock_object_put(&object)) penstock_log("no memory to remember a graph's memory");
  }
}

static void cancel(const penstock_graph_memory_pass *pass) {
  for (unsigned i = 0; i < pass->count; i++) {
    penstock_reserve_cancel_growth(pass->reserves[i], pass->bounds[i]);
  }
}

CUresult penstock_graph_memory_enter(penstock_graph_memory_pass *pass, CUgraphExec exec) {
  pass->exec = exec;
  pass->count = 0;
  if (!is_in_use()) return CUDA_SUCCESS;
  for (int device = 0; device < PENSTOCK_GRAPH_MEMORY_DEVICES; device++) {
    penstock_object entry;
    if (!penstock_object_find(PENSTOCK_GRAPH_EXEC, key_of(exec, device), &entry)) continue;
    penstock_reserve *reserve = penstock_reserve_of_graphs(device);
    uint64_t bound = 0;
    CUresult result = reserve ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (reserve && !entry.bytes)
      result = penstock_reserve_admit_growth(reserve, entry.detail, &bound);
    if (result != CUDA_SUCCESS) {
      cancel(pass);
      pass->count = 0;
      return result;
    }
    pass->reserves[pass->count] = reserve;
    pass->bounds[pass->count++] = bound;
  }
  return CUDA_SUCCESS;
}

CUresult penstock_graph_memory_leave(const penstock_graph_memory_pass *pass, CUresult result) {
  if (pass->count == 0) return result;
  if (result != CUDA_SUCCESS) {
    cancel(pass);
    for (unsigned i = 0; i < pass->count; i++) {
      penstock_reserve_settle(pass->reserves[i], 0); /* one device may have grown, not the next */
    }
    return result;
  }
  for (unsigned i = 0; i < pass->count; i++) {
    penstock_object entry;
    if (!penstock_reserve_settle(pass->reserves[i], pass->bounds[i])) {
      penstock_log("graph memory of device %d grew beyond the quota", pass->reserves[i]->device);
    }
    uint64_t key = key_of(pass->exec, pass->reserves[i]->device);
    if (penstock_object_find(PENSTOCK_GRAPH_EXEC, key, &entry) && !entry.bytes) {
      entry.bytes = 1;
      penstock_object_put(&entry);
    }
  }
  return result;
}

static bool clear_present(penstock_object *entry, void *device) {
  if (entry->key % PENSTOCK_GRAPH_MEMORY_DEVICES == (uint64_t)*(CUdevice *)device) entry->bytes = 0;
  return false;
}

void penstock_graph_memory_trimmed(CUdevice device) {
  penstock_object_each(PENSTOCK_GRAPH_EXEC, clear_present, &device);
}

void penstock_graph_memory_gone(CUgraphExec exec) {
  if (!is_in_use()) return;
  penstock_object entry;
  for (int device = 0; device < PENSTOCK_GRAPH_MEMORY_DEVICES; device++) {
    penstock_object_take(PENSTOCK_GRAPH_EXEC, key_of(exec, device), &entry);
  }
}
