"""C and Python see the same bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock_shim._native import ffi

NATIVE = Path(__file__).resolve().parents[2] / "shim" / "native"
STRUCTS = [
    "penstock_device_limit",
    "penstock_limits",
    "penstock_quota_page",
    "penstock_ledger_device",
    "penstock_ledger_slot",
    "penstock_gate_device",
    "penstock_gate_slot",
    "penstock_slot",
    "penstock_asked",
    "penstock_usage_page",
    "penstock_handshake",
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The layout by gcc: {struct: {field: (offset, size)}}, the whole struct under ''."""
    directory = tmp_path_factory.mktemp("layout")
    lines = []
    for struct in STRUCTS:
        lines.append(f'printf("{struct} - 0 %zu\\n", sizeof({struct}));')
        lines += [
            f'printf("{struct} {field} %zu %zu\\n", offsetof({struct}, {field}),'
            f" sizeof((({struct} *)0)->{field}));"
            for field, _ in ffi.typeof(struct).fields
        ]
    source = directory / "layout.c"
    source.write_text(
        '#include <stdio.h>\n#include <stddef.h>\n#include "mechanism/region.h"\n'
        '#include "abi/handshake.h"\n'
        f"int main(void) {{ {' '.join(lines)} }}\n"
    )
    program = directory / "layout"
    subprocess.run(["gcc", "-I", NATIVE, source, "-o", program], check=True)
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    found = {}
    for line in output.splitlines():
        struct, field, offset, size = line.split()
        found.setdefault(struct, {})[field] = (int(offset), int(size))
    return found


@pytest.mark.parametrize("struct", STRUCTS)
def test_offsets_and_sizes_in_python_are_those_of_the_compiler(compiled, struct):
    seen = {
        field: (member.offset, ffi.sizeof(member.type))
        for field, member in ffi.typeof(struct).fields
    }
    assert {**seen, "-": (0, ffi.sizeof(struct))} == compiled[struct]


@pytest.mark.parametrize("struct", STRUCTS)
def test_no_struct_has_holes_that_a_compiler_might_fill_differently(struct):
    end = 0
    for name, member in ffi.typeof(struct).fields:
        assert member.offset == end, name
        end += ffi.sizeof(member.type)
    assert end == ffi.sizeof(struct)


def test_words_that_processes_race_for_do_not_share_cache_lines_between_slots_or_devices():
    assert ffi.sizeof("penstock_slot") % 64 == 0
    assert ffi.sizeof("penstock_ledger_device") % 64 == 0
    assert ffi.offsetof("penstock_usage_page", "slots") % 64 == 0
    assert ffi.offsetof("penstock_usage_page", "ledger") % 64 == 0


def test_a_usage_pages_size_fits_the_field_that_tells_it():
    assert ffi.sizeof("penstock_usage_page") < 2**32
