/* Memory of graphs: what allocation nodes take is charged through the reserve that each device
 * keeps for graphs, around the calls that may make it grow.
 *
 * An executable may need so much at once as its graph's plan says (graph_plan.h). What executables
 * take together: graphs in one stream never run at the same time, and use the same memory, but for
 * what they leave allocated; others may run at the same time, each once. Memory that is there
 * already is not taken again, so before a launch is charged what lacks of that sum, but no more
 * than the executable's own need. A real GPU must confirm that drivers do share so in a stream;
 * where one does not, its reserve is more than was admitted, and no graph is launched before that
 * was charged or given back.
 *
 * Programs that make no allocation nodes, by hand or by capturing cuMemAllocAsync, pay nothing.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>

#include "graph_plan.h"
#include "reserve.h"

/* An allocation node was made, or an allocation captured. */
void penstock_graph_memory_seen(void);

/* After an instantiation, or an update from another graph: notes what launches of `exec` may need.
 * `taken`: a pass with the graph's needs has gone before. */
void penstock_graph_memory_made(CUgraphExec exec, CUgraph graph, bool taken);
/* The same where only a graph in it was changed. */
void penstock_graph_memory_changed(CUgraphExec exec, CUgraph child);

/* Around a call that may map memory: a launch, an upload, an instantiation with upload. It charges
 * what the devices' reserves may grow by, and gives back afterwards what they did not. Anything but
 * CUDA_SUCCESS is to be returned to the program without calling the driver. */
typedef struct penstock_graph_memory_pass {
  unsigned count;
  penstock_reserve *reserves[PENSTOCK_GRAPH_DEVICES];
  uint64_t bounds[PENSTOCK_GRAPH_DEVICES];
} penstock_graph_memory_pass;
CUresult penstock_graph_memory_enter(penstock_graph_memory_pass *pass, CUgraphExec exec,
                                     CUstream stream, bool per_thread);
CUresult penstock_graph_memory_enter_new(penstock_graph_memory_pass *pass, CUgraph graph,
                                         CUstream stream, bool per_thread);
CUresult penstock_graph_memory_leave(const penstock_graph_memory_pass *pass, CUresult result);

/* The program trimmed the device's reserve. */
void penstock_graph_memory_trimmed(CUdevice device);

/* The executable was destroyed. */
void penstock_graph_memory_gone(CUgraphExec exec);

/* Makes the devices' reserves known, once there are memory nodes. */
void penstock_graph_memory_reserves(void);
