/* What a kernel needs of the device before it runs: the code of its library in the context, and
 * local memory for its threads. */
#pragma once

#include "hooks/launch.h"
#include "hooks/limit.h"

/* Before a launch of a kind that was not launched in the context so far. What is no kernel is let
 * through. The raise is to be taken back if the driver refuses the launch. */
CUresult penstock_kernel_admit(const penstock_kind_key *key, CUcontext context, int grant,
                               penstock_local_raise *raise);

/* The same of one kernel node, and of all that a graph and the graphs in it hold: before an
 * executable is made of it or gets it. It may be launched at any time after that, also by a kernel;
 * so nothing is taken back. */
CUresult penstock_node_admit(CUfunction function, CUkernel kernel, CUcontext context);
CUresult penstock_graph_kernels_admit(CUgraph graph);
