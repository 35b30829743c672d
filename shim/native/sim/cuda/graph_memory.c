/* Memory nodes of graphs. The device keeps the memory that launches needed until it is trimmed.
 *
 * An allocation reuses memory that earlier nodes freed. Graphs launched into the same stream use
 * the same memory one after another. Graphs on different streams may run at the same time and
 * therefore have separate memory while they run. Memory that a launch leaves allocated is not
 * reused until it is freed.
 */
#include <stdlib.h>

#include "sim/cuda/graph.h"

/* The memory that a launch uses while it runs. */
typedef struct sim_graph_use {
  sim_exec *exec; /* NULL if the executable has since been destroyed */
  uint32_t lane;
  uint64_t bytes;
  bool launching; /* true while `end` is not yet known */
  sim_ref end;
  struct sim_graph_use *next;
} sim_graph_use;

void sim_graph_memory_give(sim_gpu *gpu, uint64_t bytes) {
  gpu->graph_used_bytes -= bytes < gpu->graph_used_bytes ? bytes : gpu->graph_used_bytes;
}

/* ---- memory that a graph needs ---- */

static bool freed_inside(const sim_graph *graph, uint64_t address) {
  for (size_t i = 0; i < graph->count; i++) {
    const sim_work *w = &graph->nodes[i]->work;
    if (w->type == CU_GRAPH_NODE_TYPE_MEM_FREE && w->give.pointer == address) return true;
    if (w->type == CU_GRAPH_NODE_TYPE_GRAPH && freed_inside(w->child.graph, address)) return true;
  }
  return false;
}

/* Reuses memory that was freed before `node`, starting with the nearest node. Returns how much is
 * still missing. */
static uint64_t lacking(const sim_node *node, uint64_t *idle, bool *seen, uint64_t bytes) {
  for (size_t i = 0; i < node->from_count && bytes; i++) {
    const sim_node *before = node->from[i];
    if (seen[before->order]) continue;
    seen[before->order] = true;
    uint64_t part = idle[before->order] < bytes ? idle[before->order] : bytes;
    idle[before->order] -= part;
    bytes = lacking(before, idle, seen, bytes - part);
  }
  return bytes;
}

static const sim_node *allocation_of(const sim_graph *graph, const sim_gpu *gpu, uint64_t address) {
  for (size_t i = 0; i < graph->count; i++) {
    const sim_work *w = &graph->nodes[i]->work;
    if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && w->take.gpu == gpu &&
        w->take.alloc->address == address)
      return graph->nodes[i];
  }
  return NULL;
}

typedef struct need {
  uint64_t peak, kept;
} need;

static need need_of(const sim_graph *graph, const sim_gpu *gpu) {
  need n = {0, 0};
  sim_node **order = calloc(graph->count + 1, sizeof *order);
  uint64_t *idle = calloc(graph->count + 1, sizeof *idle);
  bool *seen = calloc(graph->count + 1, sizeof *seen);
  if (!order || !idle || !seen || !sim_graph_sort(graph, order)) abort();
  for (size_t i = 0; i < graph->count; i++) {
    const sim_node *node = order[i];
    const sim_work *w = &node->work;
    uint64_t takes = 0, gives = 0;
    if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && w->take.gpu == gpu)
      n.kept += takes = w->take.alloc->mapped_bytes;
    const sim_node *of =
        w->type == CU_GRAPH_NODE_TYPE_MEM_FREE ? allocation_of(graph, gpu, w->give.pointer) : NULL;
    if (of) n.kept -= gives = of->work.take.alloc->mapped_bytes;
    if (w->type == CU_GRAPH_NODE_TYPE_GRAPH) {
      need inner = need_of(w->child.graph, gpu);
      takes = inner.peak;
      gives = inner.peak - inner.kept;
      n.kept += inner.kept;
    }
    for (size_t k = 0; takes && k < graph->count; k++) seen[k] = false;
    n.peak += lacking(node, idle, seen, takes);
    idle[node->order] += gives;
  }
  free(order);
  free(idle);
  free(seen);
  return n;
}

/* ---- the device's memory for graphs ---- */

/* Frees the memory that an earlier launch left allocated if `frees` is set; otherwise fails if
 * there is any. */
static CUresult leave_none(const sim_graph *graph, bool frees) {
  for (size_t i = 0; i < graph->count; i++) {
    const sim_work *w = &graph->nodes[i]->work;
    if (w->type == CU_GRAPH_NODE_TYPE_GRAPH) TRY(leave_none(w->child.graph, frees));
    if (w->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !w->take.alloc->flags) continue;
    REQUIRE(frees, CUDA_ERROR_INVALID_VALUE);
    w->take.alloc->flags = 0;
    sim_graph_memory_give(w->take.gpu, w->take.alloc->mapped_bytes);
  }
  return CUDA_SUCCESS;
}

static bool runs(const sim_graph_use *use) {
  return use->launching || (use->end.seq && !sim_done_quick(sim_here.machine, &use->end));
}

/* Returns the memory of all graphs that are running or queued. Graphs on the same stream run one
 * after another, so only the largest of them counts. */
static uint64_t in_use(sim_gpu *gpu) {
  uint64_t sum = gpu->graph_used_bytes;
  for (sim_graph_use **link = &gpu->graph_uses; *link;) {
    sim_graph_use *use = *link;
    if (runs(use)) {
      link = &use->next;
      continue;
    }
    *link = use->next;
    free(use);
  }
  for (const sim_graph_use *use = gpu->graph_uses; use; use = use->next) {
    bool most = true;
    for (const sim_graph_use *other = gpu->graph_uses; other && most; other = other->next)
      most = other == use || other->lane != use->lane || other->bytes < use->bytes ||
             (other->bytes == use->bytes && other > use);
    if (most) sum += use->bytes;
  }
  return sum;
}

static CUresult grow(sim_gpu *gpu) {
  uint64_t wanted = in_use(gpu);
  TRY(sim_attach_gpu(gpu));
  if (wanted <= gpu->graph_bytes) return CUDA_SUCCESS;
  if (sim_fault_hits(sim_here.machine, gpu->device, SIM_FAULT_OUT_OF_MEMORY, sim_self.call, NULL) ||
      !sim_memory_take(sim_here.machine, gpu->device, gpu->client, wanted - gpu->graph_bytes))
    return CUDA_ERROR_OUT_OF_MEMORY;
  gpu->graph_bytes = wanted;
  if (wanted > gpu->graph_high_bytes) gpu->graph_high_bytes = wanted;
  return CUDA_SUCCESS;
}

/* Returns the entry for `exec`. One entry is enough, because an earlier launch ends before the next
 * begins. */
static sim_graph_use *use_of(sim_gpu *gpu, sim_exec *exec) {
  sim_graph_use *use = gpu->graph_uses;
  while (use && use->exec != exec) use = use->next;
  if (use) return use;
  use = calloc(1, sizeof *use);
  if (!use) abort();
  *use = (sim_graph_use){.exec = exec, .next = gpu->graph_uses};
  return gpu->graph_uses = use;
}

void sim_exec_memory_ends(sim_exec *exec, const sim_ref *end) {
  for (int i = 0; i < sim_here.gpu_count; i++)
    for (sim_graph_use *use = sim_here.gpus[i].graph_uses; use; use = use->next)
      if (use->exec == exec && use->launching) {
        use->launching = false;
        use->end = *end;
      }
}

void sim_exec_memory_forget(const sim_exec *exec) {
  for (int i = 0; i < sim_here.gpu_count; i++)
    for (sim_graph_use *use = sim_here.gpus[i].graph_uses; use; use = use->next)
      if (use->exec == exec) use->exec = NULL;
}

static void note_used(sim_gpu *gpu) {
  if (gpu->graph_used_bytes > gpu->graph_used_high_bytes)
    gpu->graph_used_high_bytes = gpu->graph_used_bytes;
}

/* Records the memory that the launch leaves allocated and the memory of other graphs that it
 * frees. */
static void keep(const sim_graph *graph, const sim_graph *root) {
  for (size_t i = 0; i < graph->count; i++) {
    const sim_work *w = &graph->nodes[i]->work;
    if (w->type == CU_GRAPH_NODE_TYPE_GRAPH) keep(w->child.graph, root);
    if (w->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      sim_alloc *alloc = sim_alloc_find(w->give.pointer);
      if (alloc && alloc->kind == SIM_GRAPH_MEMORY && alloc->flags)
        sim_graph_memory_give(alloc->gpu, alloc->mapped_bytes), alloc->flags = 0;
    }
    if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !freed_inside(root, w->take.alloc->address)) {
      w->take.alloc->flags = 1;
      w->take.gpu->graph_used_bytes += w->take.alloc->mapped_bytes;
    }
  }
}

/* Grows each device's memory for graphs to what this launch needs. An upload maps the memory
 * without using it. The caller holds the big lock. */
CUresult sim_exec_take_memory(sim_exec *exec, const sim_stream *stream, bool upload) {
  CUresult result = CUDA_SUCCESS;
  if (!upload)
    TRY(leave_none(exec->graph, exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
  for (int i = 0; i < sim_here.gpu_count && result == CUDA_SUCCESS; i++) {
    sim_gpu *gpu = &sim_here.gpus[i];
    need n = need_of(exec->graph, gpu);
    if (!n.peak) continue;
    sim_graph_use *use = use_of(gpu, exec), before = *use;
    use->lane = stream->lane;
    use->bytes = n.peak;
    use->launching = true;
    result = grow(gpu);
    if (upload || result != CUDA_SUCCESS) {
      before.next = use->next;
      *use = before;
    } else {
      use->bytes = n.peak - n.kept;
    }
    uint64_t used = gpu->graph_used_bytes;
    gpu->graph_used_bytes += n.peak;
    note_used(gpu);
    gpu->graph_used_bytes = used;
  }
  if (result != CUDA_SUCCESS) {
    sim_exec_memory_ends(exec, &(sim_ref){0});
    return result;
  }
  if (!upload) keep(exec->graph, exec->graph);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device) {
  ENTER("cuDeviceGraphMemTrim");
  sim_gpu *gpu;
  TRY(sim_gpu_of(device, &gpu));
  if (gpu->client == SIM_NONE) return CUDA_SUCCESS;
  sim_big_lock();
  /* advances the device, so that launches that have ended are noticed */
  sim_unlock(sim_lock(sim_here.machine, gpu->device));
  uint64_t used = in_use(gpu), spare = gpu->graph_bytes > used ? gpu->graph_bytes - used : 0;
  gpu->graph_bytes -= spare;
  if (spare) sim_memory_give(sim_here.machine, gpu->device, gpu->client, spare);
  sim_big_unlock();
  return CUDA_SUCCESS;
}

static CUresult get_attribute(const sim_gpu *gpu, CUgraphMem_attribute attribute, uint64_t *value) {
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *value = gpu->graph_used_bytes;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *value = gpu->graph_used_high_bytes;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *value = gpu->graph_bytes;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *value = gpu->graph_high_bytes;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

/* High-water marks can only be reset, not set. */
static CUresult reset_attribute(sim_gpu *gpu, CUgraphMem_attribute attribute) {
  if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
    gpu->graph_used_high_bytes = gpu->graph_used_bytes;
  else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
    gpu->graph_high_bytes = gpu->graph_bytes;
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                              void *value) {
  ENTER("cuDeviceGetGraphMemAttribute");
  sim_gpu *gpu;
  REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  sim_big_lock();
  CUresult result = get_attribute(gpu, attribute, value);
  sim_big_unlock();
  return result;
}
CUresult CUDAAPI cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                              void *value) {
  ENTER("cuDeviceSetGraphMemAttribute");
  sim_gpu *gpu;
  REQUIRE(value && !*(uint64_t *)value, CUDA_ERROR_INVALID_VALUE);
  TRY(sim_gpu_of(device, &gpu));
  sim_big_lock();
  CUresult result = reset_attribute(gpu, attribute);
  sim_big_unlock();
  return result;
}
