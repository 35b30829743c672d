/* Graphs: nodes, edges and their order. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/graph.h"

static uint32_t last_graph_id;

sim_graph *sim_graph_new(void) {
  sim_graph *g = calloc(1, sizeof *g);
  if (!g) return NULL;
  g->id = __atomic_add_fetch(&last_graph_id, 1, __ATOMIC_RELAXED);
  sim_handle_add(g, SIM_GRAPH);
  return g;
}

CUresult sim_graph_of(CUgraph handle, sim_graph **graph) {
  if (!sim_handle_is(handle, SIM_GRAPH)) return CUDA_ERROR_INVALID_VALUE;
  *graph = (sim_graph *)handle;
  return CUDA_SUCCESS;
}

CUresult sim_node_of(CUgraphNode handle, sim_node **node) {
  if (!sim_handle_is(handle, SIM_NODE)) return CUDA_ERROR_INVALID_VALUE;
  *node = (sim_node *)handle;
  return CUDA_SUCCESS;
}

static bool append(sim_node ***list, size_t *count, size_t *room, sim_node *node) {
  if (*count == *room) {
    size_t more = *room ? 2 * *room : 2;
    sim_node **grown = realloc(*list, more * sizeof *grown);
    if (!grown) return false;
    *list = grown;
    *room = more;
  }
  (*list)[(*count)++] = node;
  return true;
}

static void erase(sim_node **list, size_t *count, const sim_node *node) {
  for (size_t i = 0; i < *count; i++) {
    if (list[i] != node) continue;
    memmove(&list[i], &list[i + 1], (--*count - i) * sizeof *list);
    return;
  }
}

static bool has(sim_node *const *list, size_t count, const sim_node *node) {
  for (size_t i = 0; i < count; i++)
    if (list[i] == node) return true;
  return false;
}

CUresult sim_edge_add(sim_node *from, sim_node *to) {
  REQUIRE(from != to && from->graph == to->graph, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(!has(to->from, to->from_count, from), CUDA_ERROR_INVALID_VALUE);
  bool fine = append(&from->to, &from->to_count, &from->to_room, to) &&
              append(&to->from, &to->from_count, &to->from_room, from);
  return fine ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void release_work(sim_node *node) {
  if (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH) sim_graph_free(node->work.child.graph);
  if (node->work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) sim_conditional_release(&node->work);
  sim_work_release(&node->work);
}

static void free_node(sim_node *node) {
  sim_handle_remove(node);
  release_work(node);
  free(node->from);
  free(node->to);
  free(node);
}

CUresult sim_graph_add(sim_graph *graph, sim_node *const *from, size_t from_count,
                       const sim_work *work, sim_node **out) {
  for (size_t i = 0; i < from_count; i++) {
    REQUIRE(sim_handle_is(from[i], SIM_NODE) && from[i]->graph == graph, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!has(from, i, from[i]), CUDA_ERROR_INVALID_VALUE);
  }
  sim_node *node = calloc(1, sizeof *node);
  REQUIRE(node, CUDA_ERROR_OUT_OF_MEMORY);
  node->graph = graph;
  node->work = *work;
  node->enabled = true;
  node->id = sim_next_id();
  sim_big_lock();
  bool fine =
      sim_work_keep(&node->work) && append(&graph->nodes, &graph->count, &graph->room, node);
  node->local_id = graph->next_local_id++;
  for (size_t i = 0; fine && i < from_count; i++)
    fine = sim_edge_add(from[i], node) == CUDA_SUCCESS;
  sim_big_unlock();
  if (!fine) return CUDA_ERROR_OUT_OF_MEMORY;
  sim_handle_add(node, SIM_NODE);
  if (out) *out = node;
  return CUDA_SUCCESS;
}

void sim_graph_free(sim_graph *graph) {
  for (size_t i = 0; i < graph->count; i++) free_node(graph->nodes[i]);
  sim_objects_drop(graph);
  sim_conditions_forget(graph);
  sim_handle_remove(graph);
  free(graph->nodes);
  free(graph);
}

sim_graph *sim_graph_clone(const sim_graph *graph) {
  sim_graph *clone = sim_graph_new();
  for (size_t i = 0; clone && i < graph->count; i++) {
    sim_node *node = graph->nodes[i], *made;
    sim_work work = node->work;
    if (work.type == CU_GRAPH_NODE_TYPE_GRAPH) {
      work.child.graph = sim_graph_clone(work.child.graph);
      work.child.graph->owned = true;
    }
    if (work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL && !sim_conditional_clone(&work)) break;
    if (sim_graph_add(clone, NULL, 0, &work, &made) != CUDA_SUCCESS) break;
    made->original = node;
    made->enabled = node->enabled;
    node->order = i;
  }
  for (size_t i = 0; clone && i < graph->count && i < clone->count; i++)
    for (size_t k = 0; k < graph->nodes[i]->from_count; k++)
      sim_edge_add(clone->nodes[graph->nodes[i]->from[k]->order], clone->nodes[i]);
  if (clone) sim_objects_retain(clone, graph);
  return clone;
}

/* Sorts the nodes into launch order: among the nodes that are ready, the one that was added first
 * comes first. */
bool sim_graph_sort(const sim_graph *graph, sim_node **order) {
  size_t *missing = calloc(graph->count + 1, sizeof *missing), done = 0, tail = 0;
  if (!missing) return false;
  for (size_t i = 0; i < graph->count; i++) {
    graph->nodes[i]->order = i;
    missing[i] = graph->nodes[i]->from_count;
    if (!missing[i]) order[tail++] = graph->nodes[i];
  }
  while (done < tail) {
    sim_node *node = order[done++];
    for (size_t k = 0; k < node->to_count; k++)
      if (!--missing[node->to[k]->order]) order[tail++] = node->to[k];
  }
  free(missing);
  return done == graph->count;
}

bool sim_graph_leads(sim_node *const *from, size_t count, const sim_node *to) {
  for (size_t i = 0; i < count; i++)
    if (from[i] == to || sim_graph_leads(from[i]->from, from[i]->from_count, to)) return true;
  return false;
}

/* ---- calls ---- */

CUresult CUDAAPI cuGraphCreate(CUgraph *out, unsigned int flags) {
  ENTER("cuGraphCreate");
  REQUIRE(out && !flags, CUDA_ERROR_INVALID_VALUE);
  *out = (CUgraph)sim_graph_new();
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult CUDAAPI cuGraphDestroy(CUgraph handle) {
  ENTER("cuGraphDestroy");
  sim_graph *g;
  TRY(sim_graph_of(handle, &g));
  REQUIRE(!g->owned, CUDA_ERROR_INVALID_VALUE);
  sim_graph_free(g);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphClone(CUgraph *out, CUgraph handle) {
  ENTER("cuGraphClone");
  sim_graph *g;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_graph_of(handle, &g));
  *out = (CUgraph)sim_graph_clone(g);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult CUDAAPI cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode original, CUgraph handle) {
  ENTER("cuGraphNodeFindInClone");
  sim_graph *g;
  REQUIRE(out && original, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_graph_of(handle, &g));
  for (size_t i = 0; i < g->count; i++)
    if (g->nodes[i]->original == (sim_node *)original) {
      *out = (CUgraphNode)g->nodes[i];
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type) {
  ENTER("cuGraphNodeGetType");
  sim_node *node;
  REQUIRE(type, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_of(handle, &node));
  *type = node->work.type;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphNodeGetContainingGraph(CUgraphNode handle, CUgraph *out) {
  ENTER("cuGraphNodeGetContainingGraph");
  sim_node *node;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_of(handle, &node));
  *out = (CUgraph)node->graph;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphNodeGetLocalId(CUgraphNode handle, unsigned int *id) {
  ENTER("cuGraphNodeGetLocalId");
  sim_node *node;
  REQUIRE(id, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_of(handle, &node));
  *id = node->local_id;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphNodeGetToolsId(CUgraphNode handle, unsigned long long *id) {
  ENTER("cuGraphNodeGetToolsId");
  sim_node *node;
  REQUIRE(id, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_node_of(handle, &node));
  *id = node->id;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphGetId(CUgraph handle, unsigned int *id) {
  ENTER("cuGraphGetId");
  sim_graph *g;
  REQUIRE(id, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_graph_of(handle, &g));
  *id = g->id;
  return CUDA_SUCCESS;
}

/* Returns a list of nodes as CUDA does. If `out` is NULL, only the count is returned. A short array
 * receives the first nodes; the rest of a long one is filled with NULL. */
static CUresult give_list(sim_node *const *list, size_t have, CUgraphNode *out, size_t *count) {
  REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
  if (out) {
    for (size_t i = 0; i < *count; i++) out[i] = i < have ? (CUgraphNode)list[i] : NULL;
    if (*count > have) *count = have;
  } else {
    *count = have;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode *out, size_t *count) {
  ENTER("cuGraphGetNodes");
  sim_graph *g;
  TRY(sim_graph_of(handle, &g));
  return give_list(g->nodes, g->count, out, count);
}
CUresult CUDAAPI cuGraphGetRootNodes(CUgraph handle, CUgraphNode *out, size_t *count) {
  ENTER("cuGraphGetRootNodes");
  sim_graph *g;
  TRY(sim_graph_of(handle, &g));
  sim_node **roots = calloc(g->count + 1, sizeof *roots);
  REQUIRE(roots, CUDA_ERROR_OUT_OF_MEMORY);
  size_t n = 0;
  for (size_t i = 0; i < g->count; i++)
    if (!g->nodes[i]->from_count) roots[n++] = g->nodes[i];
  CUresult result = give_list(roots, n, out, count);
  free(roots);
  return result;
}

static CUresult get_edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data,
                          size_t *count) {
  sim_graph *g;
  TRY(sim_graph_of(handle, &g));
  REQUIRE(count && !from == !to, CUDA_ERROR_INVALID_VALUE);
  size_t n = 0;
  for (size_t i = 0; i < g->count; i++)
    for (size_t k = 0; k < g->nodes[i]->to_count; k++, n++)
      if (from && n < *count) {
        from[n] = (CUgraphNode)g->nodes[i];
        to[n] = (CUgraphNode)g->nodes[i]->to[k];
        if (data) memset(&data[n], 0, sizeof data[n]);
      }
  if (!from || n < *count) *count = n;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphGetEdges(CUgraph handle, CUgraphNode *from, CUgraphNode *to,
                                 size_t *count) {
  ENTER("cuGraphGetEdges");
  return get_edges(handle, from, to, NULL, count);
}
CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph handle, CUgraphNode *from, CUgraphNode *to,
                                    CUgraphEdgeData *data, size_t *count) {
  ENTER("cuGraphGetEdges");
  return get_edges(handle, from, to, data, count);
}

static CUresult neighbours(CUgraphNode handle, bool before, CUgraphNode *out, CUgraphEdgeData *data,
                           size_t *count) {
  sim_node *node;
  TRY(sim_node_of(handle, &node));
  TRY(before ? give_list(node->from, node->from_count, out, count)
             : give_list(node->to, node->to_count, out, count));
  if (out && data) memset(data, 0, *count * sizeof *data);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode *out, size_t *count) {
  ENTER("cuGraphNodeGetDependencies");
  return neighbours(handle, true, out, NULL, count);
}
CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode *out,
                                               CUgraphEdgeData *data, size_t *count) {
  ENTER("cuGraphNodeGetDependencies");
  return neighbours(handle, true, out, data, count);
}
CUresult CUDAAPI cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode *out, size_t *count) {
  ENTER("cuGraphNodeGetDependentNodes");
  return neighbours(handle, false, out, NULL, count);
}
CUresult CUDAAPI cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode *out,
                                                 CUgraphEdgeData *data, size_t *count) {
  ENTER("cuGraphNodeGetDependentNodes");
  return neighbours(handle, false, out, data, count);
}

static CUresult change_edges(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                             size_t count, bool add) {
  sim_graph *g;
  TRY(sim_graph_of(handle, &g));
  REQUIRE(!count || (from && to), CUDA_ERROR_INVALID_VALUE);
  for (size_t i = 0; i < count; i++) {
    sim_node *a, *b;
    TRY(sim_node_of(from[i], &a));
    TRY(sim_node_of(to[i], &b));
    REQUIRE(a->graph == g && b->graph == g, CUDA_ERROR_INVALID_VALUE);
    if (add) {
      TRY(sim_edge_add(a, b));
    } else {
      REQUIRE(has(b->from, b->from_count, a), CUDA_ERROR_INVALID_VALUE);
      erase(a->to, &a->to_count, b);
      erase(b->from, &b->from_count, a);
    }
  }
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphAddDependencies(CUgraph g, const CUgraphNode *from, const CUgraphNode *to,
                                        size_t count) {
  ENTER("cuGraphAddDependencies");
  return change_edges(g, from, to, count, true);
}
CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph g, const CUgraphNode *from,
                                           const CUgraphNode *to, const CUgraphEdgeData *data,
                                           size_t count) {
  ENTER("cuGraphAddDependencies");
  (void)data;
  return change_edges(g, from, to, count, true);
}
CUresult CUDAAPI cuGraphRemoveDependencies(CUgraph g, const CUgraphNode *from,
                                           const CUgraphNode *to, size_t count) {
  ENTER("cuGraphRemoveDependencies");
  return change_edges(g, from, to, count, false);
}
CUresult CUDAAPI cuGraphRemoveDependencies_v2(CUgraph g, const CUgraphNode *from,
                                              const CUgraphNode *to, const CUgraphEdgeData *data,
                                              size_t count) {
  ENTER("cuGraphRemoveDependencies");
  (void)data;
  return change_edges(g, from, to, count, false);
}

CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode handle) {
  ENTER("cuGraphDestroyNode");
  sim_node *node;
  TRY(sim_node_of(handle, &node));
  REQUIRE(node->work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
              node->work.type != CU_GRAPH_NODE_TYPE_MEM_FREE,
          CUDA_ERROR_NOT_SUPPORTED);
  for (size_t i = 0; i < node->from_count; i++)
    erase(node->from[i]->to, &node->from[i]->to_count, node);
  for (size_t i = 0; i < node->to_count; i++)
    erase(node->to[i]->from, &node->to[i]->from_count, node);
  erase(node->graph->nodes, &node->graph->count, node);
  free_node(node);
  return CUDA_SUCCESS;
}
