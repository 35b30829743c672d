/* Memory that graphs allocate and free. */
#include "check.h"

static CUstream stream, other;

static void prepare(void) {
  begin();
  spin_kernel();
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
}

static CUgraphNode alloc_node(CUgraph graph, size_t bytes, CUgraphNode *after, CUdeviceptr *at) {
  CUgraphNode node;
  CUDA_MEM_ALLOC_NODE_PARAMS wanted = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
      .bytesize = bytes};
  OK(cuGraphAddMemAllocNode(&node, graph, after, after != NULL, &wanted));
  *at = wanted.dptr;
  return node;
}

/* `count` allocations, each freed before the next one. */
static CUgraphExec chain_of(size_t bytes, int count, uint64_t flags) {
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode node, *after = NULL;
  OK(cuGraphCreate(&graph, 0));
  for (int i = 0; i < count; i++) {
    CUdeviceptr at;
    CUgraphNode taken = alloc_node(graph, bytes, after, &at);
    OK(cuGraphAddMemFreeNode(&node, graph, &taken, 1, at));
    after = &node;
  }
  OK(cuGraphInstantiate(&exec, graph, flags));
  return exec;
}

static uint64_t reserved(void) {
  uint64_t bytes;
  OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes));
  return bytes;
}

CASE(memory_that_a_graph_freed_is_used_again_in_it) {
  prepare();
  OK(cuGraphLaunch(chain_of(64 * MIB, 10, 0), stream));
  CHECK(reserved() == 64 * MIB);
}

CASE(graphs_share_their_memory_in_one_stream_and_not_in_two) {
  prepare();
  CUgraphExec one = chain_of(64 * MIB, 1, 0), two = chain_of(32 * MIB, 2, 0);
  spin(stream, 100000000, 10);
  OK(cuGraphLaunch(one, stream));
  OK(cuGraphLaunch(two, stream));
  CHECK(reserved() == 64 * MIB);
  OK(cuGraphLaunch(chain_of(32 * MIB, 1, 0), other));
  CHECK(reserved() == 96 * MIB);
  OK(cuDeviceGraphMemTrim(0)); /* what runs keeps its own */
  CHECK(reserved() >= 64 * MIB);
  OK(cuCtxSynchronize());
  OK(cuDeviceGraphMemTrim(0));
  CHECK(reserved() == 0);
}

CASE(an_upload_at_instantiation_takes_memory) {
  prepare();
  CUgraphExec exec = chain_of(64 * MIB, 1, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
  cuuint64_t flags;
  CHECK(reserved() == 64 * MIB);
  OK(cuGraphExecGetFlags(exec, &flags));
  CHECK(!flags);
  OK(cuGraphExecDestroy(exec));
  OK(cuDeviceGraphMemTrim(0));
  CHECK(reserved() == 0);
  exec = chain_of(32 * MIB, 1, 0);
  CHECK(reserved() == 0);
  OK(cuGraphUpload(exec, stream));
  CHECK(reserved() == 32 * MIB);
}

CASE(memory_nodes_take_memory_at_launch_and_trimming_gives_it_back) {
  prepare();
  CUgraph graph;
  CUgraphExec exec;
  CUdeviceptr pointer;
  size_t before = free_bytes();
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemAllocAsync(&pointer, 100 * MIB, stream));
  OK(cuMemsetD8Async(pointer, 1, 100 * MIB, stream));
  OK(cuMemFreeAsync(pointer, stream));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiate(&exec, graph, 0));
  CHECK(free_bytes() == before);
  OK(cuGraphLaunch(exec, stream));
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(before - free_bytes() == 100 * MIB);
  OK(cuDeviceGraphMemTrim(0));
  CHECK(free_bytes() == before);
}
