"""Work that waits for other work never hangs because the gate holds a launch back."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from tests.gate.support.programs import cases, output_of, until

from penstock.bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

LOOKED_AT = [case for case in cases("waits") if "is_destroyed_while" in case]


@pytest.mark.parametrize("case", [case for case in cases("waits") if case not in LOOKED_AT])
def test_a_pattern_ends_in_time_under_a_small_quota(
    program: Callable[[str], str], case: str
) -> None:
    with Stage("h200,2") as stage:
        output_of(stage.start(stage.tenant("tenant", 20), [case], program=program("waits")))


@pytest.mark.parametrize("case", LOOKED_AT)
def test_objects_destroyed_under_a_waiting_launch_leave_nothing_in_flight(
    program: Callable[[str], str], case: str
) -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 20)
        child = stage.start(tenant, [case], program=program("waits"))
        assert child.stdout
        assert child.stdin
        assert child.stdout.readline() == "launching\n"
        until(lambda: tenant.usage.snapshot().devices[0].closed)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "idle\n"
        assert [slot.estimate_ns[0] for slot in tenant.usage.snapshot().slots] == [0]
        output_of(child)


@pytest.mark.parametrize(
    ("case", "seed"),
    [
        *(("threads_do_what_they_like_with_shared_streams", seed) for seed in range(4)),
        ("threads_end_with_work_on_their_default_streams", 0),
    ],
)
@pytest.mark.parametrize("cores", [20, 100])
def test_work_of_threads_leaves_nothing_in_flight_once_it_was_waited_for(
    program: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    cores: float,
    case: str,
    seed: int,
) -> None:
    monkeypatch.setenv("SEED", str(seed))
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", cores)
        child = stage.start(tenant, [case], program=program("mixture"))
        assert child.stdout
        assert child.stdout.readline() == "idle\n"
        assert [slot.estimate_ns[0] for slot in tenant.usage.snapshot().slots] == [0]
        output_of(child)


def test_a_waiting_program_goes_on_when_its_tenant_is_resumed(
    program: Callable[[str], str],
) -> None:
    case = "a_kernel_waits_for_a_flag_that_a_later_launch_sets"
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 20)
        child = stage.start(tenant, [case], program=program("waits"))
        stage.wait_until_busy(["tenant"])
        tenant.change(suspended=True)
        stage.watch(0.5)
        assert child.poll() is None
        tenant.change(suspended=False)
        output_of(child)


@pytest.mark.parametrize("what", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_goes_on_beside_one_that_was_stopped_with_work_in_flight(
    program: Callable[[str], str], what: signal.Signals
) -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 20)
        peer = stage.start(tenant, ["work_that_nobody_settles"], program=program("graphs"))
        assert peer.stdout
        assert peer.stdout.readline() == "done\n"
        os.waitpid(peer.pid, os.WUNTRACED)  # it has stopped itself
        assert any(slot.estimate_ns[0] for slot in tenant.usage.snapshot().slots)
        if what == signal.SIGKILL:
            stage.kill(peer)
        output_of(stage.start(tenant, ["some_launches"], program=program("graphs")))
        if what == signal.SIGSTOP:
            os.kill(peer.pid, signal.SIGCONT)
            output_of(peer)
