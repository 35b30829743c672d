/* Graph memory: allocation nodes are charged through the reserve that each device keeps for graphs
 * (reserve.h), before and after the calls that may make it grow.
 *
 * The memory that one executable may need at the same time is planned from its graph
 * (graph_plan.h). Several executables need more. In one stream they never run at the same time and
 * use the same memory, except for what they leave allocated; in different streams they may all run
 * at the same time. Before a launch, the part of their combined need that the reserve does not have
 * yet is charged, but no more than the executable's own need. That drivers share memory within a
 * stream must be confirmed on a real GPU. With a driver that does not, the reserve exceeds what was
 * admitted, and no graph is launched until the excess is charged or returned.
 *
 * None of this happens in programs that make no allocation nodes, either explicitly or by capturing
 * cuMemAllocAsync. */
#pragma once

#include <cuda.h>
#include <stdbool.h>

#include "memory/graph_plan.h"
#include "memory/reserve.h"

/* Notes that the program has made an allocation node or captured an allocation. */
void penstock_graph_memory_seen(void);

/* Records how much memory launches of `exec` may need; call after an instantiation or after an
 * update from another graph. `taken` is true if `enter_new` has counted the graph's needs
 * already. */
void penstock_graph_memory_made(CUgraphExec exec, CUgraph graph, bool taken);
/* Records the need again after a change of one child graph. */
void penstock_graph_memory_changed(CUgraphExec exec, CUgraph child);

/* Call `enter` before and `leave` after a driver call that may map memory: a launch, an upload, or
 * an instantiation with upload. `enter` charges the growth that the devices' reserves may have, and
 * `leave` uncharges what they did not use. If `enter` fails, return its result to the program
 * without calling the driver. */
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

/* Call after the program has trimmed the device's reserve. */
void penstock_graph_memory_trimmed(CUdevice device);

/* Call after the executable was destroyed. */
void penstock_graph_memory_gone(CUgraphExec exec);

/* Adds the graph reserves of all granted devices to the list, if the program uses memory nodes. */
void penstock_graph_memory_reserves(void);
