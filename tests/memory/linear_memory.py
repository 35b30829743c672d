"""Programs that take linear memory and arrays, and check each charge."""

from __future__ import annotations

import ctypes

from cuda_calls import MIB, begin, charged, cu, expect, ok, old, old_ok, refused

SLAB = 2 * MIB


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
