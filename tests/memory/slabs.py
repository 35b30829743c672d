"""Programs whose small allocations share slabs of 2 MiB on the device."""

from __future__ import annotations

import os
import sys

from cuda_calls import MIB, OUT_OF_MEMORY, begin, charged, cu, expect, ok, old, refused

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
    """At the limit what fits into an open slab is given, and nothing else; free memory says so."""
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
