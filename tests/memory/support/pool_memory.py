"""Programs that take memory of pools, and check each charge."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from tests.memory.support.cuda_calls import (
    MIB,
    OUT_OF_MEMORY,
    begin,
    charged,
    cu,
    ok,
    old,
    old_ok,
    refused,
)

from penstock_shim import paths

RESERVED = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT


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


def many_pools() -> None:
    """Each of very many pools is charged: the first, the last, and the default one."""
    begin()
    stream = ok(cu.cuStreamCreate(1))
    default = ok(cu.cuDeviceGetDefaultMemPool(0))
    before = charged()
    pools = [pool_on(0) for _ in range(300)]
    for pool in (pools[0], pools[299], default):
        keep_all(pool)
        held = charged()
        pointer = ok(cu.cuMemAllocFromPoolAsync(40 * MIB, pool, stream))
        reserved = int(ok(cu.cuMemPoolGetAttribute(pool, RESERVED)))
        assert charged() - held == reserved >= 40 * MIB
        refused(cu.cuMemAllocFromPoolAsync(1024 * MIB, pool, stream))
        ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    for pool in pools:
        ok(cu.cuMemPoolDestroy(pool))
    ok(cu.cuMemPoolTrimTo(default, 0))
    assert charged() == before


def past_the_shim(name: str) -> object:
    """A function of the driver itself, by its address, since the shim answers to its name."""
    library = str(paths.sim_dir() / "libcuda.so.1")
    symbols = subprocess.run(["nm", "-D", library], check=True, capture_output=True, text=True)
    offset = next(
        int(line.split()[0], 16)
        for line in symbols.stdout.splitlines()
        if line.endswith(f" {name}")
    )
    maps = Path("/proc/self/maps").read_text().splitlines()
    base = min(int(line.split("-")[0], 16) for line in maps if line.endswith(library))
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(base + offset)


def pool_of_somebody_else() -> None:
    """A pool that was made past the shim is charged for all that it holds from its first use."""
    begin()
    stream = ok(cu.cuStreamCreate(1))
    before = charged()
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    pool = ctypes.c_void_p()
    create = past_the_shim("cuMemPoolCreate")
    old_ok(create(ctypes.addressof(pool), int(properties.getPtr())))
    unseen = cu.CUmemoryPool(pool.value)
    keep_all(unseen)
    refused(cu.cuMemAllocFromPoolAsync(1025 * MIB, unseen, stream))
    ok(cu.cuMemAllocFromPoolAsync(40 * MIB, unseen, stream))
    assert charged() - before == int(ok(cu.cuMemPoolGetAttribute(unseen, RESERVED))) >= 40 * MIB


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
    """Idle memory of a pool is freed before an allocation is refused."""
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
    """A size that wraps, in a call to the driver itself: it must not wrap there either."""
    begin()
    stream = ok(cu.cuStreamCreate(1))
    for size in ((1 << 64) - 1, (1 << 64) - 512, 1 << 63):
        refused(cu.cuMemAllocAsync(size, stream))


LOCATION = cu.CUmemLocationType
MANAGED = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED
PINNED = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
PREFERRED = (
    LOCATION.CU_MEM_LOCATION_TYPE_HOST,
    LOCATION.CU_MEM_LOCATION_TYPE_HOST_NUMA,
    LOCATION.CU_MEM_LOCATION_TYPE_DEVICE,
    LOCATION(0),  # none
)


def _location(kind: object) -> object:
    location = cu.CUmemLocation()
    location.type = kind
    location.id = 0
    return location


def _new_pool(kind: object, sort: object) -> object:
    properties = cu.CUmemPoolProps()
    properties.allocType = sort
    properties.location = _location(kind)
    return ok(cu.cuMemPoolCreate(properties))


def _is_charged(pool: object, stream: object, limit: int) -> None:
    before, free = charged(), int(ok(cu.cuMemGetInfo())[0])
    refused(cu.cuMemAllocFromPoolAsync(limit + MIB, pool, stream))
    assert charged() == before
    pointer = ok(cu.cuMemAllocFromPoolAsync(300 * MIB, pool, stream))
    assert charged() - before >= 300 * MIB
    assert free - int(ok(cu.cuMemGetInfo())[0]) >= 300 * MIB
    refused(cu.cuMemAllocFromPoolAsync(limit - 200 * MIB, pool, stream))
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolTrimTo(pool, 0))
    assert charged() == before


def managed_pools_are_charged_wherever_they_are_preferred(limit: str) -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    for kind in PREFERRED:
        pool = _new_pool(kind, MANAGED)
        _is_charged(pool, stream, int(limit))
        ok(cu.cuMemPoolDestroy(pool))


def managed_pools_of_the_driver_are_charged(limit: str) -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    for kind in PREFERRED:
        location = _location(kind)
        default = ok(cu.cuMemGetDefaultMemPool(location, MANAGED))
        _is_charged(default, stream, int(limit))
        own = _new_pool(kind, MANAGED)
        ok(cu.cuMemSetMemPool(location, MANAGED, own))
        assert int(ok(cu.cuMemGetMemPool(location, MANAGED))) == int(own)
        _is_charged(ok(cu.cuMemGetMemPool(location, MANAGED)), stream, int(limit))
        ok(cu.cuMemSetMemPool(location, MANAGED, default))
        ok(cu.cuMemPoolDestroy(own))


def a_managed_pool_made_without_a_context_is_charged(limit: str) -> None:
    ok(cu.cuInit(0))
    pool = _new_pool(LOCATION.CU_MEM_LOCATION_TYPE_HOST, MANAGED)
    begin()
    _is_charged(pool, ok(cu.cuStreamCreate(1)), int(limit))


def managed_pools_and_others_share_one_limit(limit: str) -> None:
    begin()
    stream, half = ok(cu.cuStreamCreate(1)), int(limit) // 2 + MIB
    pool = _new_pool(LOCATION.CU_MEM_LOCATION_TYPE_HOST, MANAGED)
    pointer = ok(cu.cuMemAllocFromPoolAsync(half, pool, stream))
    refused(cu.cuMemAlloc(half))
    refused(cu.cuMemAllocManaged(half, 1))
    here = _location(LOCATION.CU_MEM_LOCATION_TYPE_DEVICE)
    ok(cu.cuMemPrefetchAsync(pointer, half, here, 0, stream))
    refused(cu.cuMemAlloc(half))
    ok(cu.cuMemPoolDestroy(pool))  # its memory lives until it is freed
    refused(cu.cuMemAlloc(half))
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemAlloc(half))


def pinned_pools_of_the_host_are_free(limit: str) -> None:
    begin()
    before, stream = charged(), ok(cu.cuStreamCreate(1))
    for kind in PREFERRED[:2]:
        for pool in (
            _new_pool(kind, PINNED),
            ok(cu.cuMemGetDefaultMemPool(_location(kind), PINNED)),
        ):
            pointer = ok(cu.cuMemAllocFromPoolAsync(2 * int(limit), pool, stream))
            assert charged() == before
            ok(cu.cuMemFreeAsync(pointer, stream))
