"""Programs of others, as their documentation has them, run to the end on the simulated driver."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("example", ["vecadd", "laplace", "cg", "reduction", "sessionize"])
def test_an_example_of_numba_cudas_documentation_runs_to_the_end(machine, example):
    output = machine.run(sys.executable, PROGRAMS / "run_example.py", example)
    assert output.endswith("done\n")
    (record,) = machine.machine.record(0)
    assert record.launches > 0
    assert not record.alive
    assert record.memory_bytes == 0


def test_a_program_of_cuda_core_runs_to_the_end_and_sees_the_devices_time(machine):
    output = machine.run(sys.executable, PROGRAMS / "core_vector_add.py")
    (record,) = machine.machine.record(0)
    # 196 blocks of 256 threads at 40 ps each, 2 us at least; and one copy on the device
    kernel_ns = 2000 + 196 * 256 * 40 // 1000
    assert record.launches == 11
    assert record.busy_ns >= 10 * kernel_ns
    assert float(output.split()[0]) * 1e6 >= 10 * kernel_ns
