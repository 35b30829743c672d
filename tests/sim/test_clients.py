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


def test_cuda_core_checkpoints_a_process_and_restores_it_elsewhere(two_devices, program):
    target = two_devices.start(program("checkpointed"))
    helper = two_devices.python("core_checkpoint.py")

    def say(process, words: str) -> str:
        process.stdin.write(words + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    assert target.stdout.readline() == "ready\n"
    say(target, "allocate 70000000")
    say(target, "fill")
    first, second = (device.uuid.removeprefix("GPU-") for device in two_devices.machine.devices())
    assert say(helper, f"state {target.pid}") == "running"
    assert "CUDA_ERROR_ILLEGAL_STATE" in say(helper, f"checkpoint {target.pid}")
    assert say(helper, f"lock {target.pid} 5000") == "done"
    assert say(helper, f"checkpoint {target.pid}") == "done"
    assert say(helper, f"state {target.pid}") == "checkpointed"
    assert "CUDA_ERROR_INVALID_VALUE" in say(helper, f"restore {target.pid} {first}={second}")
    pairs = f"{first}={second} {second}={first}"
    assert say(helper, f"restore {target.pid} {pairs}") == "done"
    assert say(helper, f"state {target.pid}") == "locked"
    assert say(helper, f"unlock {target.pid}") == "done"
    assert say(target, "compare") == "equal"
    assert say(target, "uuid") == second.replace("-", "")
