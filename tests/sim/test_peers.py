"""Kernels that wait for each other: collectives over devices and processes."""

from __future__ import annotations

import pytest

RULES = "meet=joins0,spin*=param0"
TIMEOUT_S = 60


@pytest.fixture
def ranks(two_devices, program, tmp_path):
    """Starts a case of `programs/peers.c` as a rank of several."""
    shared = tmp_path / "shared"
    shared.write_bytes(bytes(4096))

    def start(case: str, *, count: int = 2, device: int = 0, rounds: int = 1):
        return two_devices.start(
            program("peers"),
            case,
            PENSTOCK_SIM_KERNELS=RULES,
            CUDA_VISIBLE_DEVICES=str(device),
            SHARED=str(shared),
            RANKS=str(count),
            ROUNDS=str(rounds),
        )

    return start


def ended_well(process) -> str:
    output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, output + errors
    return output


@pytest.mark.parametrize("count", [2, 5, 8])
def test_ranks_of_processes_on_two_devices_meet_again_and_again(ranks, count):
    started = [
        ranks("rank_of_a_collective", count=count, device=rank % 2, rounds=10)
        for rank in range(count)
    ]
    for process in started:
        ended_well(process)


def test_waiting_for_a_killed_rank_takes_no_processor_time(ranks):
    waiter = ranks("rank_that_waits_for_one_that_does_not_come", count=3, device=0)
    killed = ranks("rank_that_waits_for_one_that_does_not_come", count=3, device=1)
    assert killed.stdout.readline() == "waiting\n"
    killed.kill()
    killed.wait()
    assert waiter.stdout.readline() == "waiting\n"
    assert float(waiter.stdout.readline()) < 80  # of 1000 ms
    assert waiter.poll() is None
    ended_well(ranks("rank_of_a_collective", count=3))  # the third comes: the word counts the dead
    ended_well(waiter)


def test_a_kernel_that_waits_uses_up_the_slices_of_its_process(ranks, two_devices, program):
    waiter = ranks("rank_that_waits_for_one_that_does_not_come")
    assert waiter.stdout.readline() == "waiting\n"
    case = (program("peers"), "kernel_of_some_milliseconds")
    assert float(two_devices.run(*case)) > 100  # every other slice
    assert float(two_devices.run(*case, CUDA_VISIBLE_DEVICES="1")) < 100
    waiter.kill()
    waiter.wait()
    assert float(two_devices.run(*case)) < 100


@pytest.mark.parametrize(
    "case",
    [
        "a_kernel_that_waits_leaves_the_rest_of_the_device_to_its_own_process",
        "a_word_of_device_memory_that_another_process_opened_counts_both",
        "a_kernel_without_a_word_fails",
    ],
)
def test_kernels_wait_by_words_of_memory(ranks, case):
    ended_well(ranks(case))


def test_kernels_of_two_devices_of_one_process_wait_for_each_other(two_devices, program):
    case = "kernels_of_two_devices_of_one_process_wait_for_each_other"
    two_devices.run(program("peers"), case, PENSTOCK_SIM_KERNELS=RULES)
