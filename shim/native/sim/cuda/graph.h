/* Graphs, their nodes, and executable graphs. */
#pragma once
#include "sim/cuda/work.h"

typedef struct sim_graph sim_graph;

typedef struct sim_node {
  sim_graph *graph;
  sim_work work;
  struct sim_node **from, **to; /* predecessors and successors */
  size_t from_count, from_room, to_count, to_room;
  uint64_t id;
  uint32_t local_id;
  bool enabled;
  const struct sim_node *original; /* in a clone, the node that it was made from */
  size_t order;                    /* temporary: position in topological order */
} sim_node;

typedef struct sim_kept_object {
  struct sim_user_object *object;
  unsigned count;
  struct sim_kept_object *next;
} sim_kept_object;

struct sim_graph {
  sim_node **nodes;
  size_t count, room;
  uint32_t id, next_local_id;
  /* true if a node or executable owns the graph, so that the program cannot destroy it */
  bool owned;
  sim_kept_object *objects;
};

typedef struct sim_exec {
  sim_graph *graph; /* a clone of the program's graph */
  uint64_t flags;
  sim_ref last_end; /* end of the newest launch */
  /* true if kernels on the device may launch it, provided that it is a device graph */
  bool uploaded;
  uint32_t id;
} sim_exec;

/* graph.c */
sim_graph *sim_graph_new(void);
void sim_graph_free(sim_graph *graph);
sim_graph *sim_graph_clone(const sim_graph *graph);
CUresult sim_graph_of(CUgraph handle, sim_graph **graph);
CUresult sim_node_of(CUgraphNode handle, sim_node **node);
/* Makes a deep copy of `work`. The caller must not hold the big lock. */
CUresult sim_graph_add(sim_graph *graph, sim_node *const *from, size_t from_count,
                       const sim_work *work, sim_node **out);
CUresult sim_edge_add(sim_node *from, sim_node *to);
/* returns false if there is a cycle */
bool sim_graph_sort(const sim_graph *graph, sim_node **order);
/* returns whether `to` is one of `from` or precedes one of them */
bool sim_graph_leads(sim_node *const *from, size_t count, const sim_node *to);

/* graph_params.c */
CUresult sim_params_from_work(const sim_work *work, CUgraphNodeParams *params);
CUresult sim_work_from_params(const CUgraphNodeParams *params, sim_work *work);
CUresult sim_node_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, size_t count,
                      CUgraphNodeParams *params);
CUresult sim_node_get(CUgraphNode handle, CUgraphNodeType type, CUgraphNodeParams *params);
CUresult sim_node_set(CUgraphNode handle, const CUgraphNodeParams *params);
CUresult sim_node_replace(sim_node *node, const CUgraphNodeParams *params);
CUresult sim_exec_set(CUgraphExec exec, CUgraphNode handle, const CUgraphNodeParams *params);
CUresult sim_kernel_params_work(const CUDA_KERNEL_NODE_PARAMS *params, sim_work *work);

/* graph_conditional.c */
CUresult sim_conditional_work(CUDA_CONDITIONAL_NODE_PARAMS *params, sim_work *work);
bool sim_conditional_clone(sim_work *work); /* gives `work` its own copies of the bodies */
void sim_conditional_release(sim_work *work);
bool sim_conditional_fits(const sim_graph *graph, bool inside);
CUresult sim_conditional_run(const sim_work *work, sim_stream *lane);
bool sim_condition_is_of(uint64_t handle, const sim_graph *graph);
bool sim_conditions_all_used(const sim_graph *graph);
void sim_conditions_reset(const sim_graph *graph);
void sim_conditions_forget(const sim_graph *graph);

/* user_object.c */
void sim_objects_retain(sim_graph *graph, const sim_graph *from);
void sim_objects_drop(sim_graph *graph);

/* graph_exec.c */
CUresult sim_exec_run(sim_exec *exec, sim_stream *stream);
CUresult sim_graph_run(sim_graph *graph, sim_stream *stream);

/* graph_memory.c; the caller holds the big lock */
CUresult sim_exec_take_memory(sim_exec *exec, const sim_stream *stream, bool upload);
/* `end` is the end of the launch that took the memory */
void sim_exec_memory_ends(sim_exec *exec, const sim_ref *end);
void sim_exec_memory_forget(const sim_exec *exec); /* called when the executable is destroyed */
void sim_graph_memory_give(sim_gpu *gpu, uint64_t bytes);
