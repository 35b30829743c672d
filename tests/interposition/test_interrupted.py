"""Signals to a program of a suspended tenant, whose launch waits in the driver's call."""

from __future__ import annotations

import dataclasses
import select
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import ctypes, signal, sys
# A shell that runs the tests in the background has both ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
cuda = ctypes.CDLL("libcuda.so.1")
context, memory, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(1 << 21)
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), size) == 0
print("ready", flush=True)
sys.stdin.readline()
try:
    cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(1), size)
    print("done", flush=True)
    sys.stdin.readline()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
A_WHILE_S = 0.5


@pytest.fixture
def waiting(make_tenant):
    """A tenant and its program, whose launch waits until the tenant is resumed."""
    tenant = make_tenant()
    suspend(tenant, suspended=True)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=tenant.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout.readline() == "ready\n"
        program.stdin.write("\n")
        program.stdin.flush()
        assert is_silent(program)
        yield tenant, program
        program.kill()


def suspend(tenant, *, suspended: bool) -> None:
    tenant.quota.change(lambda limits: dataclasses.replace(limits, suspended=suspended))


def is_silent(program) -> bool:
    """Whether the program lives and prints nothing for a while."""
    said, _, _ = select.select([program.stdout], [], [], A_WHILE_S)
    return not said and program.poll() is None


def test_an_interrupt_that_the_program_handles_waits_for_the_launch(waiting):
    """As Python's Ctrl-C: its handler runs between two of its own instructions."""
    tenant, program = waiting
    program.send_signal(signal.SIGINT)
    assert is_silent(program)
    suspend(tenant, suspended=False)
    assert program.stdout.readline() == "interrupted\n"
    assert program.wait(timeout=30) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL])
def test_a_signal_that_the_program_leaves_to_the_kernel_ends_it_at_once(waiting, number):
    tenant, program = waiting
    before = time.monotonic()
    program.send_signal(number)
    assert program.wait(timeout=30) == -number
    assert time.monotonic() - before < 20
    suspend(tenant, suspended=False)
    tenant.reap()
    assert tenant.charged() == 0
