"""Programs whose kernels have local memory: stacks and arrays of threads, once a context."""

from __future__ import annotations

import contextlib
import ctypes
import threading

from tests.memory.support.cuda_calls import (
    MIB,
    begin,
    charged,
    cu,
    expect,
    ok,
    old,
    old_ok,
    refused,
)
from tests.memory.support.image_memory import create, launch, library
from tests.memory.support.images import cubin, ptx
from tests.memory.support.linear_memory import SLAB
from tests.memory.support.other_device import HERE, THERE, agree, current, on_the_device

STACK = cu.CUlimit.CU_LIMIT_STACK_SIZE
SYNC_DEPTH = cu.CUlimit.CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH
PENDING = cu.CUlimit.CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT
DEFAULT, UNSUPPORTED = 1024, 215
SIZES = {"flat": 0, "small": 512, "deep": 4096, "deeper": 6000, "deepest": 8192, "huge": 131072}


def threads() -> int:
    """The number of threads that the device holds at once."""
    attribute = cu.CUdevice_attribute
    sms = ok(cu.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
    each = attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR
    return sms * ok(cu.cuDeviceGetAttribute(each, 0))


def cost(size: int) -> int:
    """The cost of a kernel that needs so much a thread, beyond the context's own share."""
    whole = max((size + 255) // 256 * 256 - DEFAULT, 0) * threads()
    return (whole + SLAB - 1) // SLAB * SLAB


def image(kind: str = "cubin") -> bytes:
    if kind == "cubin":
        return cubin(dict.fromkeys(SIZES, 256), local=SIZES)
    texts = [ptx(kernels=(name,), local=size).rstrip(b"\0") for name, size in SIZES.items()]
    return texts[0] + b"".join(text.split(b"64\n", 1)[1] for text in texts[1:]) + b"\0"


class Kernels:
    """Functions by name; their code is loaded before anything is measured."""

    def __init__(self, kind: str = "cubin") -> None:
        module = ok(cu.cuModuleLoadData(image(kind)))
        self.functions = {name: ok(cu.cuModuleGetFunction(module, name.encode())) for name in SIZES}
        size = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
        for name, function in self.functions.items():
            assert int(ok(cu.cuFuncGetAttribute(size, function))) == SIZES[name]

    def __getitem__(self, name: str) -> object:
        return self.functions[name]

    def run(self, name: str) -> None:
        ok(launch(self[name]))
        ok(cu.cuCtxSynchronize())


def ascending(kind: str) -> None:
    begin()
    kernels = Kernels(kind)
    before = 0
    for name in ("flat", "small", "deep", "deep", "deeper", "deep", "deepest", "small"):
        now = max(before, cost(SIZES[name]))
        with expect(now - before):
            kernels.run(name)
        before = now
        agree()
    assert before == cost(8192)


def descending() -> None:
    """The memory that the neediest kernel took stays for the others until the context ends."""
    begin()
    kernels = Kernels()
    with expect(cost(8192)):
        kernels.run("deepest")
    with expect(0):
        for name in ("deeper", "deep", "flat", "deepest"):
            kernels.run(name)
    agree()
    ok(cu.cuDevicePrimaryCtxReset(HERE))
    assert charged() == on_the_device(HERE) == 0
    begin()
    kernels = Kernels()
    with expect(cost(4096)):
        kernels.run("deep")
    agree()


def two_contexts() -> None:
    """Each context and each device has its own, also for a kernel of no context."""
    there = begin(THERE)
    begin(HERE)
    loaded = library(image())
    kernel = ok(cu.cuLibraryGetKernel(loaded, b"deep"))
    with current(there):
        ok(cu.cuKernelGetFunction(kernel))
    ok(cu.cuKernelGetFunction(kernel))
    with expect(cost(4096)), expect(0, THERE):
        ok(launch(kernel))
        ok(launch(kernel))
    with expect(0), expect(cost(4096), THERE), current(there):
        ok(launch(kernel))
        ok(launch(kernel))
    other = create()
    ok(cu.cuKernelGetFunction(kernel))
    with expect(cost(4096)):
        ok(launch(kernel))
    agree()
    old_ok(old.cuCtxDestroy_v2(other))
    agree()
    assert charged(THERE) == on_the_device(THERE)
    ok(cu.cuLibraryUnload(loaded))
    agree()


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


def every_way() -> None:
    """Each kind of launch is charged before it goes."""
    begin()
    kernels = Kernels()
    sizes = (1, 1, 1, 1, 1, 1)
    deep = {name: ctypes.c_void_p(int(kernels[name])) for name in SIZES}
    stream = ok(cu.cuStreamCreate(1))
    config = Config((1, 1, 1), (1, 1, 1))
    with expect(cost(4096)):
        old_ok(old.cuLaunchCooperativeKernel(deep["deep"], *sizes, 0, None, None))
    with expect(cost(6000) - cost(4096)):
        old_ok(old.cuLaunchKernelEx_ptsz(ctypes.byref(config), deep["deeper"], None, None))
    old_ok(old.cuFuncSetBlockShape(deep["deepest"], 1, 1, 1))
    with expect(cost(8192) - cost(6000)):
        old_ok(old.cuLaunchGrid(deep["deepest"], 1, 1))
    with expect(0):
        refused(launch(kernels["huge"]))
        refused(launch(kernels["huge"], stream))
        assert old.cuLaunchKernel_ptsz(deep["huge"], *sizes, 0, None, None, None) == 2
        assert old.cuLaunchKernelEx(ctypes.byref(config), deep["huge"], None, None) == 2
        assert old.cuLaunchCooperativeKernel_ptsz(deep["huge"], *sizes, 0, None, None) == 2
        old_ok(old.cuFuncSetBlockShape(deep["huge"], 1, 1, 1))
        assert old.cuLaunch(deep["huge"]) == 2
        assert old.cuLaunchGridAsync(deep["huge"], 1, 1, None) == 2
    ok(cu.cuCtxSynchronize())
    agree()


def over_the_quota() -> None:
    """A launch over the quota is refused each time; smaller ones pass, and it passes with room."""
    begin()
    kernels = Kernels()
    room = int(ok(cu.cuMemGetInfo())[0])
    pointer = ok(cu.cuMemAlloc(room - cost(8192) + SLAB))
    with expect(0):
        for _ in range(3):
            refused(launch(kernels["deepest"]))
        kernels.run("flat")
    with expect(cost(6000)):
        kernels.run("deeper")
    with expect(0):
        refused(launch(kernels["deepest"]))
    agree()
    ok(cu.cuMemFree(pointer))
    with expect(cost(8192) - cost(6000)):
        kernels.run("deepest")
    agree()


def stack_limit() -> None:
    """Limit and kernels share it: the larger counts."""
    begin()
    kernels = Kernels()
    with expect(cost(6144)):
        ok(cu.cuCtxSetLimit(STACK, 6144))
    with expect(0):
        kernels.run("deep")
        kernels.run("deeper")
    with expect(cost(8192) - cost(6144)):
        kernels.run("deepest")
    agree()
    with expect(0):
        ok(cu.cuCtxSetLimit(STACK, 2048))
        ok(cu.cuCtxSetLimit(STACK, 7000))
        refused(cu.cuCtxSetLimit(STACK, 300 << 10))
    agree()
    with expect(cost(10240) - cost(8192)):
        ok(cu.cuCtxSetLimit(STACK, 10240))
    agree()
    with expect(cost(8192) - cost(10240)):
        ok(cu.cuCtxSetLimit(STACK, DEFAULT))
    agree()


def device_runtime(major: str) -> None:
    """Limits of the device runtime: depth of waiting, where it exists, and pending launches."""
    begin()
    pending = int(ok(cu.cuCtxGetLimit(PENDING)))
    if int(major) < 9:
        depth = int(ok(cu.cuCtxGetLimit(SYNC_DEPTH)))
        with expect(860 * MIB):
            ok(cu.cuCtxSetLimit(SYNC_DEPTH, depth + 1))
        agree()
        with expect(0):
            refused(cu.cuCtxSetLimit(SYNC_DEPTH, 24))
            refused(cu.cuCtxSetLimit(SYNC_DEPTH, 25), 1)
        with expect(-860 * MIB):
            ok(cu.cuCtxSetLimit(SYNC_DEPTH, depth))
    else:
        with expect(0):
            refused(cu.cuCtxSetLimit(SYNC_DEPTH, 3), UNSUPPORTED)
            refused(cu.cuCtxGetLimit(SYNC_DEPTH), UNSUPPORTED)
    agree()
    with expect(16 * MIB):
        ok(cu.cuCtxSetLimit(PENDING, 2 * pending))
    agree()
    with expect(0):
        refused(cu.cuCtxSetLimit(PENDING, 1 << 30))
    with expect(-16 * MIB):
        ok(cu.cuCtxSetLimit(PENDING, pending))
    agree()


def kernel_graph(function: object, context: object = None, kernel: object = None) -> object:
    graph = ok(cu.cuGraphCreate(0))
    ok(cu.cuGraphAddKernelNode(graph, None, 0, parameters(function, context, kernel)))
    return graph


def parameters(function: object, context: object = None, kernel: object = None) -> object:
    values = cu.CUDA_KERNEL_NODE_PARAMS()
    if kernel is not None:
        values.kern = kernel
    else:
        values.func = function
    if context is not None:
        values.ctx = context
    values.gridDimX = values.gridDimY = values.gridDimZ = 1
    values.blockDimX = values.blockDimY = values.blockDimZ = 1
    return values


def run_graph(executable: object) -> None:
    ok(cu.cuGraphLaunch(executable, 0))
    ok(cu.cuCtxSynchronize())


def graphs() -> None:
    """Kernel nodes are charged when an executable is made of them, or gets them."""
    begin()
    kernels = Kernels()
    with expect(cost(4096)):
        executable = ok(cu.cuGraphInstantiate(kernel_graph(kernels["deep"]), 0))
        run_graph(executable)
    agree()
    with expect(cost(6000) - cost(4096)):  # in a graph within a graph
        outer = ok(cu.cuGraphCreate(0))
        ok(cu.cuGraphAddChildGraphNode(outer, None, 0, kernel_graph(kernels["deeper"])))
        run_graph(ok(cu.cuGraphInstantiate(outer, 0)))
    agree()
    stream = ok(cu.cuStreamCreate(1))
    with expect(0):
        ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
        ok(launch(kernels["deepest"], stream))
        captured = ok(cu.cuStreamEndCapture(stream))
    with expect(cost(8192) - cost(6000)):
        run_graph(ok(cu.cuGraphInstantiate(captured, 0)))
    agree()
    with expect(0):
        huge = kernel_graph(kernels["huge"])
        for _ in range(2):
            refused(cu.cuGraphInstantiate(huge, 0))
            refused(cu.cuGraphExecUpdate(executable, huge))
        node = ok(cu.cuGraphGetNodes(huge, 1))[0][0]
        refused(cu.cuGraphExecKernelNodeSetParams(executable, node, parameters(kernels["huge"])))
        run_graph(executable)
    agree()


def refused_graphs() -> None:
    """A graph that is refused for one kernel leaves no charge for the others."""
    begin()
    kernels = Kernels()
    graph = kernel_graph(kernels["deep"])
    for name in ("deeper", "flat", "deepest", "huge"):
        ok(cu.cuGraphAddKernelNode(graph, None, 0, parameters(kernels[name])))
    with expect(0):
        for _ in range(2):
            refused(cu.cuGraphInstantiate(graph, 0))
    agree()
    with expect(cost(4096)):
        kernels.run("deep")
    with expect(0):
        refused(cu.cuGraphInstantiate(graph, 0))
        kernels.run("deep")
    agree()


def updated_graphs() -> None:
    begin()
    kernels = Kernels()
    graph = kernel_graph(kernels["flat"])
    node = ok(cu.cuGraphGetNodes(graph, 1))[0][0]
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    with expect(cost(4096)):
        ok(cu.cuGraphExecKernelNodeSetParams(executable, node, parameters(kernels["deep"])))
        run_graph(executable)
    agree()
    with expect(cost(8192) - cost(4096)):
        ok(cu.cuGraphExecUpdate(executable, kernel_graph(kernels["deepest"])))
        run_graph(executable)
    agree()


def graphs_in_contexts() -> None:
    """A node's kernel runs in the context that it names, or that its function belongs to."""
    there = begin(THERE)
    theirs = Kernels()
    begin(HERE)
    loaded = library(image())
    kernel = ok(cu.cuLibraryGetKernel(loaded, b"deepest"))
    with expect(0), expect(cost(4096), THERE):
        graph = kernel_graph(theirs["deep"])
        executable = ok(cu.cuGraphInstantiate(graph, 0))
        with current(there):
            run_graph(executable)
    assert charged(THERE) == on_the_device(THERE)
    held, before = on_the_device(THERE), charged(THERE)
    with expect(0):
        graph = kernel_graph(None, there, kernel)
        executable = ok(cu.cuGraphInstantiate(graph, 0))
        with current(there):
            run_graph(executable)
    grown = on_the_device(THERE) - held
    assert grown >= cost(8192) - cost(4096)
    assert grown <= charged(THERE) - before <= grown + SLAB
    agree_or_more()


def agree_or_more() -> None:
    for device in (HERE, THERE):
        assert 0 <= charged(device) - on_the_device(device) <= 2 * SLAB


def conditional_graph() -> None:
    """Kernels of a conditional node's body are charged when the graph is instantiated."""
    begin()
    kernels = Kernels()
    graph = ok(cu.cuGraphCreate(0))
    handle = ok(cu.cuGraphConditionalHandleCreate(graph, ok(cu.cuCtxGetCurrent()), 1, 1))
    values = cu.CUgraphNodeParams()
    values.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    values.conditional.handle = handle
    values.conditional.type = cu.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
    values.conditional.size = 1
    values.conditional.ctx = ok(cu.cuCtxGetCurrent())
    ok(cu.cuGraphAddNode(graph, None, None, 0, values))
    body = values.conditional.phGraph_out[0]
    ok(cu.cuGraphAddKernelNode(body, None, 0, parameters(kernels["deep"])))
    with expect(cost(4096)):
        run_graph(ok(cu.cuGraphInstantiate(graph, 0)))
    agree()


def by_threads_at_once() -> None:
    """The neediest kernel is charged once, whichever thread launches first."""
    context = begin()
    kernels = Kernels()
    errors = []

    def work(names: list[str]) -> None:
        try:
            ok(cu.cuCtxSetCurrent(context))
            for name in names:
                ok(launch(kernels[name]))
        except Exception as error:  # noqa: BLE001  # told below
            errors.append(error)

    with expect(cost(8192)):
        orders = [["deep", "deepest"], ["deeper", "deep"], ["deepest", "flat"]] * 3
        workers = [threading.Thread(target=work, args=(names,)) for names in orders]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        ok(cu.cuCtxSynchronize())
    assert not errors
    agree()


def beside_a_full_device() -> None:
    """The driver has no room: what was charged for the launch is given back."""
    begin()
    kernels = Kernels()
    kernels.run("deep")
    print("ready", flush=True)
    input()
    with expect(0):
        for _ in range(2):
            refused(launch(kernels["deepest"]))
        kernels.run("deep")
        with contextlib.suppress(Exception):
            ok(cu.cuCtxSetLimit(STACK, 16384))
    agree()
    print("again", flush=True)
    input()
    with expect(cost(8192) - cost(4096)):
        kernels.run("deepest")
    agree()


def at_a_full_quota() -> None:
    """Idle memory of a pool makes room for local memory."""
    begin()
    kernels = Kernels()
    pool, stream = ok(cu.cuDeviceGetDefaultMemPool(0)), ok(cu.cuStreamCreate(1))
    keep = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    ok(cu.cuMemPoolSetAttribute(pool, keep, cu.cuuint64_t(1 << 40)))
    room = int(ok(cu.cuMemGetInfo())[0]) // SLAB * SLAB
    pointer = ok(cu.cuMemAllocAsync(room, stream))
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    with expect(cost(4096) - room):
        kernels.run("deep")
    agree()
