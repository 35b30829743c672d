"""Programs that load images of several architectures, at once or as they are used."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.memory.support.cuda_calls import (
    MIB,
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
from tests.memory.support.images import PTX_KIND, Entry, cubin, fat, ptx
from tests.memory.support.linear_memory import SLAB
from tests.memory.support.other_device import HERE, THERE, agree, current, on_the_device
from tests.memory.support.pool_memory import RESERVED, keep_all

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_BINARY, NOT_FOUND, INVALID_HANDLE = 209, 500, 400
MORE = SLAB  # headers and tables of a cubin are charged as well


def library(image: bytes) -> object:
    return ok(cu.cuLibraryLoadData(image, [], [], 0, [], [], 0))


def launch(function: object, stream: object = 0) -> tuple:
    return cu.cuLaunchKernel(cu.CUfunction(int(function)), 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)


@contextmanager
def taken(device_bytes: int, more: int = 0, device: int = HERE) -> Iterator[None]:
    """The block takes this much of the device, and is charged that and no more than `more`."""
    held, before = on_the_device(device), charged(device)
    yield
    grown, cost = on_the_device(device) - held, charged(device) - before
    assert grown == device_bytes, f"the device holds {grown} more, not {device_bytes}"
    assert grown <= cost <= grown + more, f"{cost} charged for {grown}"
    assert charged(device) >= on_the_device(device)


def create() -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    old_ok(old.cuCtxCreate_v2(ctypes.byref(context), 0, HERE))
    return context


def sized(mib: int, sm: int) -> Entry:
    return Entry(sm, cubin({"nothing": mib * MIB}, sm=sm))


def one_of_several(taken_mib: str, *entries: str) -> None:
    """Entries are `sm:MiB`, with `p` before it PTX, with `z` compressed; one is taken."""
    parts = []
    for entry in entries:
        sm, mib = (int(part) for part in entry.lstrip("pz").split(":"))
        if entry[0] == "p":
            text = ptx(sm=sm).rstrip(b"\0") + b"//" + b"-" * (4 * mib * MIB)
            parts.append(Entry(sm, text, PTX_KIND))
        elif entry[0] == "z":
            parts.append(Entry(sm, bytes(4096), unpacked=mib * MIB))
        else:
            parts.append(sized(mib, sm))
    begin()
    image = fat(*parts)
    size = int(taken_mib) * MIB
    most = 3 * size + 2 * SLAB if "p" in entries[0] else MORE + SLAB  # text is longer than code
    with expect(0):
        for _ in range(2):
            with taken(size, most):
                module = ok(cu.cuModuleLoadData(image))
                ok(cu.cuModuleGetFunction(module, b"nothing"))
            ok(cu.cuModuleUnload(module))
            with taken(size, most):
                loaded = library(image)
                ok(launch(ok(cu.cuLibraryGetKernel(loaded, b"nothing"))))
                ok(cu.cuCtxSynchronize())
            ok(cu.cuLibraryUnload(loaded))


def none_fits() -> None:
    begin()
    newer = fat(sized(4, 100), sized(4, 120), Entry(100, ptx(sm=100), PTX_KIND))
    with expect(0):
        for _ in range(2):
            refused(cu.cuModuleLoadData(newer), NO_BINARY)
            refused(cu.cuLibraryLoadData(newer, [], [], 0, [], [], 0), NO_BINARY)


VARIABLES = cubin({"nothing": 4096}, variables=6 << 30)


def unused_costs_nothing() -> None:
    """A lazily loaded image takes nothing until its use; one that does not fit is refused then."""
    begin()
    with taken(0):
        assert int(ok(cu.cuModuleGetLoadingMode())) == 2
        large = library(VARIABLES)
        image = fat(sized(1, 80), sized(2, 90))
        unused = [library(image) for _ in range(200)]
        kernel = ok(cu.cuLibraryGetKernel(large, b"nothing"))
        ok(cu.cuKernelGetAttribute(cu.CUfunction_attribute(3), kernel, 0))
    with expect(0):
        refused(cu.cuLibraryGetGlobal(large, b"blob"))
        refused(cu.cuLibraryGetModule(large))
        refused(cu.cuKernelGetFunction(kernel))
        refused(launch(kernel))
        refused(cu.cuModuleLoadData(VARIABLES))
        for one in (large, *unused):
            ok(cu.cuLibraryUnload(one))


def kernel_by_kernel() -> None:
    """Variables come with the module, code with the first function; all that is held is paid."""
    begin()
    for table_first in (False, True):
        in_steps(table_first)


def in_steps(table_first: object) -> None:
    kernels = {"small": 3 * MIB, "large": 20 * MIB}
    image = cubin(kernels, variables=6 * MIB, initialised=2 * MIB, table_first=bool(table_first))
    with expect(0):
        with taken(8 * MIB, SLAB):
            module = ok(cu.cuModuleLoadData(image))
        with taken(0):
            ok(cu.cuModuleGetGlobal(module, b"blob"))
            ok(cu.cuModuleGetGlobal(module, b"filled"))
            assert int(cu.cuModuleGetFunction(module, b"no such")[0]) == NOT_FOUND
        with taken(4 * MIB, 20 * MIB + MORE):
            ok(launch(ok(cu.cuModuleGetFunction(module, b"small"))))
        before = charged()
        ok(cu.cuModuleGetFunction(module, b"large"))
        assert charged() == before
        assert 0 <= charged() - on_the_device(HERE) <= 2 * SLAB
        ok(cu.cuModuleUnload(module))
        with taken(24 * MIB + 8 * MIB, MORE):
            module = ok(cu.cuModuleLoadData(image))
            ok(cu.cuModuleEnumerateFunctions(2, module))
        ok(cu.cuModuleUnload(module))


def pointers_to_code() -> None:
    """Variables that hold addresses of functions bring the code along: charged with them."""
    begin()
    padding = "//" + "x" * (3 * MIB)  # as large as the code is taken to be
    for declaration in (
        ".visible .global .align 8 .u64 one = nothing;",
        ".visible .global .align 8 .u64 table[2] = {0, nothing};",
    ):
        with expect(0):
            before = charged()
            module = ok(cu.cuModuleLoadData(ptx(padding, declaration)))
            assert charged() - before == SLAB + 4 * MIB
            assert charged() >= on_the_device(HERE)
            ok(cu.cuModuleGetFunction(module, b"nothing"))
            assert charged() - before == SLAB + 4 * MIB
            ok(cu.cuModuleUnload(module))
    with taken(SLAB):
        ok(cu.cuModuleLoadData(ptx(padding, ".visible .global .align 8 .u64 two[2] = {0x10, 2};")))


def compressed() -> None:
    """Variables and code of a compressed image look alike, so the load is charged for all."""
    begin()
    image = fat(Entry(90, bytes(4096), unpacked=16 * MIB))
    with expect(0):
        with expect(16 * MIB):
            module = ok(cu.cuModuleLoadData(image))
        with expect(0):
            ok(cu.cuModuleGetFunction(module, b"nothing"))
        ok(cu.cuModuleUnload(module))


def forced_to_compile() -> None:
    """CUDA_FORCE_PTX_JIT: PTX is compiled though a cubin would do; later changes do not count."""
    begin()
    text = ptx(".visible .global .align 8 .b8 blob[0x1000000];")
    image = fat(sized(60, 90), Entry(50, text, PTX_KIND))
    os.environ.pop("CUDA_FORCE_PTX_JIT")
    with expect(0):
        with taken(16 * MIB + SLAB):
            module = ok(cu.cuModuleLoadData(image))
            ok(cu.cuModuleGetFunction(module, b"nothing"))
        ok(cu.cuModuleUnload(module))


def managed_variable() -> None:
    """A managed variable has a slab of its own, however small it is."""
    begin()
    declared = ptx(".visible .global .attribute(.managed) .align 4 .b8 few[16];")
    for image in (declared, cubin({"nothing": 64}, managed=16)):
        with expect(0):
            with taken(SLAB, SLAB):
                module = ok(cu.cuModuleLoadData(image))
            with taken(SLAB):
                ok(cu.cuModuleGetFunction(module, b"nothing"))
            ok(cu.cuModuleUnload(module))


def in_every_context() -> None:
    """A kernel is launched where it was never got: its library's image is charged there."""
    begin(THERE)
    context = begin(HERE)
    loaded = library(fat(sized(4, 90), sized(30, 100)))
    kernel = ok(cu.cuLibraryGetKernel(loaded, b"nothing"))
    with taken(0, 0, THERE), taken(4 * MIB, MORE):
        for _ in range(2):
            ok(launch(kernel))
            ok(cu.cuCtxSynchronize())
    with (
        taken(0),
        taken(4 * MIB, MORE, THERE),
        current(ok(cu.cuDevicePrimaryCtxRetain(THERE))),
    ):
        for _ in range(2):
            ok(launch(kernel))
            ok(cu.cuCtxSynchronize())
    other = create()
    with taken(4 * MIB, MORE):
        for _ in range(2):
            ok(launch(kernel))
            ok(cu.cuCtxSynchronize())
    old_ok(old.cuCtxDestroy_v2(other))
    ok(cu.cuCtxSetCurrent(context))
    again = create()  # it may have the address of the one before
    with taken(4 * MIB, MORE):
        ok(launch(kernel))
    old_ok(old.cuCtxDestroy_v2(again))
    ok(cu.cuLibraryUnload(loaded))
    agree()


def unloaded_from_many(count: str) -> None:
    """However many contexts a library was used in, all its copies come back."""
    begin()
    loaded = library(cubin({"nothing": 3 * MIB}))
    kernel = ok(cu.cuLibraryGetKernel(loaded, b"nothing"))
    contexts = []
    for _ in range(int(count)):
        contexts.append(cu.CUcontext(create().value))
        ok(cu.cuCtxPopCurrent())
    before, held = charged(), on_the_device(HERE)
    for context in contexts:
        with current(context):
            ok(cu.cuKernelGetFunction(kernel))
    assert on_the_device(HERE) - held == 4 * MIB * int(count) == charged() - before
    ok(cu.cuLibraryUnload(loaded))
    assert charged() == before
    assert on_the_device(HERE) == held


def eagerly() -> None:
    """Eager loading takes all at once: a library's code in all contexts, present and future."""
    ok(cu.cuInit(0))
    assert int(ok(cu.cuModuleGetLoadingMode())) == 1
    early = library(cubin({"nothing": 3 * MIB}))
    assert charged(HERE) == 0
    context_bytes = 0
    image = cubin({"nothing": 3 * MIB, "other": 6 * MIB}, variables=4 * MIB)
    begin(HERE)
    assert on_the_device(HERE) <= charged(HERE) <= on_the_device(HERE) + SLAB
    ok(cu.cuLibraryUnload(early))
    agree()
    with expect(0), expect(0, THERE):
        with taken(14 * MIB, MORE):
            module = ok(cu.cuModuleLoadData(image))
        with taken(0):
            ok(cu.cuModuleGetFunction(module, b"other"))
        ok(cu.cuModuleUnload(module))
    begin(THERE)
    begin(HERE)
    context_bytes = charged(THERE)
    with expect(0), expect(0, THERE):
        with taken(14 * MIB, MORE), taken(14 * MIB, MORE, THERE):
            loaded = library(image)
        with taken(0), taken(0, 0, THERE):
            ok(launch(ok(cu.cuLibraryGetKernel(loaded, b"other"))))
        with taken(context_bytes + 14 * MIB, 2 * SLAB):
            other = create()
        with taken(0):
            ok(launch(ok(cu.cuLibraryGetKernel(loaded, b"other"))))
        before = charged()
        ok(cu.cuLibraryUnload(loaded))
        assert before - charged() >= 28 * MIB
        assert charged() == on_the_device(HERE)
        refused(cu.cuLibraryLoadData(VARIABLES, [], [], 0, [], [], 0))
        refused(cu.cuModuleLoadData(VARIABLES))
        old_ok(old.cuCtxDestroy_v2(other))


def at_a_full_quota(fill: str) -> None:
    """Idle pool memory makes room for a launch; what is in use does not, and nothing is lost."""
    begin()
    room = int(ok(cu.cuMemGetInfo())[0])
    loaded = library(cubin({"nothing": 3 * MIB}))
    kernel = ok(cu.cuLibraryGetKernel(loaded, b"nothing"))
    pool, stream = ok(cu.cuDeviceGetDefaultMemPool(0)), ok(cu.cuStreamCreate(1))
    keep_all(pool)
    full = room // SLAB * SLAB
    if fill == "idle":
        pointer = ok(cu.cuMemAllocAsync(full, stream))
        ok(cu.cuMemFreeAsync(pointer, stream))
        ok(cu.cuStreamSynchronize(stream))
        refused(cu.cuMemAlloc(full * 2))
        assert int(ok(cu.cuMemPoolGetAttribute(pool, RESERVED))) == full
        ok(launch(kernel))
    else:
        pointer = ok(cu.cuMemAlloc(full))
        with expect(0):
            refused(launch(kernel))
            refused(launch(kernel))
        ok(cu.cuMemFree(pointer))
        ok(launch(kernel))
    ok(cu.cuCtxSynchronize())
    assert charged() >= on_the_device(HERE)


def by_threads_at_once() -> None:
    """Threads request functions of one module at once, some by a name that does not exist."""
    begin()
    context = ok(cu.cuCtxGetCurrent())
    image = cubin({"nothing": 3 * MIB, "other": 2 * MIB})
    failures = []

    def ask(module: object, kernel: object, name: bytes) -> None:
        with contextlib.suppress(CudaError):
            ok(cu.cuCtxSetCurrent(context))
            ok(launch(kernel))
            ok(cu.cuModuleGetFunction(module, name))
            return
        failures.append(name)

    before, held = charged(), on_the_device(HERE)
    for _ in range(20):
        module, loaded = ok(cu.cuModuleLoadData(image)), library(image)
        kernel = ok(cu.cuLibraryGetKernel(loaded, b"other"))
        names = [b"nothing", b"no such", b"other", b"no such"] * 2
        threads = [threading.Thread(target=ask, args=(module, kernel, name)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert charged() >= on_the_device(HERE)
        assert charged() - before == 2 * 6 * MIB
        ok(cu.cuModuleUnload(module))
        ok(cu.cuLibraryUnload(loaded))
        assert charged() == before
        assert on_the_device(HERE) == held
    assert set(failures) == {b"no such"}


def beside_a_full_device() -> None:
    """The driver has no room: what was charged for the load is given back."""
    begin()
    image = cubin({"nothing": 3 * MIB}, variables=4 * MIB)
    module = ok(cu.cuModuleLoadData(cubin({"nothing": 3 * MIB})))
    loaded = library(image)
    kernel = ok(cu.cuLibraryGetKernel(loaded, b"nothing"))
    print("ready", flush=True)
    input()
    with expect(0):
        refused(cu.cuModuleLoadData(image))
        refused(cu.cuModuleGetFunction(module, b"nothing"))
        refused(cu.cuLibraryGetModule(loaded))
        refused(cu.cuKernelGetFunction(kernel))
    print("again", flush=True)
    input()
    with taken(4 * MIB + 8 * MIB, 2 * MORE):
        ok(cu.cuModuleGetFunction(module, b"nothing"))
        ok(cu.cuKernelGetFunction(kernel))


def from_files(folder: str) -> None:
    """Images that the driver reads from files are charged like others."""
    begin()
    path = f"{folder}/image"
    with open(path, "wb") as file:  # noqa: PTH123  # as short as that
        file.write(fat(sized(4, 80), sized(6, 90), sized(30, 100)))
    with expect(0):
        with taken(6 * MIB, MORE):
            module = ok(cu.cuModuleLoad(path.encode()))
            ok(cu.cuModuleGetFunction(module, b"nothing"))
        with taken(6 * MIB, MORE):
            loaded = ok(cu.cuLibraryLoadFromFile(path.encode(), [], [], 0, [], [], 0))
            ok(cu.cuLibraryGetModule(loaded))
            ok(launch(ok(cu.cuLibraryGetKernel(loaded, b"nothing"))))
        ok(cu.cuModuleUnload(module))
        ok(cu.cuLibraryUnload(loaded))
        assert int(cu.cuModuleLoad(f"{path}-not".encode())[0]) != 0
