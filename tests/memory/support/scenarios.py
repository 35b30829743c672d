"""Programs for tests of several processes, of the view, and of the device's own record."""

from __future__ import annotations

import ctypes
import random
import select
import socket
import sys

from tests.memory.support.cuda_calls import (
    MIB,
    OUT_OF_MEMORY,
    CudaError,
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
from tests.memory.support.pool_memory import pool_on


def in_another_namespace() -> None:
    """A new namespace gets a copy of the shim over a copy of the driver, with a slot of its own."""
    begin()
    kept = ok(cu.cuMemAlloc(2 * MIB))
    dlmopen = ctypes.CDLL(None).dlmopen
    dlmopen.restype = ctypes.c_void_p
    dlmopen.argtypes = (ctypes.c_long, ctypes.c_char_p, ctypes.c_int)
    handle = dlmopen(-1, b"libcuda.so.1", 2)
    assert handle
    copy = ctypes.CDLL("libcuda.so.1", handle=handle)
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    old_ok(copy.cuInit(0))
    old_ok(copy.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    old_ok(copy.cuCtxSetCurrent(context))
    with expect(6 * MIB):
        old_ok(copy.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(6 * MIB)))
    with expect(-6 * MIB):
        old_ok(copy.cuMemFree_v2(pointer))
    with expect(-2 * MIB):
        ok(cu.cuMemFree(kept))


def linear_kept() -> None:
    begin()
    ok(cu.cuMemAlloc(50 * MIB))
    print("kept", flush=True)
    input()


def watch_free() -> None:
    """Counts how often free memory rose while others start (they do not end meanwhile)."""
    begin()
    print("watching", flush=True)
    rises, last = 0, ok(cu.cuMemGetInfo())[0]
    while not select.select([sys.stdin], [], [], 0)[0]:
        free = ok(cu.cuMemGetInfo())[0]
        rises += free > last
        last = free
    print(rises)


class Mix:
    """Takes memory of random families, more than 1 MiB each, and gives it back in any order."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311  # a test's dice
        self.stream = ok(cu.cuStreamCreate(1))
        self.pool = pool_on(0)
        self.held: list[tuple] = []

    def free_async(self, pointer: object) -> tuple:
        return cu.cuMemFreeAsync(pointer, self.stream)

    def take(self) -> None:
        size = self.dice.randint(MIB + 1, 48 * MIB)
        kind = self.dice.randrange(6)
        try:
            if kind == 0:
                held = cu.cuMemFree, ok(cu.cuMemAlloc(size))
            elif kind == 4:
                held = cu.cuMemFree, ok(cu.cuMemAllocManaged(size, 1))
            elif kind == 5:
                held = cu.cuArrayDestroy, ok(cu.cuArray3DCreate(array3d(size >> 14, 1024, 0)))
            elif kind == 1:
                held = self.free_async, ok(cu.cuMemAllocAsync(size, self.stream))
            elif kind == 2:
                held = self.free_async, ok(cu.cuMemAllocFromPoolAsync(size, self.pool, self.stream))
            else:
                held = cu.cuMemRelease, ok(physical(0, (size >> 21) + 1 << 21))
            self.held.append(held)
        except CudaError as error:
            if error.args[0] != OUT_OF_MEMORY:
                raise

    def give_back(self) -> None:
        give_back, what = self.held.pop(self.dice.randrange(len(self.held)))
        ok(give_back(what))

    def show(self) -> None:
        """Print the charge once the device has finished its work, and wait to go on."""
        ok(cu.cuStreamSynchronize(self.stream))
        ok(cu.cuMemGetInfo())
        print(charged(), flush=True)
        input()


def random_mix(seed: str, steps: str) -> None:
    begin()
    mix = Mix(int(seed))
    for step in range(int(steps)):
        if mix.held and mix.dice.random() < 0.5:
            mix.give_back()
        else:
            mix.take()
        if step % 10 == 0:
            mix.show()
    while mix.held:
        mix.give_back()
    ok(cu.cuStreamSynchronize(mix.stream))
    ok(cu.cuMemPoolTrimTo(ok(cu.cuDeviceGetDefaultMemPool(0)), 0))
    ok(cu.cuMemPoolDestroy(mix.pool))
    mix.show()


def every_call_fails() -> None:
    """The device has no memory; the reservations of all calls are given back."""
    begin()
    stream = ok(cu.cuStreamCreate(1))
    pool = pool_on(0)
    print("ready", flush=True)
    input()
    with expect(0):
        refused(cu.cuMemAlloc(MIB))
        refused(cu.cuMemAllocPitch(1000, 100, 4))
        refused(cu.cuMemAllocManaged(MIB, int(cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)))
        refused(cu.cuMemAllocAsync(MIB, stream))
        refused(cu.cuMemAllocFromPoolAsync(MIB, pool, stream))
        refused(physical(0, 2 * MIB))
        refused(cu.cuArray3DCreate(array3d(64, 64, 4)))


class IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)

    def __bytes__(self) -> bytes:
        return ctypes.string_at(ctypes.byref(self), ctypes.sizeof(self))


def ipc_owner(device: str = "0") -> None:
    begin(int(device))
    pointer = ok(cu.cuMemAlloc(4 * MIB))
    handle = IpcHandle()
    old_ok(old.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(int(pointer))))
    print(bytes(handle).hex(), flush=True)
    input()


def ipc_user(handle: str) -> None:
    """A process that opens memory of another tenant is charged for it while it is open."""
    begin()
    pointer, opened = ctypes.c_uint64(), IpcHandle.from_buffer_copy(bytes.fromhex(handle))
    flags = int(cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    with expect(4 * MIB):
        old_ok(old.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), opened, flags))
    with expect(-4 * MIB):
        old_ok(old.cuIpcCloseMemHandle(pointer))


FILE_DESCRIPTOR = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def export_to(path: str) -> None:
    begin()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        handle = ok(physical(0, 8 * MIB))
        descriptor = int(ok(cu.cuMemExportToShareableHandle(handle, FILE_DESCRIPTOR, 0)))
        print("listening", flush=True)
        with listener.accept()[0] as peer:
            socket.send_fds(peer, [b"x"], [descriptor])
            input()


def import_from(path: str) -> None:
    """Memory of another tenant is charged as far as it is mapped, until nothing of it is held."""
    begin()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        _, (descriptor,), _, _ = socket.recv_fds(connection, 1, 1)
        size = 8 * MIB
        with expect(0):
            handle = ok(cu.cuMemImportFromShareableHandle(descriptor, FILE_DESCRIPTOR))
            address = ok(cu.cuMemAddressReserve(size, 0, 0, 0))
        with expect(size):
            ok(cu.cuMemMap(address, size, 0, handle, 0))
        with expect(0):
            ok(cu.cuMemRelease(handle))
        with expect(-size):
            ok(cu.cuMemUnmap(address, size))
