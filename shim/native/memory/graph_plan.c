#include "memory/graph_plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "loading/driver.h"
#include "memory/location.h"

#define PIECE_BYTES (2u << 20)
#define DEEPEST 32
/* Limit for searches of freed memory, beyond which all memory counts as new. */
#define MOST_STEPS 20000000

typedef struct item {
  CUgraphNode node;
  uint32_t first_before,
      count_before;    /* range of plan.before with the nodes that this node depends on */
  uint32_t missing;    /* number of nodes that this node depends on and that are not planned yet */
  uint32_t seen_by;    /* number of the last search that visited this node */
  CUdeviceptr address; /* address of an allocation */
  int device;
  uint64_t bytes;
  bool freed;
  uint64_t left[]; /* bytes of each device that this node freed and that are not reused yet */
} item;

typedef struct plan {
  uint32_t count;
  size_t item_bytes;
  char *items;
  uint32_t *before; /* numbers of items */
  uint32_t *after, *first_after;
  uint32_t *order; /* order of planning, also used as the queue of a search */
  uint32_t *queue;
  uint32_t searches;
  uint64_t steps;
  uint64_t idle[PENSTOCK_GRAPH_DEVICES]; /* sums of `left` */
  penstock_graph_needs *needs;
} plan;

static item *item_of(const plan *p, uint32_t index) {
  return (item *)(p->items + index * p->item_bytes);
}

static int by_node(const void *a, const void *b) {
  CUgraphNode left = ((const item *)a)->node, right = ((const item *)b)->node;
  return left < right ? -1 : left > right;
}

static bool index_of(const plan *p, CUgraphNode node, uint32_t *index) {
  item key = {.node = node};
  item *found = bsearch(&key, p->items, p->count, p->item_bytes, by_node);
  if (found) *index = (uint32_t)(((char *)found - p->items) / (ptrdiff_t)p->item_bytes);
  return found != NULL;
}

/* Reads the graph's edges. Edge data does not matter here: even with programmatic launch, a kernel
 * starts no earlier than the end of the nodes that its predecessor depends on. */
static size_t edges_of(CUgraph graph, CUgraphNode **from, CUgraphNode **to) {
  size_t count = 0;
  *from = *to = NULL;
  CUresult result = REAL(cuGraphGetEdges_v2)(graph, NULL, NULL, NULL, &count);
  bool old = result != CUDA_SUCCESS;
  if (old) result = REAL(cuGraphGetEdges)(graph, NULL, NULL, &count);
  if (result != CUDA_SUCCESS || !count) return 0;
  CUgraphEdgeData *data = calloc(count, sizeof *data);
  *from = calloc(count, sizeof **from);
  *to = calloc(count, sizeof **to);
  bool fine = data && *from && *to;
  if (fine) {
    result = old ? REAL(cuGraphGetEdges)(graph, *from, *to, &count)
                 : REAL(cuGraphGetEdges_v2)(graph, *from, *to, data, &count);
  }
  free(data);
  return fine && result == CUDA_SUCCESS ? count : 0;
}

/* Links each item to the items that it depends on. Without edges no node depends on another, and no
 * memory is reused. */
static bool link_items(plan *p, CUgraph graph) {
  CUgraphNode *from, *to;
  size_t count = edges_of(graph, &from, &to), fill = 0;
  p->before = calloc(count + 1, sizeof *p->before);
  p->after = calloc(count + 1, sizeof *p->after);
  p->first_after = calloc(p->count + 2, sizeof *p->first_after);
  bool fine = p->before && p->after && p->first_after;
  uint32_t *ends = fine ? calloc(2 * count + 1, sizeof *ends) : NULL;
  fine = fine && ends;
  for (size_t i = 0; fine && i < count; i++) {
    uint32_t a, b;
    if (!index_of(p, from[i], &a) || !index_of(p, to[i], &b)) continue;
    ends[2 * fill] = a;
    ends[2 * fill++ + 1] = b;
    item_of(p, b)->count_before++;
    p->first_after[a + 2]++;
  }
  uint32_t sum = 0;
  for (uint32_t i = 0; fine && i < p->count; i++) {
    item_of(p, i)->first_before = sum;
    sum += item_of(p, i)->count_before;
    p->first_after[i + 1] += p->first_after[i];
  }
  for (size_t i = 0; fine && i < fill; i++) {
    item *b = item_of(p, ends[2 * i + 1]);
    p->before[b->first_before + b->missing++] = ends[2 * i];
    p->after[p->first_after[ends[2 * i] + 1]++] = ends[2 * i + 1];
  }
  free(ends);
  free(from);
  free(to);
  return fine;
}

/* Reuses up to `bytes` of memory that was freed before `index`. Returns how much was reused. */
static uint64_t use_again(plan *p, uint32_t index, int device, uint64_t bytes) {
  uint32_t head = 0, tail = 0, search = ++p->searches;
  uint64_t got = 0;
  p->queue[tail++] = index;
  while (head < tail && got < bytes && p->idle[device] && p->steps < MOST_STEPS) {
    item *at = item_of(p, p->queue[head++]);
    uint64_t part = at->left[device] < bytes - got ? at->left[device] : bytes - got;
    at->left[device] -= part;
    p->idle[device] -= part;
    got += part;
    for (uint32_t i = 0; i < at->count_before; i++, p->steps++) {
      uint32_t before = p->before[at->first_before + i];
      if (item_of(p, before)->seen_by == search) continue;
      item_of(p, before)->seen_by = search;
      p->queue[tail++] = before;
    }
  }
  return got;
}

static void take(plan *p, uint32_t index, int device, uint64_t bytes) {
  uint64_t anew = bytes - use_again(p, index, device, bytes);
  uint64_t *peak = &p->needs->peak[device];
  if (__builtin_add_overflow(*peak, anew, peak)) *peak = UINT64_MAX / 2;
}

static void give(plan *p, item *at, int device, uint64_t bytes) {
  at->left[device] += bytes;
  p->idle[device] += bytes;
}

/* Sets a need larger than any device's memory, so that a graph that cannot be planned is not
 * launched. */
static void give_up(penstock_graph_needs *needs) {
  penstock_log("the memory of a graph cannot be planned, so the graph will be refused");
  needs->peak[0] = UINT64_MAX / 2;
}

static void plan_allocation(plan *p, uint32_t index) {
  CUDA_MEM_ALLOC_NODE_PARAMS parameters;
  item *at = item_of(p, index);
  const CUmemPoolProps *pool = &parameters.poolProps;
  if (REAL(cuGraphMemAllocNodeGetParams)(at->node, &parameters) != CUDA_SUCCESS) {
    give_up(p->needs);
    return;
  }
  if (penstock_location_is_free(&pool->location, pool->allocType)) return;
  at->device = penstock_location_device(&pool->location);
  if (at->device < 0 || at->device >= PENSTOCK_GRAPH_DEVICES) {
    give_up(p->needs);
    return;
  }
  uint64_t bytes = parameters.bytesize;
  if (bytes > UINT64_MAX / 4) bytes = UINT64_MAX / 4; /* no device has this much memory either */
  at->address = parameters.dptr;
  at->bytes = (bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
  take(p, index, at->device, at->bytes);
  p->needs->kept[at->device] += at->bytes;
}

/* Frees the last of the first `before` planned allocations that has this address. Memory of other
 * graphs does not count. */
static void plan_free(plan *p, uint32_t index, uint32_t before) {
  CUdeviceptr address = 0;
  if (REAL(cuGraphMemFreeNodeGetParams)(item_of(p, index)->node, &address) != CUDA_SUCCESS) return;
  while (before-- > 0) {
    item *at = item_of(p, p->order[before]);
    if (!at->bytes || at->freed || at->address != address) continue;
    at->freed = true;
    p->needs->kept[at->device] -= at->bytes;
    give(p, item_of(p, index), at->device, at->bytes);
    return;
  }
}

static void plan_graph(CUgraph graph, penstock_graph_needs *needs, int depth);

/* Plans a child graph: its need is taken when it starts, and what it does not keep is free
 * afterwards. */
static void plan_inner(plan *p, uint32_t index, CUgraph graph, int depth) {
  penstock_graph_needs inner = {{0}, {0}};
  plan_graph(graph, &inner, depth + 1);
  for (int device = 0; device < PENSTOCK_GRAPH_DEVICES; device++) {
    if (!inner.peak[device]) continue;
    take(p, index, device, inner.peak[device]);
    give(p, item_of(p, index), device, inner.peak[device] - inner.kept[device]);
    p->needs->kept[device] += inner.kept[device];
  }
}

/* Plans the bodies of conditional nodes. Drivers so far allow no memory nodes in them. */
static void plan_bodies(plan *p, uint32_t index, int depth) {
  CUgraphNodeParams parameters;
  memset(&parameters, 0, sizeof parameters);
  if (REAL(cuGraphNodeGetParams)(item_of(p, index)->node, &parameters) != CUDA_SUCCESS ||
      !parameters.conditional.phGraph_out) {
    return;
  }
  for (unsigned i = 0; i < parameters.conditional.size; i++) {
    plan_inner(p, index, parameters.conditional.phGraph_out[i], depth);
  }
}

static void plan_item(plan *p, uint32_t index, uint32_t before, int depth) {
  CUgraphNodeType type;
  CUgraph child;
  CUgraphNode node = item_of(p, index)->node;
  if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) return;
  if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) plan_allocation(p, index);
  if (type == CU_GRAPH_NODE_TYPE_MEM_FREE) plan_free(p, index, before);
  if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL) plan_bodies(p, index, depth);
  if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
      REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS) {
    plan_inner(p, index, child, depth);
  }
}

/* Plans all items in topological order. */
static void plan_items(plan *p, int depth) {
  uint32_t planned = 0, tail = 0;
  for (uint32_t i = 0; i < p->count; i++) {
    if (!item_of(p, i)->missing) p->order[tail++] = i;
  }
  for (; planned < tail; planned++) {
    uint32_t index = p->order[planned];
    plan_item(p, index, planned, depth);
    for (uint32_t i = p->first_after[index]; i < p->first_after[index + 1]; i++) {
      if (!--item_of(p, p->after[i])->missing) p->order[tail++] = p->after[i];
    }
  }
}

static void plan_graph(CUgraph graph, penstock_graph_needs *needs, int depth) {
  size_t count = 0;
  if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count) return;
  if (depth > DEEPEST || count >= UINT32_MAX / 2) {
    give_up(needs);
    return;
  }
  plan p = {.item_bytes = sizeof(item) + PENSTOCK_GRAPH_DEVICES * sizeof(uint64_t), .needs = needs};
  CUgraphNode *nodes = calloc(count, sizeof *nodes);
  p.items = calloc(count, p.item_bytes);
  p.order = calloc(count, sizeof *p.order);
  p.queue = calloc(count + 1, sizeof *p.queue);
  bool fine = nodes && p.items && p.order && p.queue &&
              REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS;
  p.count = fine ? (uint32_t)count : 0;
  for (uint32_t i = 0; i < p.count; i++) item_of(&p, i)->node = nodes[i];
  if (p.count) qsort(p.items, p.count, p.item_bytes, by_node);
  if (fine && link_items(&p, graph)) {
    plan_items(&p, depth);
  } else {
    give_up(needs);
  }
  free(nodes);
  free(p.items);
  free(p.before);
  free(p.after);
  free(p.first_after);
  free(p.order);
  free(p.queue);
}

void penstock_graph_plan(CUgraph graph, penstock_graph_needs *needs) {
  memset(needs, 0, sizeof *needs);
  plan_graph(graph, needs, 0);
}
