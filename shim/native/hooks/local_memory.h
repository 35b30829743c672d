/* Device memory that a kernel needs before it runs: the code of its library in the context, and
 * local memory for its threads. */
#pragma once

#include "hooks/launch.h"
#include "hooks/limit.h"

/* Grows when functions are unloaded, because their handles may be reused for other functions. */
extern uint64_t penstock_functions_gone;
void penstock_functions_go(void);

/* Identifies an admission of a function in a context, by the context's unique number. Never returns
 * 0. */
static inline uint64_t penstock_admission_of(const void *what, uint64_t context_birth) {
  uint64_t gone = __atomic_load_n(&penstock_functions_gone, __ATOMIC_ACQUIRE);
  return ((gone << 32 | context_birth) * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)what) | 1;
}

/* Charges the memory that a kernel needs; call before a launch of a kind that was not launched
 * in the context so far. Does nothing for other kinds. If the driver refuses the launch, undo
 * `raise`. */
CUresult penstock_kernel_admit(const penstock_kind_key *key, CUcontext context, int grant,
                               penstock_local_raise *raise);

/* Charge the memory of one kernel node, or of all kernels of a graph and of the graphs in it; call
 * before they become part of an executable. The executable can be launched at any later time, even
 * by a kernel, so nothing is uncharged later. */
CUresult penstock_node_admit(CUfunction function, CUkernel kernel, CUcontext context);
CUresult penstock_graph_kernels_admit(CUgraph graph);

/* Charges the kernels of a graph whose executable the driver may still refuse;
 * penstock_graph_kernels_end must follow. */
typedef struct penstock_local_raises {
  penstock_local_raise *all;
  size_t count, room;
} penstock_local_raises;
CUresult penstock_graph_kernels_begin(CUgraph graph, penstock_local_raises *raises);
/* Undoes the raises if the executable was refused. */
void penstock_graph_kernels_end(penstock_local_raises *raises, CUresult result);
