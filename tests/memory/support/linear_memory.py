"""Programs that take linear memory and arrays, and check each charge."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

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

from penstock_shim import simulator

SLAB = 2 * MIB


def linear() -> None:
    """Linear memory takes whole slabs of 2 MiB; allocations of up to 1 MiB share a slab."""
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


FORMAT = cu.CUarray_format


def on_the_device() -> int:
    """Bytes that this process holds by the device's own record."""
    with simulator.Machine(Path(os.environ["PENSTOCK_SIM_MACHINE"])) as machine:
        return sum(r.memory_bytes for r in machine.record(0) if r.pid == os.getpid())


def arrays_of_every_shape_and_format() -> None:
    """The charge is what the device took by its own record."""
    begin()
    shapes = [(4000, 8), (4000, 9), (4000, 60), (4000, 130), (3000, 257), (2000, 1025)]
    formats = [
        (FORMAT.CU_AD_FORMAT_NV12, 3),
        (FORMAT.CU_AD_FORMAT_P010, 3),
        (FORMAT.CU_AD_FORMAT_P216, 3),
        (FORMAT.CU_AD_FORMAT_UNORM_INT16X4, 4),
        (FORMAT.CU_AD_FORMAT_UNORM_INT16X4, 1),
        (FORMAT.CU_AD_FORMAT_Y416, 4),
        (FORMAT.CU_AD_FORMAT_UNORM_INT8X4, 4),
        (FORMAT.CU_AD_FORMAT_FLOAT, 4),
        (FORMAT.CU_AD_FORMAT_UNSIGNED_INT8, 1),
    ]
    for width, height in shapes:
        for name, channels in formats:
            shape = array3d(width, height, 12)
            shape.Format, shape.NumChannels = name, channels
            shape.Flags = 1  # layered: 12 times the same
            before, there = charged(), on_the_device()
            array = ok(cu.cuArray3DCreate(shape))
            assert charged() - before == on_the_device() - there, (width, height, name)
            ok(cu.cuArrayDestroy(array))
            assert charged() == before


def arrays_that_cannot_be() -> None:
    """The driver refuses impossible arrays, over the limit as well as below it."""
    begin()
    impossible = [(131072, 131072, 0), (131073, 1, 0), (16385, 1024, 1024), (1024, 16385, 1024)]
    for width, height, depth in impossible:
        with expect(0):
            refused(cu.cuArray3DCreate(array3d(width, height, depth)), 1)
            refused(cu.cuMipmappedArrayCreate(array3d(width, height, depth), 2), 1)
    flat = cu.CUDA_ARRAY_DESCRIPTOR()
    flat.Width, flat.Height = 100000, 100000
    flat.Format, flat.NumChannels = FORMAT.CU_AD_FORMAT_FLOAT, 4
    with expect(0):
        refused(cu.cuArrayCreate(flat), 1)
    with expect(0):  # these can be, on a device with more room
        refused(cu.cuArray3DCreate(array3d(131072, 1024, 0)))
        refused(cu.cuArray3DCreate(array3d(1024, 1024, 1024)))


def unknown_frees() -> None:
    """A pointer that the shim never saw gets the driver's own error and changes no charge."""
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
