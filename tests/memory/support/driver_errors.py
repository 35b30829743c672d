"""Calls with arguments that a driver refuses, whatever the quota: their codes, one a line."""

from __future__ import annotations

import ctypes

from tests.memory.support.cuda_calls import MIB, begin, cu, old
from tests.memory.support.linear_memory import array3d
from tests.memory.support.module_memory import load
from tests.memory.support.pool_memory import pool_on

HUGE = 1 << 40  # beyond any quota and any device
NULL = ctypes.c_void_p(None)


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Properties(ctypes.Structure):
    """CUmemAllocationProp; cuda.bindings would not let bad values through."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Array3d(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR, for the same reason."""

    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


class External(ctypes.Structure):
    """CUDA_EXTERNAL_MEMORY_HANDLE_DESC, for the same reason."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle", ctypes.c_int64 * 2),
        ("size", ctypes.c_uint64),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 16),
    )


def say(what: str, code: object) -> None:
    print(what, int(code))


def create(size: int, *, kind: int = 1, location: int = 1, device: int = 0, flags: int = 0) -> int:
    properties = Properties(type=kind, location=Location(location, device))
    handle = ctypes.c_uint64()
    return old.cuMemCreate(
        ctypes.byref(handle),
        ctypes.c_size_t(size),
        ctypes.byref(properties),
        ctypes.c_uint64(flags),
    )


def linear() -> None:
    pointer, pitch = ctypes.c_uint64(), ctypes.c_size_t()
    out, out_pitch, size = ctypes.byref(pointer), ctypes.byref(pitch), ctypes.c_size_t(HUGE)
    say("alloc nowhere", old.cuMemAlloc_v2(NULL, size))
    say("alloc nothing", old.cuMemAlloc_v2(out, ctypes.c_size_t(0)))
    say("managed nowhere", old.cuMemAllocManaged(NULL, size, 1))
    say("managed flags", old.cuMemAllocManaged(out, size, 64))
    one, tall = ctypes.c_size_t(1), ctypes.c_size_t(1 << 40)
    for element in (0, 3, 5, 32):
        code = old.cuMemAllocPitch_v2(out, out_pitch, tall, one, element)
        say(f"pitch element {element}", code)
    zero = ctypes.c_size_t(0)
    say("pitch no rows", old.cuMemAllocPitch_v2(out, out_pitch, tall, zero, 4))
    say("pitch no width", old.cuMemAllocPitch_v2(out, out_pitch, zero, tall, 4))
    say("pitch nowhere", old.cuMemAllocPitch_v2(NULL, out_pitch, tall, one, 4))
    say("pitch without pitch", old.cuMemAllocPitch_v2(out, NULL, tall, one, 4))


def physical() -> None:
    say("create nothing", create(0))
    say("create odd size", create(HUGE + 1))
    say("create odd size, small", create(4097))
    say("create on device 77", create(HUGE, device=77))
    say("create on device -1", create(HUGE, device=-1))
    say("create at location type 0", create(HUGE, location=0))
    say("create at location type 99", create(HUGE, location=99))
    say("create of type 0", create(HUGE, kind=0))
    say("create of type 9", create(HUGE, kind=9))
    say("create flags", create(HUGE, flags=1))
    say("create of nothing", old.cuMemCreate(NULL, ctypes.c_size_t(HUGE), NULL, ctypes.c_uint64(0)))


def arrays() -> None:
    wide, many = array3d(1 << 36, 1, 0), array3d(131072, 65536, 0)
    many.NumChannels = 7
    nothing = array3d(0, 65536, 0)
    say("array too wide", cu.cuArray3DCreate(wide)[0])
    say("array of 7 channels", cu.cuArray3DCreate(many)[0])
    say("array of no width", cu.cuArray3DCreate(nothing)[0])
    say("mipmap too wide", cu.cuMipmappedArrayCreate(wide, 4)[0])
    say("mipmap of no levels", cu.cuMipmappedArrayCreate(array3d(16384, 16384, 0), 0)[0])
    say("mipmap of 99 levels", cu.cuMipmappedArrayCreate(array3d(16384, 16384, 0), 99)[0])
    say("array nowhere", old.cuArray3DCreate_v2(NULL, NULL))
    array, strange = ctypes.c_void_p(), Array3d(16384, 16384, 0, 77, 4, 0)
    out, at = ctypes.byref(array), ctypes.byref(strange)
    say("array of no format", old.cuArray3DCreate_v2(out, at))
    say("mipmap of no format", old.cuMipmappedArrayCreate(out, at, 3))


def pools() -> None:
    stream, pool, pointer = cu.cuStreamCreate(1)[1], pool_on(0), ctypes.c_uint64()
    size, handle = ctypes.c_size_t(HUGE), ctypes.c_void_p(int(stream))
    say("pool nothing", cu.cuMemAllocFromPoolAsync(0, pool, stream)[0])
    say("async nothing", cu.cuMemAllocAsync(0, stream)[0])
    say("async nowhere", old.cuMemAllocAsync(NULL, size, handle))
    not_a_pool = ctypes.c_void_p(0x1234560)
    code = old.cuMemAllocFromPoolAsync(ctypes.byref(pointer), size, not_a_pool, handle)
    say("pool that is none", code)
    stray, out = ctypes.c_void_p(0x1234560), ctypes.byref(pointer)
    say("async on no stream", old.cuMemAllocAsync(out, size, stray))
    into = ctypes.c_void_p(int(pool))
    say("pool on no stream", old.cuMemAllocFromPoolAsync(out, size, into, stray))


def limits() -> None:
    limit = cu.CUlimit
    say("stack too large", cu.cuCtxSetLimit(limit.CU_LIMIT_STACK_SIZE, 1 << 30)[0])
    say("no such limit", old.cuCtxSetLimit(99, ctypes.c_size_t(HUGE)))
    most = ctypes.c_size_t(2**64 - 1)
    say("heap too large", old.cuCtxSetLimit(int(limit.CU_LIMIT_MALLOC_HEAP_SIZE), most))
    pending = int(limit.CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT)
    say("too many pending launches", old.cuCtxSetLimit(pending, most))


def external() -> None:
    memory, handle = ctypes.c_void_p(), External(type=1, size=2**64 - 1)
    handle.handle[0] = 0xFFFFFFFF  # descriptor -1
    say("external", old.cuImportExternalMemory(ctypes.byref(memory), ctypes.byref(handle)))


def frees() -> None:
    """Calls with a stray pointer, family by family: the driver itself must refuse them."""
    stray = ctypes.c_void_p(0xDEAD0000)
    for call in ("cuMemFree_v2", "cuIpcCloseMemHandle", "cuArrayDestroy", "cuMipmappedArrayDestroy",
                 "cuMemPoolDestroy", "cuModuleUnload", "cuLibraryUnload", "cuDestroyExternalMemory",
                 "cuMemRelease", "cuCtxDestroy_v2", "cuMemFreeHost"):  # fmt: skip
        say(call, getattr(old, call)(stray))
    say("cuMemFreeAsync", old.cuMemFreeAsync(stray, None))
    say("cuMemUnmap", old.cuMemUnmap(stray, ctypes.c_size_t(2 * MIB)))
    say("cuMemAddressFree", old.cuMemAddressFree(stray, ctypes.c_size_t(2 * MIB)))


def all_of_them() -> None:
    begin()
    for part in (linear, physical, arrays, pools, limits, external, frees):
        part()


def without_a_context() -> None:
    cu.cuInit(0)
    pointer = ctypes.c_uint64()
    say("alloc", old.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(HUGE)))
    say("async", old.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(HUGE), None))
    say("array", cu.cuArray3DCreate(array3d(1 << 36, 1, 0))[0])
    say("free", old.cuMemFree_v2(ctypes.c_void_p(0xDEAD0000)))
    say("limit", cu.cuCtxSetLimit(cu.CUlimit.CU_LIMIT_STACK_SIZE, 4096)[0])
    say("info", old.cuMemGetInfo_v2(NULL, NULL))


def launch_code(function: object) -> int:
    return int(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)[0])


def on_a_destroyed_context() -> None:
    """Work on a primary context that was reset or released, and after it came back."""
    begin()
    memory = int(cu.cuMemAlloc(MIB)[1])
    function = cu.cuModuleGetFunction(load(), b"nothing")[1]
    for end in (cu.cuDevicePrimaryCtxReset, cu.cuDevicePrimaryCtxRelease):
        end(0)
        say("launch", launch_code(function))
        say("memset", cu.cuMemsetD8Async(memory, 0, MIB, 0)[0])
        say("copy", cu.cuMemcpyDtoDAsync(memory, memory, 4096, 0)[0])
        say("wait", cu.cuStreamSynchronize(0)[0])
        begin()
        function = cu.cuModuleGetFunction(load(), b"nothing")[1]
        memory = int(cu.cuMemAlloc(MIB)[1])
        say("launch again", launch_code(function))
        say("memset again", cu.cuMemsetD8Async(memory, 0, MIB, 0)[0])
