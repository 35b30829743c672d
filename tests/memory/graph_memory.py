"""Programs that take memory by graphs, and check each charge."""

from __future__ import annotations

from cuda_calls import MIB, begin, charged, cu, ok, refused

GRAPH_RESERVED = cu.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT


def _memory_graph(size: int) -> object:
    graph = ok(cu.cuGraphCreate(0))
    parameters = cu.CUDA_MEM_ALLOC_NODE_PARAMS()
    parameters.poolProps.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    parameters.poolProps.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    parameters.poolProps.location.id = 0
    parameters.bytesize = size
    node, parameters = _add_alloc_node(graph, parameters)
    ok(cu.cuGraphAddMemFreeNode(graph, [node], 1, parameters.dptr))
    return graph


def _add_alloc_node(graph: object, parameters: object) -> tuple:
    answer = ok(cu.cuGraphAddMemAllocNode(graph, None, 0, parameters))
    return answer if isinstance(answer, tuple) else (answer, parameters)


def graph_memory() -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    before = charged()
    graph = _memory_graph(32 * MIB)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    reserved = int(ok(cu.cuDeviceGetGraphMemAttribute(0, GRAPH_RESERVED)))
    assert reserved >= 32 * MIB
    assert charged() - before == reserved
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert charged() - before == int(ok(cu.cuDeviceGetGraphMemAttribute(0, GRAPH_RESERVED)))
    ok(cu.cuGraphExecDestroy(executable))
    ok(cu.cuDeviceGraphMemTrim(0))
    assert charged() == before


def graph_memory_over_the_limit(limit: str) -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    executable = ok(cu.cuGraphInstantiate(_memory_graph(int(limit) + 2 * MIB), 0))
    refused(cu.cuGraphLaunch(executable, stream))
    assert charged() <= int(limit)


def captured_memory() -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    before = charged()
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    ok(cu.cuStreamBeginCapture(stream, mode))
    pointer = ok(cu.cuMemAllocAsync(16 * MIB, stream))
    ok(cu.cuMemFreeAsync(pointer, stream))
    graph = ok(cu.cuStreamEndCapture(stream))
    assert charged() == before
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    reserved = int(ok(cu.cuDeviceGetGraphMemAttribute(0, GRAPH_RESERVED)))
    assert charged() - before == reserved >= 16 * MIB
