"""Programs whose small allocations share slabs of 2 MiB on the device."""

from __future__ import annotations

import os
import sys

from tests.memory.support.cuda_calls import (
    MIB,
    OUT_OF_MEMORY,
    begin,
    charged,
    cu,
    expect,
    ok,
    old,
    refused,
)

SLAB = 2 * MIB


def show(*words: object) -> None:
    """Print the charge and wait to go on: what the device holds is compared meanwhile."""
    print(charged(), *words, flush=True)
    sys.stdin.readline()


def fill(size: int) -> list[int]:
    """Allocate until there is no more."""
    held: list[int] = []
    while True:
        code, pointer = cu.cuMemAlloc(size)
        if int(code):
            assert int(code) == OUT_OF_MEMORY
            return held
        held.append(int(pointer))


def one_left_in_each(size: str) -> None:
    """Frees all but one block of each slab, again and again, then takes whole slabs."""
    begin()
    kept: list[int] = []
    for _ in range(3):
        seen: set[int] = set()
        for pointer in fill(int(size)):
            if pointer // SLAB in seen:
                ok(cu.cuMemFree(pointer))
            else:
                seen.add(pointer // SLAB)
                kept.append(pointer)
        show()
    large = fill(SLAB)
    show()
    for pointer in kept + large:
        ok(cu.cuMemFree(pointer))
    show()


def room_in_open_slabs(limit: str) -> None:
    """At the limit only requests that fit into an open slab succeed; free memory shows it."""
    begin()
    held = [ok(cu.cuMemAlloc(MIB)) for _ in range(int(limit) // MIB)]
    assert charged() == int(limit)
    for size in (1, 512, 4096, MIB, SLAB):
        with expect(0):
            refused(cu.cuMemAlloc(size))
    ok(cu.cuMemFree(held.pop()))
    with expect(0):
        held += [ok(cu.cuMemAlloc(MIB // 4)) for _ in range(4)]
        refused(cu.cuMemAlloc(1))
        ok(cu.cuMemFree(held.pop(-2)))
        refused(cu.cuMemAlloc(MIB // 4 + 1))
        assert ok(cu.cuMemGetInfo())[0] == 0
        held.append(ok(cu.cuMemAlloc(MIB // 4)))
    with expect(-int(limit)):
        for pointer in held:
            ok(cu.cuMemFree(pointer))
    assert ok(cu.cuMemGetInfo())[0] == int(limit)


def managed_at_the_limit(limit: str) -> None:
    """Managed blocks have slabs of their own."""
    begin()
    flags = int(cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)
    held = [ok(cu.cuMemAlloc(MIB)) for _ in range(3)]
    while charged() < int(limit):
        held.append(ok(cu.cuMemAllocManaged(4096, flags)))
    with expect(0):
        refused(cu.cuMemAllocManaged(4096, flags))
        held.append(ok(cu.cuMemAlloc(MIB)))
    with expect(-int(limit)):
        for pointer in held:
            ok(cu.cuMemFree(pointer))


def by_command() -> None:
    """Reads `a SIZE` (allocate), `f PLACE` (free), `c` (free all); prints the charge after each."""
    begin()
    held: list[int] = []
    for line in sys.stdin:
        command, *words = line.split()
        answer = "ok"
        if command == "a":
            code, pointer = cu.cuMemAlloc(int(words[0]))
            if int(code):
                assert int(code) == OUT_OF_MEMORY
                answer = "refused"
            else:
                held.append(int(pointer))
        elif command == "f":
            if held:
                ok(cu.cuMemFree(held.pop(int(words[0]) % len(held))))
        else:
            while held:
                ok(cu.cuMemFree(held.pop()))
        print(answer, charged(), flush=True)


def contexts_and_devices(reserve: str) -> None:
    """Blocks die with their context, on the device where they lie."""
    context = begin(1)
    with expect(SLAB, 1), expect(0, 0):
        for _ in range(4):
            ok(cu.cuMemAlloc(4096))
    begin(0)
    with expect(SLAB, 0), expect(0, 1):
        ok(cu.cuMemAlloc(4096))
    show(charged(1))
    with expect(-SLAB - int(reserve), 1), expect(0, 0):
        ok(cu.cuDevicePrimaryCtxReset(1))
    show(charged(1))
    assert context
    with expect(-SLAB - int(reserve), 0):
        ok(cu.cuDevicePrimaryCtxReset(0))


def forked() -> None:
    """A fork's child gives nothing back of its parent's slabs."""
    begin()
    pointer = ok(cu.cuMemAlloc(4096))
    before = charged()
    child = os.fork()
    if child == 0:
        old.cuMemFree_v2(int(pointer))
        os._exit(0)
    os.waitpid(child, 0)
    assert charged() == before
    with expect(-SLAB):
        ok(cu.cuMemFree(pointer))


PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry nothing() { ret; }
\0"""


def make_module() -> tuple:
    """Loads a module with its code, which the first function brings."""
    module = ok(cu.cuModuleLoadData(PTX))
    code = cu.cuModuleGetFunction(module, b"nothing")[0]
    if int(code):
        ok(cu.cuModuleUnload(module))
    return code, module


def hidden_among_blocks(kind: str) -> None:
    """Fills, puts an array or a module into each slab, frees all else, and fills again."""
    begin()
    make = make_module if kind == "module" else make_array
    hidden = [ok(make())]
    for _ in range(3):
        first: dict[int, int] = {}
        blocks = fill(64 << 10)
        for pointer in blocks:
            first.setdefault(pointer // SLAB, pointer)
        for pointer in first.values():
            ok(cu.cuMemFree(pointer))
            code, one = make()
            if not int(code):
                hidden.append(one)
        show()
        for pointer in set(blocks) - set(first.values()):
            ok(cu.cuMemFree(pointer))
        show()
    assert len(hidden) > 8
    large = fill(SLAB)
    show()
    for pointer in large:
        ok(cu.cuMemFree(pointer))
    for one in hidden:
        ok(cu.cuModuleUnload(one) if kind == "module" else cu.cuArrayDestroy(one))
    show("nothing")


def flat() -> cu.CUDA_ARRAY_DESCRIPTOR:
    """64 x 64 floats: 16 KiB."""
    d = cu.CUDA_ARRAY_DESCRIPTOR()
    d.Width, d.Height, d.NumChannels = 64, 64, 1
    d.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
    return d


def make_array() -> tuple:
    return cu.cuArrayCreate(flat())


def many_hidden() -> None:
    """Small arrays and modules share slabs; so do those that come and go."""
    begin()
    with expect(2 * SLAB):
        arrays = [ok(cu.cuArrayCreate(flat())) for _ in range(2 * SLAB // (16 << 10))]
    with expect(0):
        for _ in range(1000):
            ok(cu.cuArrayDestroy(arrays.pop()))
            arrays.append(ok(cu.cuArrayCreate(flat())))
    with expect(SLAB):
        modules = [ok(make_module()) for _ in range(300)]
    show()
    for array in arrays:
        ok(cu.cuArrayDestroy(array))
    for module in modules:
        ok(cu.cuModuleUnload(module))
    show("nothing")
