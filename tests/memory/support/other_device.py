"""Programs that take memory of one device while another one is current.

Device 0 is current throughout, unless a step says otherwise; memory is taken of device 1. Both the
ledger and the device's own record must say so.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
from tests.memory.support.linear_memory import array3d
from tests.memory.support.module_memory import PTX
from tests.memory.support.physical_memory import physical
from tests.memory.support.pool_memory import RESERVED, keep_all, pool_on

from penstock_shim import simulator

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE, THERE = 0, 1
ROOM = 96 * MIB  # of device 1 beyond its context; of device 0 there is more


def on_the_device(device: int) -> int:
    """Bytes that this process holds on the device by the device's own record."""
    with simulator.Machine(os.environ["PENSTOCK_SIM_MACHINE"]) as machine:
        records = machine.record(device)
    return sum(r.memory_bytes for r in records if r.pid == os.getpid() and r.alive)


def agree() -> None:
    for device in (HERE, THERE):
        assert charged(device) == on_the_device(device), device


@contextmanager
def taken_there(size: int) -> Iterator[None]:
    """The block takes so much of device 1, and nothing of device 0."""
    with expect(0, HERE), expect(size, THERE):
        yield
    agree()


def begin_both() -> object:
    """Contexts on both devices, the first current; returns the other."""
    other = begin(THERE)
    begin(HERE)
    return other


@contextmanager
def current(context: object) -> Iterator[None]:
    ok(cu.cuCtxPushCurrent(context))
    yield
    ok(cu.cuCtxPopCurrent())


def fill_linear(context: object, room: int) -> None:
    """Fills device 1 to the byte: one more is refused there, though it would fit on device 0."""
    with current(context):
        with taken_there(room):
            pointer = ok(cu.cuMemAlloc(room))
        with expect(0, HERE), expect(0, THERE):
            refused(cu.cuMemAlloc(1))
    with taken_there(-room):
        ok(cu.cuMemFree(pointer))  # the other context is current


def fill_others(context: object, room: int) -> None:
    flags = int(cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)
    with current(context):
        with taken_there(room):
            pointer = ok(cu.cuMemAllocManaged(room, flags))
        refused(cu.cuMemAllocManaged(1, flags))
        refused(cu.cuMemAllocPitch(512, 1, 4))
        refused(cu.cuArray3DCreate(array3d(16, 16, 0)))
        module = ok(cu.cuModuleLoadData(PTX))
        refused(cu.cuModuleGetFunction(module, b"nothing"))
        ok(cu.cuModuleUnload(module))
        heap = cu.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE
        refused(cu.cuCtxSetLimit(heap, int(ok(cu.cuCtxGetLimit(heap))) + 1))
    with taken_there(-room):
        ok(cu.cuMemFree(pointer))


def arrays(context: object) -> None:
    with current(context), taken_there(64 * MIB):
        array = ok(cu.cuArray3DCreate(array3d(2048, 2048, 0)))
    with taken_there(-64 * MIB):
        ok(cu.cuArrayDestroy(array))


def limits(context: object) -> None:
    heap = cu.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE
    with current(context):
        standard = int(ok(cu.cuCtxGetLimit(heap)))
        with taken_there(10 * MIB):
            ok(cu.cuCtxSetLimit(heap, standard + 10 * MIB))
        with taken_there(-10 * MIB):
            ok(cu.cuCtxSetLimit(heap, standard))


def fill_physical(room: int) -> None:
    with taken_there(room):
        handle = ok(physical(THERE, room))
    refused(physical(THERE, 2 * MIB))
    with expect(2 * MIB, HERE), expect(0, THERE):
        here = ok(physical(HERE, 2 * MIB))
    ok(cu.cuMemRelease(here))
    address = ok(cu.cuMemAddressReserve(room, 0, 0, 0))
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = HERE
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    with taken_there(0):
        ok(cu.cuMemMap(address, room, 0, handle, 0))
        ok(cu.cuMemSetAccess(address, room, [access], 1))
        ok(cu.cuMemRelease(handle))
    with taken_there(-room):
        ok(cu.cuMemUnmap(address, room))


def fill_pool(pool: object, room: int) -> None:
    """A pool of device 1 in a stream of device 0."""
    stream = ok(cu.cuStreamCreate(1))
    keep_all(pool)
    with taken_there(room):
        pointer = ok(cu.cuMemAllocFromPoolAsync(room, pool, stream))
        assert int(ok(cu.cuMemPoolGetAttribute(pool, RESERVED))) == room
    refused(cu.cuMemAllocFromPoolAsync(1, pool, stream))
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = HERE
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    with taken_there(0):
        ok(cu.cuMemPoolSetAccess(pool, [access], 1))
        ok(cu.cuMemFreeAsync(pointer, stream))
        ok(cu.cuStreamSynchronize(stream))
    with taken_there(-room):
        ok(cu.cuMemPoolTrimTo(pool, 0))


def stream_of_another(context: object, room: int) -> None:
    """Memory of cuMemAllocAsync comes from the pool of its stream's device."""
    with current(context):
        stream = ok(cu.cuStreamCreate(1))
    pool = ok(cu.cuDeviceGetDefaultMemPool(THERE))
    with taken_there(room):
        pointer = ok(cu.cuMemAllocAsync(room, stream))
    refused(cu.cuMemAllocAsync(1, stream))
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolTrimTo(pool, 0))
    agree()


def memory_graph(sizes: dict[int, int]) -> object:
    """A graph that takes and frees so much of each device."""
    graph = ok(cu.cuGraphCreate(0))
    for device, size in sizes.items():
        parameters = cu.CUDA_MEM_ALLOC_NODE_PARAMS()
        parameters.poolProps.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        parameters.poolProps.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        parameters.poolProps.location.id = device
        parameters.bytesize = size
        answer = ok(cu.cuGraphAddMemAllocNode(graph, None, 0, parameters))
        node = answer[0] if isinstance(answer, tuple) else answer
        ok(cu.cuGraphAddMemFreeNode(graph, [node], 1, parameters.dptr))
    return graph


def graphs(room: int) -> None:
    """Allocation nodes name a device; the graph is launched on the other."""
    stream = ok(cu.cuStreamCreate(1))
    executable = ok(cu.cuGraphInstantiate(memory_graph({THERE: room}), 0))
    with taken_there(room):
        ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    with taken_there(0):
        ok(cu.cuDeviceGraphMemTrim(HERE))
    with taken_there(-room):
        ok(cu.cuDeviceGraphMemTrim(THERE))
    ok(cu.cuGraphExecDestroy(executable))
    both = ok(cu.cuGraphInstantiate(memory_graph({HERE: 8 * MIB, THERE: room + 2 * MIB}), 0))
    with taken_there(0):
        refused(cu.cuGraphLaunch(both, stream))
    ok(cu.cuGraphExecDestroy(both))
    both = ok(cu.cuGraphInstantiate(memory_graph({HERE: 8 * MIB, THERE: 4 * MIB}), 0))
    with expect(8 * MIB, HERE), expect(4 * MIB, THERE):
        ok(cu.cuGraphLaunch(both, stream))
    agree()
    ok(cu.cuStreamSynchronize(stream))
    with expect(-8 * MIB, HERE), expect(-4 * MIB, THERE):
        ok(cu.cuDeviceGraphMemTrim(HERE))
        ok(cu.cuDeviceGraphMemTrim(THERE))


def free_of_charge(context: object) -> None:
    """Peers, copies and prefetches take nothing; managed memory stays where it was made."""
    flags = int(cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)
    source = ok(cu.cuMemAlloc(2 * MIB))
    managed = ok(cu.cuMemAllocManaged(2 * MIB, flags))
    with current(context):
        target = ok(cu.cuMemAlloc(2 * MIB))
    there = cu.CUmemLocation()
    there.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    there.id = THERE
    with taken_there(0):
        ok(cu.cuCtxEnablePeerAccess(context, 0))
        ok(cu.cuMemcpyPeer(target, context, source, ok(cu.cuCtxGetCurrent()), 2 * MIB))
        ok(cu.cuMemPrefetchAsync(managed, 2 * MIB, there, 0, 0))
        ok(cu.cuCtxSynchronize())
        ok(cu.cuCtxDisablePeerAccess(context))
    for pointer in (source, managed, target):
        ok(cu.cuMemFree(pointer))
    agree()


def view(context: object) -> None:
    """Each device shows its own quota."""
    totals = [ok(cu.cuDeviceTotalMem(device)) for device in (HERE, THERE)]
    assert totals[HERE] - totals[THERE] == 160 * MIB
    here = ok(cu.cuMemGetInfo())
    with current(context):
        there = ok(cu.cuMemGetInfo())
    for device, (free, total) in enumerate((here, there)):
        assert total == totals[device]
        assert free == total - charged(device)


def linear_memory() -> None:
    other = begin_both()
    agree()
    fill_linear(other, ROOM)
    fill_others(other, ROOM)
    arrays(other)
    limits(other)
    free_of_charge(other)
    view(other)


def physical_memory() -> None:
    begin_both()
    fill_physical(ROOM)


def pools() -> None:
    other = begin_both()
    own = pool_on(THERE)
    fill_pool(own, ROOM)
    ok(cu.cuMemPoolDestroy(own))
    fill_pool(ok(cu.cuDeviceGetDefaultMemPool(THERE)), ROOM)
    stream_of_another(other, ROOM)


def graph_memory() -> None:
    begin_both()
    graphs(ROOM)


def ipc_user(handle: str) -> None:
    """Memory of device 1 that is opened in a context of device 0 is charged to device 1."""
    begin_both()
    agree()
    pointer = ctypes.c_uint64()
    opened = (ctypes.c_char * 64).from_buffer_copy(bytes.fromhex(handle))

    class Handle(ctypes.Structure):
        _fields_ = (("reserved", ctypes.c_char * 64),)

    flags = int(cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    by_value = Handle.from_buffer_copy(opened)
    with expect(0, HERE), expect(4 * MIB, THERE):
        old_ok(old.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), by_value, flags))
    with expect(0, HERE), expect(-4 * MIB, THERE):
        old_ok(old.cuIpcCloseMemHandle(pointer))
