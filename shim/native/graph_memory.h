/* Memory of graphs: what allocation nodes take is charged through the reserve that each device
 * keeps for graphs, around the calls that may make it grow.
 *
 * Programs that make no allocation nodes, by hand or by capturing cuMemAllocAsync, pay nothing.
 */
#pragma once

#include <cuda.h>

#include "reserve.h"

/* An allocation node was made, or an allocation captured. */
void penstock_graph_memory_seen(void);

/* After an instantiation: notes what launches of `exec` may need. */
void penstock_graph_memory_made(CUgraphExec exec, CUgraph graph);

/* Around a launch or upload. The first one charges all that the graph's nodes ask for, and gives
 * back what the reserve did not grow by. Anything but CUDA_SUCCESS is to be returned to the program
 * without calling the driver. */
#define PENSTOCK_GRAPH_MEMORY_DEVICES 16
typedef struct penstock_graph_memory_pass {
  CUgraphExec exec;
  unsigned count;
  penstock_reserve *reserves[PENSTOCK_GRAPH_MEMORY_DEVICES];
  uint64_t bounds[PENSTOCK_GRAPH_MEMORY_DEVICES];
} penstock_graph_memory_pass;
CUresult penstock_graph_memory_enter(penstock_graph_memory_pass *pass, CUgraphExec exec);
CUresult penstock_graph_memory_leave(const penstock_graph_memory_pass *pass, CUresult result);

/* The device's reserve was trimmed: the next launches may make it grow again. */
void penstock_graph_memory_trimmed(CUdevice device);

/* The executable was destroyed. */
void penstock_graph_memory_gone(CUgraphExec exec);
