"""Tenants whose device memory is released and restored in the middle of their launches (ADR 53)."""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.bench.quota import Workload
from penstock.bench.stage import Stage, StageTenant

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timed
HELPER = Path(__file__).parents[1] / "sim" / "programs" / "core_checkpoint.py"
CHARGING = Path(__file__).parent / "support" / "charging.py"
HOLDER = CHARGING.with_name("holder.py")
ANSWER_S = 20
SUSPENDED_S = 1.5


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage("h200,2") as made:
        made.machine.shift_clock(10**12, device=1)  # clocks of devices have nothing in common
        yield made


class Helper:
    """The agent's part: it releases a tenant's memory in the order of ADR 53, and restores it."""

    def __init__(self, stage: Stage, tenant: StageTenant) -> None:
        self.stage, self.tenant = stage, tenant
        self.caller = stage.start(None, [str(HELPER)], program=sys.executable)

    def call(self, words: str) -> None:
        self.caller.stdin.write(words + "\n")
        self.caller.stdin.flush()
        assert select.select([self.caller.stdout], [], [], ANSWER_S)[0], words
        assert self.caller.stdout.readline().strip() == "done", words

    def release(self, pids: list[int]) -> None:
        self.tenant.change(suspended=True, released=True)
        for pid in pids:
            self.call(f"lock {pid} 10000")
        self.tenant.change(released_ns=time.monotonic_ns())
        for pid in pids:
            self.call(f"checkpoint {pid}")

    def restore(self, pids: list[int], *, elsewhere: bool) -> None:
        first, second = (
            device.uuid.removeprefix("GPU-") for device in self.stage.machine.devices()
        )
        pairs = f"{first}={second} {second}={first}" if elsewhere else ""
        for pid in pids:
            self.call(f"restore {pid} {pairs}")
        if elsewhere:
            self.tenant.swap_devices()
        for pid in pids:
            self.call(f"unlock {pid}")
        self.tenant.change(suspended=False, released=False)


def check_release(
    stage: Stage, tenant: StageTenant, helper: Helper, pids: list[int], *, elsewhere: bool
) -> None:
    """Releases the memory for some time, in which nothing may be used or charged."""
    helper.release(pids)
    used, spent = used_ns(stage), spent_ns(tenant)
    assert all(stage.machine.usage(device).memory_used_bytes < 2 << 30 for device in (0, 1))
    time.sleep(SUSPENDED_S)
    assert used_ns(stage) == used
    helper.restore(pids, elsewhere=elsewhere)
    stage.watch(0.3)
    more_used, more_spent = used_ns(stage) - used, spent_ns(tenant) - spent
    assert more_spent < more_used + 0.2 * SUSPENDED_S * 1e9, "the suspension was charged"


def used_ns(stage: Stage) -> int:
    return sum(stage.sample(device).busy_ns.get("tenant", 0) for device in (0, 1))


def spent_ns(tenant: StageTenant) -> int:
    return sum(device.spent_ns for device in tenant.usage.snapshot().devices)


WORKLOADS = [
    Workload(200),
    Workload(5000),
    Workload(200, sync_every=10),
    Workload(30_000, sync_every=1),
    Workload(500, launch="graph"),
]


def name(workload: Workload) -> str:
    return f"{workload.launch}-{workload.kernel_us}us-sync{workload.sync_every}"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in_place", "elsewhere"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=name)
def test_a_tenant_is_charged_for_what_it_used_and_not_for_its_suspension(
    stage: Stage, workload: Workload, *, elsewhere: bool
) -> None:
    tenant = stage.tenant("tenant", 50)
    helper = Helper(stage, tenant)
    programs = [stage.start(tenant, workload.arguments(30.0)) for _ in range(2)]
    pids = [program.pid for program in programs]
    stage.wait_until_busy(["tenant"])
    stage.watch(1)
    for _ in range(2):
        check_release(stage, tenant, helper, pids, elsewhere=elsewhere)
        began_ns, began_used, began_spent = time.monotonic_ns(), used_ns(stage), spent_ns(tenant)
        stage.watch(1.5)
        passed = time.monotonic_ns() - began_ns
        assert used_ns(stage) - began_used == pytest.approx(passed / 2, rel=0.1)
        assert spent_ns(tenant) - began_spent == pytest.approx(passed / 2, rel=0.1)
    assert spent_ns(tenant) == pytest.approx(used_ns(stage), rel=0.08)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in_place", "elsewhere"])
@pytest.mark.parametrize(
    "pattern",
    [
        "uneven_launches_waited_for_after_a_pause",
        "waits_long_after_the_work",
        "costs_that_alternate_under_one_key",
        "long_launches_in_ever_new_shapes",
    ],
)
def test_waits_and_events_on_both_sides_of_a_suspension_charge_nothing_of_it(
    stage: Stage, pattern: str, *, elsewhere: bool
) -> None:
    tenant = stage.tenant("tenant", 90)
    helper = Helper(stage, tenant)
    program = stage.start(tenant, [str(CHARGING), pattern], program=sys.executable)
    stage.wait_until_busy(["tenant"])
    stage.watch(1)
    before_used, before_spent = used_ns(stage), spent_ns(tenant)
    for _ in range(4):
        check_release(stage, tenant, helper, [program.pid], elsewhere=elsewhere)
        stage.watch(0.5)
    used, spent = used_ns(stage) - before_used, spent_ns(tenant) - before_spent
    assert spent == pytest.approx(used, rel=0.15, abs=60_000_000)


@pytest.mark.parametrize("kernel_us", [200, 20_000])
def test_launches_that_the_driver_holds_are_charged_when_they_run(
    stage: Stage, kernel_us: float
) -> None:
    """A lock that comes before the gate is shut finds launches inside the driver's calls."""
    tenant = stage.tenant("tenant", 90)
    helper = Helper(stage, tenant)
    program = stage.start(tenant, Workload(kernel_us, sync_every=1).arguments(30.0))
    stage.wait_until_busy(["tenant"])
    stage.watch(1)
    before_used, before_spent = used_ns(stage), spent_ns(tenant)
    for _ in range(4):
        helper.call(f"lock {program.pid} 10000")
        tenant.change(suspended=True, released=True, released_ns=time.monotonic_ns())
        helper.call(f"checkpoint {program.pid}")
        time.sleep(SUSPENDED_S / 2)
        helper.restore([program.pid], elsewhere=False)
        stage.watch(0.5)
    used, spent = used_ns(stage) - before_used, spent_ns(tenant) - before_spent
    # without the cap, three seconds more would be charged
    assert spent == pytest.approx(used, rel=0.25, abs=20_000_000)


def test_a_new_process_waits_until_the_memory_is_restored(stage: Stage) -> None:
    tenant = stage.tenant("tenant", 50)
    helper = Helper(stage, tenant)
    first = stage.start(tenant, Workload(200).arguments(30.0))
    stage.wait_until_busy(["tenant"])
    helper.release([first.pid])
    second = stage.start(tenant, Workload(200).arguments(1.0))
    time.sleep(0.5)
    assert second.poll() is None
    assert all(record.pid != second.pid for record in stage.machine.record(0))
    helper.restore([first.pid], elsewhere=True)
    assert stage.finish(second)["launches"] > 0
    assert {record.pid for record in stage.machine.record(1)} >= {first.pid, second.pid}


@pytest.mark.parametrize("state", ["locked", "checkpointed"])
def test_a_process_that_is_killed_while_released_is_not_charged_for_the_suspension(
    stage: Stage, state: str
) -> None:
    tenant = stage.tenant("tenant", 50)
    helper = Helper(stage, tenant)
    program = stage.start(tenant, Workload(5000).arguments(30.0))
    stage.wait_until_busy(["tenant"])
    stage.watch(1)
    if state == "checkpointed":
        helper.release([program.pid])
    else:
        tenant.change(suspended=True, released=True)
        helper.call(f"lock {program.pid} 10000")
        tenant.change(released_ns=time.monotonic_ns())
    time.sleep(SUSPENDED_S)
    stage.kill(program)
    tenant.usage.reap(tenant.directory / "quota")
    assert spent_ns(tenant) == pytest.approx(used_ns(stage), rel=0.08, abs=50_000_000)
    assert tenant.usage.snapshot().devices[0].total_bytes == 0
    assert stage.machine.usage(0).memory_used_bytes < 2 << 30


def test_a_release_that_lies_ahead_changes_no_charge(stage: Stage) -> None:
    """As on the page of a tenant that outlived a restart of the machine."""
    tenant = stage.tenant("tenant", 50)
    tenant.change(released_ns=time.monotonic_ns() + 10**15)
    stage.start(tenant, Workload(200).arguments(30.0))
    stage.wait_until_busy(["tenant"])
    stage.watch(1.5)
    assert spent_ns(tenant) == pytest.approx(used_ns(stage), rel=0.08)


def test_a_suspended_tenant_cannot_resume_itself(stage: Stage) -> None:
    tenant = stage.tenant("tenant", 50)
    helper = Helper(stage, tenant)
    first = stage.start(tenant, Workload(200).arguments(30.0))
    own = stage.start(tenant, [str(HELPER)], program=sys.executable)
    stage.wait_until_busy(["tenant"])
    helper.release([first.pid])
    for call in ("restore", "unlock", "checkpoint", "lock"):
        own.stdin.write(f"{call} {first.pid} {'100' if call == 'lock' else ''}\n")
        own.stdin.flush()
        assert "CUDA_ERROR_NOT_PERMITTED" in own.stdout.readline()
    own.stdin.write(f"state {first.pid}\n")
    own.stdin.flush()
    assert own.stdout.readline() == "checkpointed\n"
    helper.restore([first.pid], elsewhere=False)


def test_the_memory_quota_and_its_charges_move_with_the_tenant(stage: Stage) -> None:
    gib = 1 << 30
    tenant = stage.tenant("tenant", 50, memory_bytes=4 * gib)
    helper = Helper(stage, tenant)
    program = stage.start(tenant, [str(HOLDER)], program=sys.executable)

    def ask(words: str) -> str:
        program.stdin.write(words + "\n")
        program.stdin.flush()
        return program.stdout.readline().strip()

    assert program.stdout.readline() == "ready\n"
    assert ask(f"allocate {2 * gib}") == "CUDA_SUCCESS"
    info, charged = ask("info"), tenant.usage.snapshot().devices[0].total_bytes
    helper.release([program.pid])
    helper.restore([program.pid], elsewhere=True)
    assert "GPU-" + ask("uuid") == stage.machine.devices()[1].uuid
    assert ask("info") == info
    assert tenant.usage.snapshot().devices[0].total_bytes == charged
    assert tenant.usage.snapshot().devices[1].total_bytes == 0
    assert ask(f"allocate {2 * gib}") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert ask(f"allocate {gib}") == "CUDA_SUCCESS"
    assert tenant.usage.snapshot().devices[0].total_bytes == charged + gib
    assert stage.machine.usage(1).memory_used_bytes > 3 * gib
