"""Each case of the C programs in `programs/` is one statement about the simulated driver."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


def cases(*names: str) -> list[tuple[str, str]]:
    found = []
    for name in names:
        text = (PROGRAMS / f"{name}.c").read_text()
        found += [(name, case) for case in re.findall(r"^CASE\((\w+)\)", text, re.MULTILINE)]
    return found


@pytest.mark.parametrize(
    ("name", "case"), cases("calls", "memory", "streams", "graphs", "graph_memory", "processes")
)
def test_the_simulated_driver_as_a_program_sees_it(machine, program, name, case):
    machine.run(program(name), case)


def test_a_capture_that_reached_another_device_ends_there_too(two_devices, program):
    two_devices.run(program("graphs"), "a_capture_that_reached_another_device_ends_there_too")


def test_a_descriptor_is_not_taken_for_one_of_another_device(two_devices, program):
    two_devices.run(program("processes"), "a_descriptor_is_not_taken_for_one_of_another_device")


def test_threads_work_on_while_their_process_is_moved_to_and_fro(two_devices, program):
    case = "threads_work_on_while_their_process_is_checkpointed_and_moved"
    two_devices.run(program("processes"), case)
    for device in (0, 1):
        assert sum(record.busy_ns for record in two_devices.machine.record(device)) > 0


def test_an_allocation_refused_on_demand_is_refused_once(machine, program):
    machine.machine.inject("out-of-memory", call="cuMemAlloc", count=1)
    machine.run(program("faults"), "an_allocation_fails_and_the_next_one_does_not")


def test_a_kernel_that_fails_on_demand_breaks_its_context_for_good(machine, program):
    machine.machine.inject("launch-failed", count=1)
    machine.run(program("faults"), "a_failed_kernel_breaks_its_context_for_good")


def test_a_lost_device_answers_so_even_to_a_call_that_waits(machine, program):
    process = machine.start(program("faults"), "a_lost_device_answers_so_even_to_who_waits")
    assert process.stdout.readline() == "waiting\n"
    machine.machine.inject("device-lost")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors


def test_with_one_connection_all_streams_share_a_hardware_queue(machine, program):
    case = "with_one_connection_all_streams_share_a_hardware_queue"
    machine.run(program("streams"), case, CUDA_DEVICE_MAX_CONNECTIONS="1")


def times(machine, program, *, shift_ns: int = 0) -> tuple[float, float]:
    """Milliseconds between two events, by them and by the host."""
    process = machine.start(program("streams"), "events_are_timed_by_the_device_clock")
    assert process.stdout.readline() == "recorded\n"
    machine.machine.shift_clock(shift_ns)
    time.sleep(0.2)
    output, errors = process.communicate("step\n", timeout=20)
    assert process.returncode == 0, errors
    by_events, by_host = (float(word) for word in output.split())
    return by_events, by_host


@pytest.mark.parametrize("drift", [0.5, -0.5])
def test_the_device_clock_drifts_as_its_profile_says(drifting, program, drift):
    by_events, by_host = times(drifting(drift * 1e6), program)
    assert by_events == pytest.approx(by_host * (1 + drift), rel=0.05)


@pytest.mark.parametrize("shift_ns", [0, 72_000_000, -72_000_000])
def test_a_shift_of_the_device_clock_is_as_if_it_had_drifted_so_far(machine, program, shift_ns):
    by_events, by_host = times(machine, program, shift_ns=shift_ns)
    assert by_events - by_host == pytest.approx(shift_ns / 1e6, abs=10)


def test_a_slow_driver_is_slow_in_the_named_call_alone(machine, program):
    machine.machine.inject("slow", call="cuMemAlloc", delay_ns=50_000_000)
    machine.run(program("faults"), "a_slow_driver_is_slow_in_the_named_call_alone")


def test_a_call_that_does_not_return_returns_when_the_fault_is_lifted(machine, program):
    machine.machine.inject("hang", call="cuCtxSynchronize")
    process = machine.start(
        program("faults"), "a_call_that_does_not_return_returns_when_the_fault_is_lifted"
    )
    assert process.stdout.readline() == "waiting\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    machine.machine.lift()
    assert process.wait(timeout=20) == 0
