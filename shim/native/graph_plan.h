/* How much device memory a graph may need at once, by the order that its edges demand.
 *
 * Memory of a node that frees may be used again by an allocation that comes behind it on every way
 * through the graph; nothing else may, for branches run in whatever order the device likes. So an
 * allocation takes what was freed before it, nearest first and each byte once, and the rest anew:
 * what is taken anew is the need. No schedule has more in use at the same time.
 *
 * Assumed of a driver, and to be seen on a real GPU: that it uses memory again wherever the order
 * allows it, as the programming guide says of addresses, and takes no more than whole pieces of 2
 * MiB for each allocation. What it does take is read and charged after each launch all the same.
 */
#pragma once

#include <cuda.h>
#include <stdint.h>

#define PENSTOCK_GRAPH_DEVICES 16

typedef struct penstock_graph_needs {
  uint64_t peak[PENSTOCK_GRAPH_DEVICES]; /* by device ordinal */
  uint64_t kept[PENSTOCK_GRAPH_DEVICES]; /* of that: not freed in the graph */
} penstock_graph_needs;

/* Those of the graphs in it included. Driver calls. */
void penstock_graph_plan(CUgraph graph, penstock_graph_needs *needs);
