"""Programs whose contexts end in every way with memory, limits, modules and libraries in them."""

from __future__ import annotations

import ctypes

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
from tests.memory.support.linear_memory import SLAB
from tests.memory.support.module_memory import PTX, load
from tests.memory.support.other_device import HERE, THERE, agree, current, on_the_device

HEAP = cu.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE
CODE = SLAB  # small as it is, the first opens one


def create(device: int = HERE) -> ctypes.c_void_p:
    """A context of its own, current."""
    context = ctypes.c_void_p()
    old_ok(old.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    return context


def load_library() -> object:
    return ok(cu.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))


def raise_heap(size: int) -> None:
    ok(cu.cuCtxSetLimit(HEAP, int(ok(cu.cuCtxGetLimit(HEAP))) + size))


def attached() -> None:
    """An attached context ends, with all its memory, when its last user detaches."""
    ok(cu.cuInit(0))
    before = charged()
    context, again = create(), ctypes.c_void_p()
    agree()
    ok(cu.cuMemAlloc(4 * MIB))
    with expect(0):
        for _ in range(2):
            old_ok(old.cuCtxAttach(ctypes.byref(again), 0))
        assert again.value == context.value
        for _ in range(2):
            old_ok(old.cuCtxDetach(context))
        assert old.cuCtxDetach(ctypes.c_void_p(0xDEAD0000)) == 201
    agree()
    old_ok(old.cuCtxDetach(context))
    assert charged() == before == on_the_device(HERE)


def limits() -> None:
    """Memory that a limit took is given back with its context, and taken anew in the next."""
    begin()
    with expect(0):
        context = None
        for _ in range(3):
            raise_heap(10 * MIB)
            agree()
            ok(cu.cuDevicePrimaryCtxReset(HERE))
            assert charged() == on_the_device(HERE) == 0
            begin()
    with expect(0):
        context = create()
        raise_heap(6 * MIB)
        agree()
        old_ok(old.cuCtxDestroy_v2(context))
    agree()


def module_code() -> None:
    ok(cu.cuInit(0))
    for end in (
        lambda: ok(cu.cuDevicePrimaryCtxReset(HERE)),
        lambda: ok(cu.cuDevicePrimaryCtxRelease(HERE)),
    ):
        begin()
        with expect(CODE):
            load()
            load()
        end()
        assert charged() == on_the_device(HERE) == 0
    context = create()
    load()
    old_ok(old.cuCtxDestroy_v2(context))
    assert charged() == on_the_device(HERE) == 0


def library_code() -> None:
    """A library outlives contexts; its code in them does not, and is charged where it is used."""
    begin(THERE)
    begin(HERE)
    with expect(CODE, HERE), expect(0, THERE):
        library = load_library()
        ok(cu.cuLibraryGetModule(library))
        kernel = ok(cu.cuLibraryGetKernel(library, b"nothing"))
    with expect(0, HERE), expect(CODE, THERE), current(ok(cu.cuDevicePrimaryCtxRetain(THERE))):
        for _ in range(2):
            ok(cu.cuKernelGetFunction(kernel))
            ok(cu.cuLibraryEnumerateKernels(1, library))
            ok(cu.cuLibraryGetModule(library))
        assert int(cu.cuLibraryGetKernel(library, b"no such kernel")[0]) == 500
    ok(cu.cuDevicePrimaryCtxReset(HERE))
    assert charged(HERE) == on_the_device(HERE) == 0
    begin(HERE)
    with expect(CODE, HERE), expect(0, THERE):
        ok(cu.cuKernelGetFunction(ok(cu.cuLibraryGetKernel(library, b"nothing"))))
    with expect(-CODE, HERE), expect(-CODE, THERE):
        ok(cu.cuLibraryUnload(library))
    with expect(0, HERE), expect(0, THERE):
        assert int(cu.cuLibraryUnload(library)[0]) == 400
        assert int(cu.cuLibraryGetModule(library)[0]) == 400


def library_before_contexts() -> None:
    """A library that is loaded without a context costs nothing until it is used in one."""
    ok(cu.cuInit(0))
    with expect(0, HERE), expect(0, THERE):
        library = load_library()
    begin(THERE)
    with expect(0, HERE), expect(CODE, THERE):
        ok(cu.cuLibraryGetModule(library))
    with expect(0, HERE), expect(-CODE, THERE):
        ok(cu.cuLibraryUnload(library))


def library_over_the_limit() -> None:
    """A library whose code does not fit cannot be used, and the attempt leaves no charge."""
    begin(HERE)
    library = load_library()
    begin(THERE)
    room = int(ok(cu.cuMemGetInfo())[0])
    pointer = ok(cu.cuMemAlloc(room))
    with expect(0, HERE), expect(0, THERE):
        refused(cu.cuLibraryGetModule(library))
    ok(cu.cuMemFree(pointer))
    ok(cu.cuLibraryGetModule(library))


def green() -> None:
    """A green context holds the primary one; what is in it goes with it."""
    ok(cu.cuInit(0))
    kind = cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    parts = ok(cu.cuDevSmResourceSplitByCount(2, ok(cu.cuDeviceGetDevResource(HERE, kind)), 0, 16))
    described = ok(cu.cuDevResourceGenerateDesc([parts[0][0]], 1))
    flags = int(cu.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
    for retained in (False, True):
        if retained:
            begin()
        before = charged()
        first = ok(cu.cuGreenCtxCreate(described, HERE, flags))
        second = ok(cu.cuGreenCtxCreate(described, HERE, flags))
        agree()
        ok(cu.cuCtxSetCurrent(ok(cu.cuCtxFromGreenCtx(first))))
        with expect(16 * MIB):
            ok(cu.cuMemAlloc(8 * MIB))
            raise_heap(8 * MIB)
        with expect(CODE):
            load()
        ok(cu.cuGreenCtxDestroy(first))
        agree()
        ok(cu.cuGreenCtxDestroy(second))
        agree()
        assert charged() == before
        with expect(0):
            assert int(cu.cuGreenCtxDestroy(second)[0]) == 201
            assert int(cu.cuGreenCtxCreate(None, HERE, flags)[0]) == 1
