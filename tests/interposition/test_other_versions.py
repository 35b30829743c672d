"""Drivers that are newer or older than the headers of this build."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from penstock_shim.pages import read_asked

FOUND, NOT_FOUND = 0, 1
NOT_SUPPORTED = 801

ASK = """
import ctypes, sys
library = ctypes.CDLL("libcuda.so.1")
for name in sys.argv[1:]:
    function, status = ctypes.c_void_p(), ctypes.c_int(-1)
    code = library.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(function), 13000, ctypes.c_uint64(0), ctypes.byref(status))
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(function.value)() if function.value else 0
    print(code, status.value, answer)
"""


@pytest.fixture
def tenant(compile_c, make_tenant):
    driver = compile_c("newer_driver.c", "-shared", "-fPIC", name="libcuda-newer.so")
    return make_tenant(driver=driver)


def run(tenant, program: str, *words: str) -> list[list[int]]:
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(
        command, env=tenant.environment(), capture_output=True, text=True, check=True
    )
    return [list(map(int, line.split())) for line in done.stdout.splitlines()]


def test_a_harmless_name_that_the_shim_does_not_know_is_passed_on_and_noted(tenant):
    assert run(tenant, ASK, "cuFutureQuery") == [[0, FOUND, 4711]]
    assert "cuFutureQuery is not known" in tenant.log()


@pytest.mark.parametrize("name", ["cuFutureAllocEverything", "cuFutureLaunch", "cuMemAlloc"])
def test_an_unknown_name_or_version_that_allocates_or_launches_is_not_found(tenant, name):
    assert run(tenant, ASK, name) == [[0, NOT_FOUND, 0]]
    assert f"cuGetProcAddress: {name}" in tenant.log()


def test_a_policy_may_let_unknown_names_through(tenant):
    tenant.quota.change(lambda limits: dataclasses.replace(limits, allow_unknown=True))
    assert run(tenant, ASK, "cuFutureLaunch", "cuMemAlloc") == [[0, FOUND, 4712], [0, FOUND, 4713]]


def test_the_owner_sees_in_the_page_which_names_were_requested(tenant):
    run(tenant, ASK, "cuFutureQuery", "cuFutureLaunch", "cuFutureLaunch", "cuNoSuchThing", "")
    seen = {one.name: one for one in read_asked(tenant.folder / "usage").names}
    assert {name: (one.kind, one.requests) for name, one in seen.items()} == {
        "cuFutureQuery": ("unknown", 1),
        "cuFutureLaunch": ("refused", 2),
        "cuNoSuchThing": ("absent", 1),
    }


def test_a_function_that_the_driver_lacks_is_noted_when_it_is_called(tenant):
    program = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
for _ in range(5):
    library.cuEventQuery(0)
library.cuInit(0)
"""
    run(tenant, program)
    names = read_asked(tenant.folder / "usage").names
    assert [(one.name, one.kind, one.calls) for one in names] == [("cuEventQuery", "absent", 1)]


def test_a_name_that_nobody_has_is_not_found(tenant):
    assert run(tenant, ASK, "cuNoSuchThing", "") == [[0, NOT_FOUND, 0], [0, NOT_FOUND, 0]]


def test_a_function_that_the_driver_lacks_is_not_supported(tenant):
    program = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
print(library.cuInit(0), library.cuLaunchKernelEx(0, 0, 0, 0), library.cuEventQuery(0))
"""
    assert run(tenant, program) == [[0, NOT_SUPPORTED, NOT_SUPPORTED]]
    assert run(tenant, ASK, "cuEventQuery") == [[0, NOT_FOUND, 0]]


def test_missing_pointers_are_invalid_values_not_crashes(tenant):
    program = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
function, flags = ctypes.c_void_p(), ctypes.c_uint64(0)
print(library.cuGetProcAddress_v2(None, ctypes.byref(function), 13000, flags, None),
      library.cuGetProcAddress_v2(b"cuInit", None, 13000, flags, None),
      library.cuGetProcAddress_v2(b"cuInit", ctypes.byref(function), 13000, flags, None))
"""
    assert run(tenant, program) == [[1, 1, 0]]
