/* What a kernel needs of the device before it runs: the code of its library in the context, and
 * local memory for its threads. */
#pragma once

#include "hooks/launch.h"
#include "hooks/limit.h"

/* Grows when functions go: their handles may come back with another meaning. */
extern uint64_t penstock_functions_gone;
void penstock_functions_go(void);

/* What stands for "admitted": a function in a context, by the number that it alone has. Never 0. */
static inline uint64_t penstock_admission_of(const void *what, uint64_t context_birth) {
  uint64_t gone = __atomic_load_n(&penstock_functions_gone, __ATOMIC_ACQUIRE);
  return ((gone << 32 | context_birth) * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)what) | 1;
}

/* Before a launch of a kind that was not launched in the context so far. What is no kernel is let
 * through. The raise is to be taken back if the driver refuses the launch. */
CUresult penstock_kernel_admit(const penstock_kind_key *key, CUcontext context, int grant,
                               penstock_local_raise *raise);

/* The same of one kernel node, and of all that a graph and the graphs in it hold: before an
 * executable is made of it or gets it. It may be launched at any time after that, also by a kernel;
 * so nothing is taken back later. */
CUresult penstock_node_admit(CUfunction function, CUkernel kernel, CUcontext context);
CUresult penstock_graph_kernels_admit(CUgraph graph);

/* The same where the driver may yet refuse the executable. */
typedef struct penstock_local_raises {
  penstock_local_raise *all;
  size_t count, room;
} penstock_local_raises;
CUresult penstock_graph_kernels_begin(CUgraph graph, penstock_local_raises *raises);
/* Always after that: takes the raises back if the executable was refused. */
void penstock_graph_kernels_end(penstock_local_raises *raises, CUresult result);
