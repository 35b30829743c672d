"""Programs that take memory by graphs, and check each charge."""

from __future__ import annotations

import ctypes

from tests.memory.support.cuda_calls import MIB, begin, charged, cu, ok, refused

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


def _reserved() -> int:
    return int(ok(cu.cuDeviceGetGraphMemAttribute(0, GRAPH_RESERVED)))


def _alloc(graph: object, size: int, *after: object) -> tuple:
    """Adds a node that allocates; returns it and the address."""
    parameters = cu.CUDA_MEM_ALLOC_NODE_PARAMS()
    parameters.poolProps.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    parameters.poolProps.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    parameters.poolProps.location.id = 0
    parameters.bytesize = size
    answer = ok(cu.cuGraphAddMemAllocNode(graph, list(after) or None, len(after), parameters))
    node, parameters = answer if isinstance(answer, tuple) else (answer, parameters)
    return node, parameters.dptr


def _free(graph: object, pointer: object, *after: object) -> object:
    return ok(cu.cuGraphAddMemFreeNode(graph, list(after), len(after), pointer))


def _chain(*sizes: int, graph: object = None, after: tuple = ()) -> object:
    """Adds allocations of which each is freed before the next one."""
    graph = ok(cu.cuGraphCreate(0)) if graph is None else graph
    for size in sizes:
        node, pointer = _alloc(graph, size, *after)
        after = (_free(graph, pointer, node),)
    return graph


def _made(graph: object, flags: int = 0) -> object:
    return ok(cu.cuGraphInstantiate(graph, flags))


class _Flag:
    """Holds streams up until it is raised."""

    def __init__(self) -> None:
        self.address = int(ok(cu.cuMemHostAlloc(4, 0)))
        self.word = ctypes.c_uint.from_address(self.address)
        self.word.value = 0

    def hold(self, stream: object) -> None:
        ok(cu.cuStreamWaitValue32(stream, self.address, 1, 0))

    def lift(self) -> None:
        self.word.value = 1
        ok(cu.cuCtxSynchronize())
        self.word.value = 0


def _runs(graph: object, most: int, flags: int = 0) -> None:
    """Launches the graph; the charge is what the device took, which is no more than `most`."""
    before, stream = charged(), ok(cu.cuStreamCreate(1))
    executable = _made(graph, flags)
    for _ in range(2):
        ok(cu.cuGraphLaunch(executable, stream))
        assert charged() - before == _reserved() <= most, (charged() - before, _reserved())
    ok(cu.cuStreamSynchronize(stream))
    assert charged() - before == _reserved()
    ok(cu.cuGraphExecDestroy(executable))
    ok(cu.cuDeviceGraphMemTrim(0))


def what_is_freed_in_a_graph_is_used_again_in_it(limit: str) -> None:
    begin()
    most = int(limit) * 3 // 5 // (2 * MIB) * 2 * MIB
    _runs(_chain(*[most] * 10), most)
    _runs(_chain(100 * MIB, most, 300 * MIB, most - 2 * MIB), most)
    stream = ok(cu.cuStreamCreate(1))
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    for _ in range(10):
        ok(cu.cuMemFreeAsync(ok(cu.cuMemAllocAsync(most, stream)), stream))
    _runs(ok(cu.cuStreamEndCapture(stream)), most)
    graph = ok(cu.cuGraphCreate(0))  # freed by one, used again by two at once
    node, pointer = _alloc(graph, most)
    node = _free(graph, pointer, node)
    for _ in range(2):
        _chain(most // 2 // (2 * MIB) * 2 * MIB, graph=graph, after=(node,))
    _runs(graph, most)


def branches_of_a_graph_may_run_at_once(limit: str) -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    half = int(limit) // 2 + 2 * MIB
    wide = ok(cu.cuGraphCreate(0))
    for _ in range(2):
        _chain(half, graph=wide)
    executable = _made(wide)
    refused(cu.cuGraphLaunch(executable, stream))
    assert charged() == _reserved() == 0
    narrow = ok(cu.cuGraphCreate(0))
    for _ in range(3):
        _chain(100 * MIB, 100 * MIB, graph=narrow)
    _runs(narrow, 300 * MIB)
    nested = ok(cu.cuGraphCreate(0))  # an allocation beside, not behind, what is freed
    node, pointer = _alloc(nested, half)
    _chain(half, graph=nested, after=(node,))
    _free(nested, pointer, node)
    refused(cu.cuGraphLaunch(_made(nested), stream))
    assert _reserved() == 0


def memory_that_a_graph_leaves_allocated_is_used_by_no_other(limit: str) -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    half = int(limit) // 2 + 2 * MIB
    keeping, graph = ok(cu.cuGraphCreate(0)), None
    _, pointer = _alloc(keeping, half)
    graph = _made(keeping)
    ok(cu.cuGraphLaunch(graph, stream))
    other = _made(_chain(half))
    refused(cu.cuGraphLaunch(other, stream))
    assert charged() == _reserved() == half
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuDeviceGraphMemTrim(0))
    assert charged() == _reserved() == 0
    ok(cu.cuGraphLaunch(other, stream))
    assert charged() == _reserved() == half
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuDeviceGraphMemTrim(0))
    auto = cu.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
    again = ok(cu.cuGraphCreate(0))
    _alloc(again, half)
    again = _made(again, auto)
    for _ in range(3):
        ok(cu.cuGraphLaunch(again, stream))
        assert charged() == _reserved() == half


def graphs_in_one_stream_use_the_same_memory(limit: str) -> None:
    begin()
    flag, stream, size = _Flag(), ok(cu.cuStreamCreate(1)), int(limit) * 3 // 4
    flag.hold(stream)
    graphs = [_made(_chain(size - i * 2 * MIB)) for i in range(5)]
    for graph in graphs + graphs:
        ok(cu.cuGraphLaunch(graph, stream))
        assert charged() == _reserved() == size
    flag.lift()
    for graph in graphs:
        ok(cu.cuGraphLaunch(graph, stream))
        ok(cu.cuGraphExecDestroy(graph))
        ok(cu.cuGraphLaunch(_made(_chain(size)), stream))
    assert charged() == _reserved() == size
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuDeviceGraphMemTrim(0))
    assert charged() == _reserved() == 0


def a_refused_graph_counts_for_no_later_one(limit: str) -> None:
    begin()
    flag, stream, size = _Flag(), ok(cu.cuStreamCreate(1)), int(limit) * 3 // 4
    keeping = ok(cu.cuGraphCreate(0))
    _alloc(keeping, 8 * MIB)
    ok(cu.cuGraphLaunch(_made(keeping), stream))
    graph, large = _made(_chain(size)), _made(_chain(int(limit) + 2 * MIB))
    ok(cu.cuGraphLaunch(graph, stream))
    ok(cu.cuStreamSynchronize(stream))
    for _ in range(3):
        refused(cu.cuGraphLaunch(large, stream))
    flag.hold(stream)
    for _ in range(3):
        ok(cu.cuGraphLaunch(graph, stream))
        assert charged() == _reserved() == size + 8 * MIB
    flag.lift()


def graphs_in_two_streams_have_memory_of_their_own(limit: str) -> None:
    """This holds too for graphs that used the same memory before, one after the other."""
    begin()
    flag, size = _Flag(), int(limit) * 3 // 4
    streams = [ok(cu.cuStreamCreate(1)) for _ in range(2)]
    graphs = [_made(_chain(size)) for _ in streams]
    for _ in range(2):
        for graph, stream in zip(graphs, streams, strict=True):
            ok(cu.cuGraphLaunch(graph, stream))
            ok(cu.cuStreamSynchronize(stream))
            assert charged() == _reserved() == size
    for _ in range(3):
        flag.hold(streams[0])
        ok(cu.cuGraphLaunch(graphs[0], streams[0]))
        refused(cu.cuGraphLaunch(graphs[1], streams[1]))
        assert charged() == _reserved() == size
        flag.lift()
        ok(cu.cuGraphLaunch(graphs[1], streams[1]))
        ok(cu.cuCtxSynchronize())
    small = [_made(_chain(200 * MIB)) for _ in streams]
    ok(cu.cuDeviceGraphMemTrim(0))
    for graph, stream in zip(small, streams, strict=True):
        flag.hold(stream)
        ok(cu.cuGraphLaunch(graph, stream))
    assert charged() == _reserved() == 400 * MIB
    ok(cu.cuGraphExecDestroy(small[0]))  # what it uses it uses until it has run
    ok(cu.cuDeviceGraphMemTrim(0))
    assert charged() == _reserved() == 400 * MIB
    flag.lift()
    ok(cu.cuDeviceGraphMemTrim(0))
    assert charged() == _reserved() == 0


def uploads_are_charged_where_they_happen(limit: str) -> None:
    begin()
    stream, size = ok(cu.cuStreamCreate(1)), int(limit) * 3 // 4
    upload = cu.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
    parameters = cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    parameters.flags = int(upload)
    parameters.hUploadStream = stream
    refused(cu.cuGraphInstantiateWithParams(_chain(int(limit) + 2 * MIB), parameters))
    refused(cu.cuGraphInstantiate(_chain(int(limit) + 2 * MIB), upload))
    assert charged() == _reserved() == 0
    graph = ok(cu.cuGraphInstantiateWithParams(_chain(size, size), parameters))
    assert charged() == _reserved() == size
    ok(cu.cuGraphLaunch(graph, stream))
    assert charged() == _reserved() == size
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuGraphExecDestroy(graph))
    ok(cu.cuDeviceGraphMemTrim(0))
    assert charged() == _reserved() == 0
    graph = _made(_chain(size))
    assert charged() == 0
    ok(cu.cuGraphUpload(graph, stream))
    assert charged() == _reserved() == size
    refused(cu.cuGraphUpload(_made(_chain(int(limit) + 2 * MIB)), stream))
    assert charged() <= int(limit)


def updated_graphs_are_charged_as_they_are_now(limit: str) -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    graph = _made(_chain(100 * MIB))
    ok(cu.cuGraphLaunch(graph, stream))
    assert charged() == _reserved() == 100 * MIB
    ok(cu.cuGraphExecUpdate(graph, _chain(600 * MIB)))
    ok(cu.cuGraphLaunch(graph, stream))
    assert charged() == _reserved() == 600 * MIB
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuGraphExecUpdate(graph, _chain(int(limit) + 2 * MIB)))
    refused(cu.cuGraphLaunch(graph, stream))
    assert charged() == _reserved() <= int(limit)
    ok(cu.cuGraphExecUpdate(graph, _chain(50 * MIB)))
    ok(cu.cuDeviceGraphMemTrim(0))
    ok(cu.cuGraphLaunch(graph, stream))
    assert charged() == _reserved() == 50 * MIB


def graphs_in_graphs_are_charged(limit: str) -> None:
    begin()
    size = int(limit) * 3 // 5 // (2 * MIB) * 2 * MIB

    def within(graph: object, child: object, *after: object) -> object:
        parameters = cu.CUgraphNodeParams()
        parameters.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH
        parameters.graph.graph = child
        move = cu.CUgraphChildGraphNodeOwnership.CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE
        parameters.graph.ownership = move
        return ok(cu.cuGraphAddNode(graph, list(after) or None, None, len(after), parameters))

    graph = ok(cu.cuGraphCreate(0))
    node = within(graph, _chain(size, size))
    node = within(graph, _chain(size), node)
    _chain(size, graph=graph, after=(node,))
    _runs(graph, size)
    beside = ok(cu.cuGraphCreate(0))
    within(beside, _chain(size))
    _chain(size, graph=beside)
    refused(cu.cuGraphLaunch(_made(beside), ok(cu.cuStreamCreate(1))))
    assert charged() == _reserved() == 0
