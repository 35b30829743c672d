"""Names that a debugger such as cuda-gdb looks up in a program of a tenant."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
version = (ctypes.c_uint32 * 3)()
places = [ctypes.byref(version, 4 * i) for i in range(3)]
answer = library.cudbgGetAPIVersion(*places)
print(answer, *version)
table = ctypes.c_void_p()
print(library.cudbgGetAPI(*version, ctypes.byref(table)), bool(table.value))
print(library.cudbgGetAPI(version[0], 9999, version[2], ctypes.byref(table)))
"""
# The libraries in the order in which they were loaded, as a debugger reads them.
LIBRARIES = """
import ctypes
shim = ctypes.CDLL("libcuda.so.1")
shim.cuDriverGetVersion(ctypes.byref(ctypes.c_int()))
class Info(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("name", ctypes.c_char_p)]
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def say(info, size, data):
    print(info.contents.name.decode())
    return 0
ctypes.CDLL(None).dl_iterate_phdr(say, None)
"""


def run(environment: dict[str, str] | None, *words: object) -> str:
    command = [sys.executable, "-c", *map(str, words)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


def debugger_names(library: str) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    return set(re.findall(r"\b(cudbg\w+)$", listing, re.MULTILINE))


def test_functions_that_a_debugger_calls_in_its_own_process_are_forwarded(
    make_tenant, real_libcuda, tmp_path
):
    alone = shutil.copy(real_libcuda, tmp_path / "alone.so")
    inside = make_tenant(driver=real_libcuda).environment()
    answers = run(inside, ASK, "libcuda.so.1")
    assert answers == run(None, ASK, alone)
    assert re.match(r"0 12 \d+ \d+\n", answers)  # without a device it has no more to say


def test_a_driver_without_debugger_functions_answers_that_it_does_not_support_them(make_tenant):
    answers = run(make_tenant().environment(), ASK, "libcuda.so.1").splitlines()
    assert answers == ["801 0 0 0", "801 False", "801"]


@pytest.mark.parametrize("kind", ["cudbgIpcFlag", "cudbgReportDriverApiError", "cudbgApiAttach"])
def test_names_that_a_debugger_looks_up_in_the_program_are_found_in_the_driver(
    make_tenant, real_libcuda, kind
):
    """It takes the first library that has the name: data that it writes, and breakpoint targets."""
    libraries = run(make_tenant(driver=real_libcuda).environment(), LIBRARIES).split()
    libraries = [path for path in libraries if path.startswith("/")]
    holders = [path for path in libraries if kind in debugger_names(path)]
    assert holders == [str(real_libcuda)]
