/* Memory plan of a graph: how much device memory it may need at the same time, derived from the
 * order that its edges require.
 *
 * Memory of a free node may be reused only by an allocation that depends on that node, directly or
 * through others, because branches run in any order. So an allocation reuses what was freed before
 * it, nearest first and each byte once, and the rest is new memory. The graph's need is the sum of
 * the new memory: no schedule has more in use at the same time.
 *
 * This assumes that a driver reuses memory wherever the order allows it, as the programming guide
 * says of addresses, and takes whole pieces of 2 MiB for each allocation. Both must be confirmed on
 * a real GPU. In any case the size of the reserve is read and charged after each launch. */
#pragma once

#include <cuda.h>
#include <stdint.h>

#define PENSTOCK_GRAPH_DEVICES 16

typedef struct penstock_graph_needs {
  uint64_t peak[PENSTOCK_GRAPH_DEVICES]; /* indexed by device ordinal */
  uint64_t kept[PENSTOCK_GRAPH_DEVICES]; /* part of the peak that the graph does not free */
} penstock_graph_needs;

/* Plans a graph, including its child graphs. Makes driver calls. */
void penstock_graph_plan(CUgraph graph, penstock_graph_needs *needs);
