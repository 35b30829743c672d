"""Programs that take memory of one family each, and check what is charged for it at every step."""

from __future__ import annotations

import ctypes

from cuda.bindings import nvfatbin, nvjitlink
from cuda_calls import MIB, OUT_OF_MEMORY, begin, charged, cu, expect, ok, old, old_ok, refused

RESERVED = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
SLAB = 2 * MIB
GRAPH_RESERVED = cu.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT


def linear() -> None:
    """In whole slabs of 2 MiB; what is not above 1 MiB shares one with others."""
    begin()
    with expect(6 * MIB):
        pointer = ok(cu.cuMemAlloc(5 * MIB))
    for size in (1, 513, MIB, MIB + 1, 2 * MIB):
        with expect(SLAB):
            other = ok(cu.cuMemAlloc(size))
        with expect(-SLAB):
            ok(cu.cuMemFree(other))
    with expect(SLAB):
        small = [ok(cu.cuMemAlloc(1))]
    with expect(0):
        small += [ok(cu.cuMemAlloc(size)) for size in (512, 4096, MIB, MIB // 2)]
    with expect(SLAB):
        second = ok(cu.cuMemAlloc(MIB))
    with expect(-SLAB):
        ok(cu.cuMemFree(second))
    with expect(-6 * MIB):
        ok(cu.cuMemFree(pointer))
    with expect(0):
        for one in small[:-1]:
            ok(cu.cuMemFree(one))
    with expect(-SLAB):
        ok(cu.cuMemFree(small[-1]))
    with expect(0):
        refused(cu.cuMemAlloc(0), 1)


def first_version() -> None:
    begin()
    pointer = ctypes.c_uint()
    with expect(4 * MIB):
        code = old.cuMemAlloc(ctypes.byref(pointer), 4 * MIB)
        if code:  # a driver whose addresses do not fit into 32 bits refuses: nothing stays charged
            raise SystemExit(f"unsupported {code} {charged()}")
    with expect(-4 * MIB):
        old_ok(old.cuMemFree(pointer))


def pitched() -> None:
    begin()
    before = charged()
    pointer, pitch = ok(cu.cuMemAllocPitch(1000, 300, 4))
    assert pitch * 300 <= MIB
    taken = SLAB
    assert charged() - before == taken, (pitch, charged() - before)
    with expect(0):
        ok(cu.cuMemFree(ok(cu.cuMemAllocPitch(100, 30, 4))[0]))
    large, pitch = ok(cu.cuMemAllocPitch(1000, 3001, 4))
    taken += (pitch * 3001 + SLAB - 1) // SLAB * SLAB
    assert charged() - before == taken, (pitch, charged() - before)
    ok(cu.cuMemFree(large))
    ok(cu.cuMemFree(pointer))
    assert charged() == before


def managed() -> None:
    begin()
    flags = int(cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)
    with expect(4 * MIB):
        pointer = ok(cu.cuMemAllocManaged(4 * MIB, flags))
    with expect(-4 * MIB):
        ok(cu.cuMemFree(pointer))
    with expect(2 * SLAB):  # the simulated driver gives each its own
        pointers = [ok(cu.cuMemAllocManaged(4096, flags)) for _ in range(2)]
    with expect(-2 * SLAB):
        for pointer in pointers:
            ok(cu.cuMemFree(pointer))


def host_memory() -> None:
    begin()
    with expect(0):
        pointer = ok(cu.cuMemHostAlloc(4 * MIB, 0))
        ok(cu.cuMemFreeHost(pointer))


def stream_ordered() -> None:
    begin()
    pool = ok(cu.cuDeviceGetDefaultMemPool(0))
    stream = ok(cu.cuStreamCreate(1))
    before = charged()
    pointers = [ok(cu.cuMemAllocAsync(3 * MIB, stream)) for _ in range(8)]
    reserved = int(ok(cu.cuMemPoolGetAttribute(pool, RESERVED)))
    assert reserved >= 24 * MIB
    assert charged() - before == reserved
    for pointer in pointers:
        ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolTrimTo(pool, 0))
    assert int(ok(cu.cuMemPoolGetAttribute(pool, RESERVED))) == 0
    assert charged() == before


def stream_ordered_per_thread() -> None:
    begin()
    pool = ok(cu.cuDeviceGetDefaultMemPool(0))
    pointer = ctypes.c_uint64()
    before = charged()
    old_ok(old.cuMemAllocAsync_ptsz(ctypes.byref(pointer), ctypes.c_size_t(3 * MIB), None))
    assert charged() - before == int(ok(cu.cuMemPoolGetAttribute(pool, RESERVED)))
    old_ok(old.cuMemFreeAsync_ptsz(pointer, None))
    old_ok(old.cuStreamSynchronize_ptsz(None))
    ok(cu.cuMemPoolTrimTo(pool, 0))
    assert charged() == before


def pool_on(device: int) -> object:
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    return ok(cu.cuMemPoolCreate(properties))


def own_pool() -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    before = charged()
    pool = pool_on(0)
    assert charged() == before
    pointer = ok(cu.cuMemAllocFromPoolAsync(40 * MIB, pool, stream))
    reserved = int(ok(cu.cuMemPoolGetAttribute(pool, RESERVED)))
    assert charged() - before == reserved >= 40 * MIB
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolDestroy(pool))
    assert charged() == before


def pool_kept_over_frees() -> None:
    """With a release threshold the reserve stays, and stays charged; reuse costs nothing more."""
    begin()
    stream = ok(cu.cuStreamCreate(1))
    before = charged()
    pool = pool_on(0)
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    ok(cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(1 << 40)))
    first = ok(cu.cuMemAllocFromPoolAsync(40 * MIB, pool, stream))
    held = charged() - before
    ok(cu.cuMemFreeAsync(first, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert charged() - before == held
    second = ok(cu.cuMemAllocFromPoolAsync(40 * MIB, pool, stream))
    assert charged() - before == held
    ok(cu.cuMemFreeAsync(second, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolTrimTo(pool, 0))
    assert charged() == before
    ok(cu.cuMemPoolDestroy(pool))


def pool_memory_freed_by_cumemfree() -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    pool = ok(cu.cuDeviceGetDefaultMemPool(0))
    before = charged()
    pointer = ok(cu.cuMemAllocAsync(3 * MIB, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemFree(pointer))
    ok(cu.cuMemPoolTrimTo(pool, 0))
    assert charged() == before


def pool_over_the_limit(limit: str) -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    refused(cu.cuMemAllocAsync(int(limit) + 1, stream))
    assert charged() <= int(limit)
    pointer = ok(cu.cuMemAllocAsync(int(limit) // 2, stream))
    refused(cu.cuMemAllocAsync(int(limit) // 2 + 4 * MIB, stream))
    assert charged() <= int(limit)
    ok(cu.cuMemFreeAsync(pointer, stream))


def idle_pool_makes_room(limit: str) -> None:
    """What a pool holds idle is found again before an allocation is refused."""
    begin()
    stream = ok(cu.cuStreamCreate(1))
    pointer = ok(cu.cuMemAllocAsync(int(limit) * 3 // 4, stream))
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemFree(ok(cu.cuMemAlloc(int(limit) * 3 // 4))))


def keep_all(pool: object) -> None:
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    ok(cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(1 << 40)))


def frees_not_reached_in_other_streams(limit: str) -> None:
    """Memory freed behind unfinished work is of no use to another stream: the pool has to grow."""
    begin()
    pool, size = pool_on(0), int(limit) * 3 // 10 // MIB * MIB
    keep_all(pool)
    flag = ok(cu.cuMemHostAlloc(4, 0))
    word = ctypes.c_uint.from_address(int(flag))
    word.value = 0
    refusals = 0
    for _ in range(12):
        stream = ok(cu.cuStreamCreate(1))
        ok(cu.cuStreamWaitValue32(stream, int(flag), 1, 0))
        code, pointer = cu.cuMemAllocFromPoolAsync(size, pool, stream)
        refusals += int(code) == OUT_OF_MEMORY
        if not int(code):
            ok(cu.cuMemFreeAsync(pointer, stream))
        reserved = int(ok(cu.cuMemPoolGetAttribute(pool, RESERVED)))
        assert reserved <= int(limit) + size  # one step, and no second one on top
        assert charged() <= int(limit)
    assert refusals >= 8
    word.value = 1
    ok(cu.cuCtxSynchronize())
    reserved = int(ok(cu.cuMemPoolGetAttribute(pool, RESERVED)))
    assert reserved <= int(limit)
    assert charged() == reserved


def a_pool_with_room_serves_every_size(limit: str) -> None:
    begin()
    stream, pool = ok(cu.cuStreamCreate(1)), pool_on(0)
    keep_all(pool)
    for step in range(300):
        pointer = ok(cu.cuMemAllocFromPoolAsync((step % 64 + 1) * MIB, pool, stream))
        ok(cu.cuMemFreeAsync(pointer, stream))
        assert int(ok(cu.cuMemPoolGetAttribute(pool, RESERVED))) <= int(limit)


def pool_size_that_wraps() -> None:
    """Straight at the driver: below the shim nothing may wrap either."""
    begin()
    stream = ok(cu.cuStreamCreate(1))
    for size in ((1 << 64) - 1, (1 << 64) - 512, 1 << 63):
        refused(cu.cuMemAllocAsync(size, stream))


def array3d(width: int, height: int, depth: int) -> cu.CUDA_ARRAY3D_DESCRIPTOR:
    d = cu.CUDA_ARRAY3D_DESCRIPTOR()
    d.Width, d.Height, d.Depth = width, height, depth
    d.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
    d.NumChannels, d.Flags = 4, 0
    return d


def arrays() -> None:
    begin()
    flat = cu.CUDA_ARRAY_DESCRIPTOR()
    flat.Width, flat.Height = 1024, 1024
    flat.Format, flat.NumChannels = cu.CUarray_format.CU_AD_FORMAT_FLOAT, 1
    with expect(4 * MIB):
        array = ok(cu.cuArrayCreate(flat))
    with expect(-4 * MIB):
        ok(cu.cuArrayDestroy(array))
    with expect(16 * MIB):
        array = ok(cu.cuArray3DCreate(array3d(128, 128, 64)))
    with expect(-16 * MIB):
        ok(cu.cuArrayDestroy(array))


def mipmapped_arrays() -> None:
    begin()
    levels = [256 >> i for i in range(5)]
    wanted = (sum(side * 16 * side for side in levels) + SLAB - 1) // SLAB * SLAB
    with expect(wanted):
        array = ok(cu.cuMipmappedArrayCreate(array3d(256, 256, 0), len(levels)))
    with expect(-wanted):
        ok(cu.cuMipmappedArrayDestroy(array))


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


def primary_context(reserve: str) -> None:
    ok(cu.cuInit(0))
    with expect(int(reserve)):
        context = ok(cu.cuDevicePrimaryCtxRetain(0))
    ok(cu.cuCtxSetCurrent(context))
    with expect(0):
        ok(cu.cuDevicePrimaryCtxRetain(0))
        ok(cu.cuDevicePrimaryCtxRelease(0))
    ok(cu.cuMemAlloc(4 * MIB))  # dies with its context
    with expect(-int(reserve) - 4 * MIB):
        ok(cu.cuDevicePrimaryCtxRelease(0))


def reset_context(reserve: str) -> None:
    begin()
    ok(cu.cuMemAlloc(4 * MIB))
    with expect(-int(reserve) - 4 * MIB):
        ok(cu.cuDevicePrimaryCtxReset(0))


def _create_context(device: int = 0) -> object:
    context = ctypes.c_void_p()
    old_ok(old.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    return context


def several_contexts(reserve: str) -> None:
    ok(cu.cuInit(0))
    with expect(2 * int(reserve)):
        first, second = _create_context(), _create_context()
    old_ok(old.cuCtxSetCurrent(first))
    pointer = ok(cu.cuMemAlloc(MIB))
    old_ok(old.cuCtxSetCurrent(second))
    with expect(-SLAB):
        ok(cu.cuMemFree(pointer))  # another context is current
    ok(cu.cuMemAlloc(2 * MIB))
    with expect(-2 * MIB - int(reserve)):
        old_ok(old.cuCtxDestroy_v2(second))
    with expect(-int(reserve)):
        old_ok(old.cuCtxDestroy_v2(first))


def no_room_for_a_context() -> None:
    ok(cu.cuInit(0))
    refused(cu.cuDevicePrimaryCtxRetain(0))
    context = ctypes.c_void_p()
    assert old.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == OUT_OF_MEMORY
    assert charged() == 0


def context_limits() -> None:
    begin()
    heap = cu.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE
    stack = cu.CUlimit.CU_LIMIT_STACK_SIZE
    standard = int(ok(cu.cuCtxGetLimit(heap)))
    with expect(10 * MIB):
        ok(cu.cuCtxSetLimit(heap, standard + 9 * MIB))
    with expect(0):
        ok(cu.cuCtxSetLimit(heap, standard + 10 * MIB))
    with expect(-10 * MIB):
        ok(cu.cuCtxSetLimit(heap, standard))
    attribute = cu.CUdevice_attribute
    sms = ok(cu.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
    threads = ok(
        cu.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0)
    )
    standard = int(ok(cu.cuCtxGetLimit(stack)))
    with expect(1024 * sms * threads):
        ok(cu.cuCtxSetLimit(stack, standard + 1024))
    with expect(0):
        refused(cu.cuCtxSetLimit(stack, 256 << 10))
        refused(cu.cuCtxSetLimit(stack, 1 << 20), 1)  # more than any driver sets


PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry nothing() { ret; }
\0"""


def modules() -> None:
    begin()
    with expect(SLAB):
        module = ok(cu.cuModuleLoadData(PTX))
    with expect(0):
        others = [ok(cu.cuModuleLoadData(PTX)) for _ in range(100)]
        library = ok(cu.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
        ok(cu.cuModuleUnload(module))
        for other in others:
            ok(cu.cuModuleUnload(other))
    with expect(-SLAB):
        ok(cu.cuLibraryUnload(library))


def with_variables(*declarations: str) -> bytes:
    return PTX.rstrip(b"\0") + "\n".join(("", *declarations, "\0")).encode()


def module_variables() -> None:
    """What a module declares is charged as it is loaded; nothing stays of what does not fit."""
    begin()
    for declarations, taken in (
        ([".visible .global .align 8 .b8 blob[0x600000];"], 6),
        ([".global .v4 .f32 blob[100][5242]; // .global .b8 not[1073741824];"], 8),
        ([".visible .global .attribute(.managed) .align 4 .b8 blob[4194304];"], 4),
        ([".const .align 4 .b8 blob[2097152];", ".extern .global .b8 far[1073741824];"], 2),
        ([".global .u32 other, blob[1048576], third;"], 6),
    ):
        image = with_variables(*declarations)
        with expect(taken * MIB + SLAB):
            module = ok(cu.cuModuleLoadData(image))
            if "blob[1048576]" not in declarations[0]:
                assert ok(cu.cuModuleGetGlobal(module, b"blob"))[1] > (taken - 2) * MIB
        with expect(-taken * MIB - SLAB):
            ok(cu.cuModuleUnload(module))
    huge = with_variables(
        ".visible .global .align 8 .b8 blob[0xffffffffffffffff];", *[".global .b64 a[2];"] * 2
    )
    over = with_variables(*(f".global .b8 blob{i}[1073741824];" for i in range(8)))
    with expect(0):
        refused(cu.cuModuleLoadData(huge))
        refused(cu.cuModuleLoadData(over))
        refused(cu.cuLibraryLoadData(over, [], [], 0, [], [], 0))


def cubin_variables() -> None:
    """A compiled image says the size of its variables without holding them; so in fat binaries."""
    begin()
    text = with_variables(".visible .global .align 8 .b8 blob[8388608];").rstrip(b"\0")
    text = text.replace(b".version 7.0", b".version 8.0").replace(b"sm_50", b"sm_90")
    link = nvjitlink.create(1, ["-arch=sm_90"])
    nvjitlink.add_data(link, nvjitlink.InputType.PTX, text, len(text), "blob")
    nvjitlink.complete(link)
    cubin = bytearray(nvjitlink.get_linked_cubin_size(link))
    nvjitlink.get_linked_cubin(link, cubin)
    images = [bytes(cubin)]
    for options in (["-64", "-compress=false"], ["-64"]):
        fat = nvfatbin.create(options, len(options))
        nvfatbin.add_cubin(fat, cubin, len(cubin), "90", "blob")
        nvfatbin.add_ptx(fat, text + b"\0", len(text) + 1, "90", "blob", "")
        body = bytearray(nvfatbin.size(fat))
        nvfatbin.get(fat, body)
        images.append(bytes(body))
    assert all(len(image) < MIB for image in images)
    for image in images:
        before = charged()
        module = ok(cu.cuModuleLoadData(image))
        assert charged() - before == 8 * MIB + SLAB, charged() - before
        ok(cu.cuModuleUnload(module))
        assert charged() == before
        library = ok(cu.cuLibraryLoadData(image, [], [], 0, [], [], 0))
        assert ok(cu.cuLibraryGetGlobal(library, b"blob"))[1] == 8 * MIB
        ok(cu.cuLibraryUnload(library))
        assert charged() == before


def linked_modules() -> None:
    """Linking costs nothing on the device; what comes out is charged by its own size."""
    begin()
    kind, state, image = 1, ctypes.c_void_p(), ctypes.c_void_p()
    text, size = PTX.rstrip(b"\0"), ctypes.c_size_t()
    other = text.replace(b"nothing", b"another") + b"// " + b"-" * 4000
    with expect(0):
        old_ok(old.cuLinkCreate_v2(0, None, None, ctypes.byref(state)))
        for part in (text, other):
            length = ctypes.c_size_t(len(part))
            old_ok(old.cuLinkAddData_v2(state, kind, part, length, b"part", 0, None, None))
        old_ok(old.cuLinkComplete(state, ctypes.byref(image), ctypes.byref(size)))
    assert MIB > size.value > 4000
    with expect(SLAB):
        module = ok(cu.cuModuleLoadData(image.value))
        old_ok(old.cuLinkDestroy(state))
    with expect(-SLAB):
        ok(cu.cuModuleUnload(module))


def unknown_frees() -> None:
    """What the shim never saw is the driver's business: its own error, no charge touched."""
    begin()
    with expect(0):
        refused(cu.cuMemFree(0xDEAD0000), 1)
        pointer = ok(cu.cuMemAlloc(MIB))
        ok(cu.cuMemFree(pointer))
        assert int(cu.cuMemFree(pointer)[0]) != 0


def view(limit: str) -> None:
    begin()
    free, total = ok(cu.cuMemGetInfo())
    assert total == int(limit)
    assert free == int(limit) - charged()
    ok(cu.cuMemAlloc(100 * MIB))
    assert ok(cu.cuMemGetInfo())[0] == free - 100 * MIB
    assert ok(cu.cuDeviceTotalMem(0)) == int(limit)
    small = ctypes.c_uint()
    old_ok(old.cuDeviceTotalMem(ctypes.byref(small), 0))
    assert small.value == int(limit)
