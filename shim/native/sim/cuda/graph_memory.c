/* Memory nodes of graphs: the device keeps what launches needed until it is trimmed. */
#include "sim/cuda/graph.h"

void sim_graph_memory_give(sim_gpu *gpu, uint64_t bytes) {
  gpu->graph_used_bytes -= bytes < gpu->graph_used_bytes ? bytes : gpu->graph_used_bytes;
}

static bool freed_inside(const sim_graph *graph, uint64_t address) {
  for (size_t i = 0; i < graph->count; i++)
    if (graph->nodes[i]->work.type == CU_GRAPH_NODE_TYPE_MEM_FREE &&
        graph->nodes[i]->work.give.pointer == address)
      return true;
  return false;
}

/* What an earlier launch left allocated is freed, or this one is refused. */
static CUresult leave_none(const sim_exec *exec) {
  for (size_t i = 0; i < exec->graph->count; i++) {
    const sim_work *w = &exec->graph->nodes[i]->work;
    if (w->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !w->take.alloc->flags) continue;
    REQUIRE(exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
            CUDA_ERROR_INVALID_VALUE);
    w->take.alloc->flags = 0;
    sim_graph_memory_give(w->take.gpu, w->take.alloc->mapped_bytes);
  }
  return CUDA_SUCCESS;
}

/* The device's memory for graphs has room for `needs` more than is in use. */
static CUresult grow(sim_gpu *gpu, uint64_t needs) {
  uint64_t wanted = gpu->graph_used_bytes + needs;
  TRY(sim_attach_gpu(gpu));
  if (wanted <= gpu->graph_bytes) return CUDA_SUCCESS;
  if (!sim_memory_take(sim_here.machine, gpu->device, gpu->client, wanted - gpu->graph_bytes))
    return CUDA_ERROR_OUT_OF_MEMORY;
  gpu->graph_bytes = wanted;
  if (wanted > gpu->graph_high_bytes) gpu->graph_high_bytes = wanted;
  return CUDA_SUCCESS;
}

/* Each device's memory for graphs grows to what this launch needs there; big lock held. */
CUresult sim_exec_take_memory(sim_exec *exec) {
  uint64_t needs[SIM_MAX_DEVICES], sum = 0;
  for (int i = 0; i < sim_here.gpu_count; i++)
    sum += needs[i] = sim_graph_memory(exec->graph, &sim_here.gpus[i]);
  if (!sum) return CUDA_SUCCESS;
  TRY(leave_none(exec));
  for (int i = 0; i < sim_here.gpu_count; i++)
    if (needs[i]) TRY(grow(&sim_here.gpus[i], needs[i]));
  for (int i = 0; i < sim_here.gpu_count; i++) {
    sim_gpu *gpu = &sim_here.gpus[i];
    gpu->graph_used_bytes += needs[i];
    if (gpu->graph_used_bytes > gpu->graph_used_high_bytes)
      gpu->graph_used_high_bytes = gpu->graph_used_bytes;
  }
  for (size_t i = 0; i < exec->graph->count; i++) {
    const sim_work *w = &exec->graph->nodes[i]->work;
    if (w->type == CU_GRAPH_NODE_TYPE_MEM_FREE) { /* of another launch's memory */
      sim_alloc *alloc = sim_alloc_find(w->give.pointer);
      if (alloc && alloc->kind == SIM_GRAPH_MEMORY && alloc->flags)
        sim_graph_memory_give(alloc->gpu, alloc->mapped_bytes), alloc->flags = 0;
    }
    if (w->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) continue;
    if (freed_inside(exec->graph, w->take.alloc->address))
      sim_graph_memory_give(w->take.gpu, w->take.alloc->mapped_bytes);
    else
      w->take.alloc->flags = 1; /* in use until it is freed */
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device) {
  ENTER("cuDeviceGraphMemTrim");
  sim_gpu *gpu;
  TRY(sim_gpu_of(device, &gpu));
  if (gpu->client == SIM_NONE) return CUDA_SUCCESS;
  sim_wait_all(sim_here.machine, gpu->device, gpu->client);
  sim_big_lock();
  uint64_t spare = gpu->graph_bytes - gpu->graph_used_bytes;
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

/* High marks can only be reset. */
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
