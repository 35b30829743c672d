"""Programs that load code and variables, and check each charge."""

from __future__ import annotations

import ctypes

from cuda.bindings import nvfatbin, nvjitlink
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

PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry nothing() { ret; }
\0"""


def load() -> object:
    """Loads a module with its code."""
    module = ok(cu.cuModuleLoadData(PTX))
    ok(cu.cuModuleGetFunction(module, b"nothing"))
    return module


def modules() -> None:
    begin()
    with expect(SLAB):
        module = load()
    with expect(0):
        others = [load() for _ in range(100)]
        library = ok(cu.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
        ok(cu.cuLibraryGetModule(library))
        ok(cu.cuModuleUnload(module))
        for other in others:
            ok(cu.cuModuleUnload(other))
    with expect(-SLAB):
        ok(cu.cuLibraryUnload(library))


def with_variables(*declarations: str) -> bytes:
    return PTX.rstrip(b"\0") + "\n".join(("", *declarations, "\0")).encode()


def module_variables() -> None:
    """A module's variables are charged at its load; a module that does not fit leaves no charge."""
    begin()
    for declarations, taken in (
        ([".visible .global .align 8 .b8 blob[0x600000];"], 6),
        ([".global .v4 .f32 blob[100][5242]; // .global .b8 not[1073741824];"], 8),
        ([".visible .global .attribute(.managed) .align 4 .b8 blob[4194304];"], 4),
        ([".const .align 4 .b8 blob[2097152];", ".extern .global .b8 far[1073741824];"], 2),
        ([".global .u32 other, blob[1048576], third;"], 6),
    ):
        image = with_variables(*declarations)
        with expect(taken * MIB + SLAB):
            module = ok(cu.cuModuleLoadData(image))
            ok(cu.cuModuleGetFunction(module, b"nothing"))
            if "blob[1048576]" not in declarations[0]:
                assert ok(cu.cuModuleGetGlobal(module, b"blob"))[1] > (taken - 2) * MIB
        with expect(-taken * MIB - SLAB):
            ok(cu.cuModuleUnload(module))
    huge = with_variables(
        ".visible .global .align 8 .b8 blob[0xffffffffffffffff];", *[".global .b64 a[2];"] * 2
    )
    over = with_variables(*(f".global .b8 blob{i}[1073741824];" for i in range(8)))
    with expect(0):
        refused(cu.cuModuleLoadData(huge))
        refused(cu.cuModuleLoadData(over))
        library = ok(cu.cuLibraryLoadData(over, [], [], 0, [], [], 0))
        refused(cu.cuLibraryGetModule(library))
        ok(cu.cuLibraryUnload(library))


def cubin_variables() -> None:
    """A compiled image says the size of its variables without holding them; so in fat binaries."""
    begin()
    text = with_variables(".visible .global .align 8 .b8 blob[8388608];").rstrip(b"\0")
    text = text.replace(b".version 7.0", b".version 8.0").replace(b"sm_50", b"sm_90")
    link = nvjitlink.create(1, ["-arch=sm_90"])
    nvjitlink.add_data(link, nvjitlink.InputType.PTX, text, len(text), "blob")
    nvjitlink.complete(link)
    cubin = bytearray(nvjitlink.get_linked_cubin_size(link))
    nvjitlink.get_linked_cubin(link, cubin)
    images = [bytes(cubin)]
    for options in (["-64", "-compress=false"], ["-64"]):
        fat = nvfatbin.create(options, len(options))
        nvfatbin.add_cubin(fat, cubin, len(cubin), "90", "blob")
        nvfatbin.add_ptx(fat, text + b"\0", len(text) + 1, "90", "blob", "")
        body = bytearray(nvfatbin.size(fat))
        nvfatbin.get(fat, body)
        images.append(bytes(body))
    assert all(len(image) < MIB for image in images)
    for image in images:
        before = charged()
        module = ok(cu.cuModuleLoadData(image))
        ok(cu.cuModuleGetFunction(module, b"nothing"))
        assert charged() - before == 8 * MIB + SLAB, charged() - before
        ok(cu.cuModuleUnload(module))
        assert charged() == before
        library = ok(cu.cuLibraryLoadData(image, [], [], 0, [], [], 0))
        assert ok(cu.cuLibraryGetGlobal(library, b"blob"))[1] == 8 * MIB
        ok(cu.cuLibraryUnload(library))
        assert charged() == before


def linked_modules() -> None:
    """Linking costs nothing on the device; what comes out is charged by its own size."""
    begin()
    kind, state, image = 1, ctypes.c_void_p(), ctypes.c_void_p()
    text, size = PTX.rstrip(b"\0"), ctypes.c_size_t()
    other = text.replace(b"nothing", b"another") + b"// " + b"-" * 4000
    with expect(0):
        old_ok(old.cuLinkCreate_v2(0, None, None, ctypes.byref(state)))
        for part in (text, other):
            length = ctypes.c_size_t(len(part))
            old_ok(old.cuLinkAddData_v2(state, kind, part, length, b"part", 0, None, None))
        old_ok(old.cuLinkComplete(state, ctypes.byref(image), ctypes.byref(size)))
    assert MIB > size.value > 4000
    with expect(SLAB):
        module = ok(cu.cuModuleLoadData(image.value))
        ok(cu.cuModuleGetFunction(module, b"another"))
        old_ok(old.cuLinkDestroy(state))
    with expect(-SLAB):
        ok(cu.cuModuleUnload(module))
