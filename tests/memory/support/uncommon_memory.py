"""Programs that hold memory in rarer ways: multicast, sparse arrays, pools of others, and so on."""

from __future__ import annotations

import ctypes
import os
import socket

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
from tests.memory.support.physical_memory import physical
from tests.memory.support.pool_memory import keep_all

FILE_DESCRIPTOR = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
RESERVED = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT


def team_of(devices: int, size: int) -> object:
    properties = cu.CUmulticastObjectProp()
    properties.numDevices, properties.size = devices, size
    return ok(cu.cuMulticastCreate(properties))


def multicast() -> None:
    """Memory bound to a team stays charged, each piece on its own device, until it is unbound."""
    begin()
    size = 8 * MIB
    with expect(0, 0), expect(0, 1):
        team = team_of(2, size)
        memory = [ok(physical(device, 2 * MIB)) for device in range(2)]
        ok(cu.cuMulticastAddDevice(team, 0))
        refused(cu.cuMulticastAddDevice(team, 0), 1)
        code = cu.cuMulticastBindMem(team, 0, memory[0], 0, 2 * MIB, 0)[0]
        assert int(code) == 401, code  # not all of the team are there yet
        ok(cu.cuMulticastAddDevice(team, 1))
        for handle in memory:
            ok(cu.cuMulticastBindMem(team, 0, handle, 0, 2 * MIB, 0))
            ok(cu.cuMemRelease(handle))
        for device in range(2):
            ok(cu.cuMulticastUnbind(team, device, 0, 2 * MIB))


def multicast_outlives_handles() -> None:
    begin()
    team = team_of(2, 8 * MIB)
    for device in range(2):
        ok(cu.cuMulticastAddDevice(team, device))
    with expect(2 * MIB, 0), expect(4 * MIB, 1):
        for device, size in ((0, 2 * MIB), (1, 4 * MIB)):
            handle = ok(physical(device, size))
            ok(cu.cuMulticastBindMem(team, 2 * MIB, handle, 0, size, 0))
            ok(cu.cuMemRelease(handle))
    with expect(2 * MIB):  # by address: the mapping goes, the binding stays
        handle, address = ok(physical(0, 2 * MIB)), ok(cu.cuMemAddressReserve(2 * MIB, 0, 0, 0))
        ok(cu.cuMemMap(address, 2 * MIB, 0, handle, 0))
        ok(cu.cuMulticastBindAddr(team, 4 * MIB, address, 2 * MIB, 0))
        ok(cu.cuMemRelease(handle))
        ok(cu.cuMemUnmap(address, 2 * MIB))
    with expect(-2 * MIB, 0), expect(0, 1):
        ok(cu.cuMulticastUnbind(team, 0, 2 * MIB, 2 * MIB))
    mapped = ok(cu.cuMemAddressReserve(8 * MIB, 0, 0, 0))
    with expect(0, 0), expect(0, 1):
        ok(cu.cuMemMap(mapped, 8 * MIB, 0, team, 0))
        ok(cu.cuMemRelease(team))
    with expect(-2 * MIB, 0), expect(-4 * MIB, 1):
        ok(cu.cuMemUnmap(mapped, 8 * MIB))


class Tile(ctypes.Structure):
    """CUarrayMapInfo."""

    _fields_ = (
        ("resource_type", ctypes.c_int),
        ("resource", ctypes.c_void_p),
        ("subresource_type", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("place", ctypes.c_uint * 8),  # level, layer, three offsets, three extents
        ("operation", ctypes.c_int),
        ("handle_type", ctypes.c_int),
        ("handle", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("devices", ctypes.c_uint),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 2),
    )


def tile(array: object, x: int, handle: object | None) -> int:
    """Map (or without a handle unmap) the 256 by 64 elements at `x`; the driver's code."""
    info = Tile(resource_type=0, resource=int(array), devices=1, operation=1 if handle else 2)
    info.place[:] = (0, 0, x, 0, 0, 256, 64, 1)
    info.handle = int(handle) if handle else 0
    return old.cuMemMapArrayAsync(ctypes.byref(info), 1, None)


def sparse_arrays() -> None:
    """A sparse array costs what is mapped into it, until that is unmapped or the array goes."""
    assert ctypes.sizeof(Tile) == 96
    begin()
    description = array3d(4096, 4096, 0)
    description.Flags = cu.CUDA_ARRAY3D_SPARSE
    with expect(0):
        array = ok(cu.cuArray3DCreate(description))
    with expect(2 * MIB):
        handle = ok(physical(0, 2 * MIB))
        old_ok(tile(array, 0, handle))
        old_ok(tile(array, 256, handle))
        ok(cu.cuMemRelease(handle))
        old_ok(tile(array, 0, None))
    with expect(-2 * MIB):
        old_ok(tile(array, 256, None))
    with expect(2 * MIB):  # one takes the place of another
        for _ in range(2):
            handle = ok(physical(0, 2 * MIB))
            old_ok(tile(array, 512, handle))
            ok(cu.cuMemRelease(handle))
    with expect(0):
        assert tile(array, 0, 0xDEAD0000) == 1
    with expect(-2 * MIB):
        ok(cu.cuArrayDestroy(array))


def unmapped_reservation_in_use() -> None:
    """Addresses that are mapped cannot be freed, and nothing is given back by the attempt."""
    begin()
    handle, address = ok(physical(0, 2 * MIB)), ok(cu.cuMemAddressReserve(4 * MIB, 0, 0, 0))
    ok(cu.cuMemMap(address, 2 * MIB, 0, handle, 0))
    ok(cu.cuMemRelease(handle))
    with expect(0):
        assert int(cu.cuMemAddressFree(address, 4 * MIB)[0]) == 1
    with expect(-2 * MIB):
        ok(cu.cuMemUnmap(address, 2 * MIB))
    ok(cu.cuMemAddressFree(address, 4 * MIB))


def external_memory(path: str) -> None:
    """Memory of a graphics interface is charged to its importer; mappings of it are not."""
    begin()
    with open(path, "wb") as file:  # noqa: PTH123  # its descriptor is wanted
        file.truncate(8 * MIB)
    handle = cu.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    handle.type = cu.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    handle.handle.fd, handle.size = os.open(path, os.O_RDWR), 8 * MIB
    with expect(8 * MIB):
        memory = ok(cu.cuImportExternalMemory(handle))
    wanted = cu.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    wanted.offset, wanted.size = 4096, MIB
    with expect(0):
        pointer = ok(cu.cuExternalMemoryGetMappedBuffer(memory, wanted))
        ok(cu.cuMemFree(pointer))
    with expect(-8 * MIB):
        ok(cu.cuDestroyExternalMemory(memory))
    handle.handle.fd, handle.size = -1, 8 * MIB
    with expect(0):
        assert int(cu.cuImportExternalMemory(handle)[0]) == 1


def exportable_pool() -> object:
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = FILE_DESCRIPTOR
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    return ok(cu.cuMemPoolCreate(properties))


class Exported(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


def pool_owner(path: str) -> None:
    """Exports a pool and an allocation in it, and lives until a line arrives."""
    begin()
    stream = ok(cu.cuStreamCreate(1))
    pool = exportable_pool()
    keep_all(pool)
    before = charged()
    pointer = ok(cu.cuMemAllocFromPoolAsync(40 * MIB, pool, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert charged() - before == int(ok(cu.cuMemPoolGetAttribute(pool, RESERVED)))
    data = Exported()
    old_ok(old.cuMemPoolExportPointer(ctypes.byref(data), ctypes.c_uint64(int(pointer))))
    descriptor = ctypes.c_int()
    old_ok(
        old.cuMemPoolExportToShareableHandle(
            ctypes.byref(descriptor), ctypes.c_void_p(int(pool)), 1, ctypes.c_uint64(0)
        )
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("listening", flush=True)
        with listener.accept()[0] as peer:
            socket.send_fds(peer, [ctypes.string_at(ctypes.byref(data), 64)], [descriptor.value])
    input()
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolTrimTo(pool, 0))
    assert charged() == before
    ok(cu.cuMemPoolDestroy(pool))


def pool_user(path: str, own_charge: str) -> None:
    """Maps the other's allocation, waits for a line, then frees it in one of two ways."""
    begin()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        message, (descriptor,), _, _ = socket.recv_fds(connection, 64, 1)
    pool, pointer, data = ctypes.c_void_p(), ctypes.c_uint64(), Exported.from_buffer_copy(message)
    with expect(int(own_charge)):
        old_ok(
            old.cuMemPoolImportFromShareableHandle(
                ctypes.byref(pool), ctypes.c_void_p(descriptor), 1, ctypes.c_uint64(0)
            )
        )
        old_ok(old.cuMemPoolImportPointer(ctypes.byref(pointer), pool, ctypes.byref(data)))
    os.close(descriptor)
    print("mapped", flush=True)
    input()
    old_ok(old.cuMemPoolDestroy(pool))  # the pointer holds what it points to
    print("destroyed", flush=True)
    input()
    old_ok(old.cuMemFreeAsync(pointer, None))


class PrivateTable(ctypes.Structure):
    """The private table of the simulated driver: calls through it bypass the shim."""

    _fields_ = (
        ("bytes", ctypes.c_size_t),
        ("retain", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)),
        ("release", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)),
        ("load", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)),
    )


def _private_table() -> PrivateTable:
    table = ctypes.POINTER(PrivateTable)()
    old_ok(old.cuGetExportTable(ctypes.byref(table), b"penstock-sim-one"))
    return table.contents


def retained_unseen(reserve: str) -> None:
    """A context retained as the CUDA runtime does is charged when it is noticed."""
    ok(cu.cuInit(0))
    table, context = _private_table(), ctypes.c_void_p()
    with expect(0):
        old_ok(table.retain(ctypes.byref(context), 0))
        old_ok(old.cuCtxSetCurrent(context))
    with expect(int(reserve)):
        ok(cu.cuCtxGetCurrent())
        ok(cu.cuMemGetInfo())
    with expect(6 * MIB):
        ok(cu.cuMemAlloc(6 * MIB))
    with expect(0):  # a retain that is seen is of the same context
        ok(cu.cuDevicePrimaryCtxRetain(0))
        ok(cu.cuDevicePrimaryCtxRelease(0))
    with expect(-int(reserve) - 6 * MIB):
        ok(cu.cuDevicePrimaryCtxReset(0))


def noticed_by_an_allocation(reserve: str) -> None:
    ok(cu.cuInit(0))
    table, context = _private_table(), ctypes.c_void_p()
    old_ok(table.retain(ctypes.byref(context), 0))
    old_ok(old.cuCtxSetCurrent(context))
    with expect(int(reserve) + 2 * MIB):
        ok(cu.cuMemAlloc(MIB))


def unseen_and_too_much() -> None:
    """The context exists already: no more requests succeed, and the ledger keeps to its limit."""
    ok(cu.cuInit(0))
    table, context = _private_table(), ctypes.c_void_p()
    old_ok(table.retain(ctypes.byref(context), 0))
    old_ok(old.cuCtxSetCurrent(context))
    with expect(0):
        ok(cu.cuCtxGetCurrent())
        refused(cu.cuMemAlloc(1))


def free_of_charge() -> None:
    """Host memory, texture objects, advice, prefetches and peers cost nothing on the device."""
    begin()
    managed = ok(cu.cuMemAllocManaged(4 * MIB, 1))
    array = ok(cu.cuArray3DCreate(array3d(64, 64, 0)))
    with expect(0):
        pointer = ok(cu.cuMemAllocHost(4 * MIB))
        ok(cu.cuMemFreeHost(pointer))
        buffer = ctypes.create_string_buffer(1 << 20)
        ok(cu.cuMemHostRegister(ctypes.addressof(buffer), 1 << 20, 0))
        ok(cu.cuMemHostUnregister(ctypes.addressof(buffer)))
        resource, texture = cu.CUDA_RESOURCE_DESC(), cu.CUDA_TEXTURE_DESC()
        resource.resType = cu.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
        resource.res.array.hArray = array
        ok(cu.cuTexObjectDestroy(ok(cu.cuTexObjectCreate(resource, texture, None))))
        here = cu.CUmemLocation()
        here.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        advice = cu.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION
        ok(cu.cuMemAdvise(managed, 4 * MIB, advice, here))
        ok(cu.cuMemPrefetchAsync(managed, 4 * MIB, here, 0, 0))
        ok(cu.cuCtxSynchronize())
        properties = cu.CUmemAllocationProp()
        properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
        ok(cu.cuMemRelease(ok(cu.cuMemCreate(1 << 31, properties, 0))))
