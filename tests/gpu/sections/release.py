"""Release of a tenant's device memory, as the agent does it, of processes that have the shim."""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pynvml
from tests.gpu.budget import Check
from tests.gpu.children import FailedError
from tests.gpu.preflight import needs_sharing
from tests.gpu.rows import NotHereError, Outcome
from tests.gpu.sections.memory import device_bytes

from penstock.node.checkpoint.driver_helper import DriverHelper, RefusedError, helper_environment
from penstock.node.checkpoint.process_memory import ProcessMemory, Took
from penstock.node.enforcement.process import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.children import Child
    from tests.gpu.setting import Setting

    from penstock.bench.stage import StageTenant
    from penstock.node.enforcement.process import Process

PROCESSES = 2
HELD_BYTES, HELD_SIMULATED_BYTES = 8 << 30, 256 << 20  # of all processes together
ROOM_BYTES = 256 << 20  # of the quota, beside what they hold
PCIE_GB_PER_S = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # of a lane, by generation
PCIE_AIM = 0.8
UNPACKED_S = 60


def checks() -> list[Check]:
    """The round trip first, then what the driver refuses."""
    name = f"release of a tenant of {PROCESSES} processes"
    return [
        Check("suspend", name, _round_trip, 15, 120, needs_sharing),
        Check("suspend", "release of managed memory", _managed, 8, 90),
    ]


@dataclass(frozen=True)
class _Stage:
    """A tenant whose programs hold memory, and the agent's means to release it."""

    tenant: StageTenant
    children: list[Child]
    processes: list[Process]
    memory: ProcessMemory
    took: Took

    def release(self) -> None:
        self.tenant.change(suspended=True, released=True)
        self.memory.release(lambda: self.processes, self._note_idle, self.took)

    def _note_idle(self) -> None:
        self.tenant.change(released_ns=time.monotonic_ns())

    def restore(self) -> None:
        self.memory.restore(self.processes, lambda _: {}, self.took)
        self.memory.unlock(self.processes, self.took)
        self.tenant.change(suspended=False, released=False)


@contextlib.contextmanager
def _stage(setting: Setting, processes: int, each: int, *words: str) -> Iterator[_Stage]:
    arena = setting.arena
    quota = processes * each + ROOM_BYTES
    argv = setting.own_script("hold.py", each, *words)
    helper = DriverHelper(functools.partial(helper_environment, arena.source))
    with (
        contextlib.closing(arena.tenant(100, memory_bytes=quota, name="release")) as tenant,
        contextlib.closing(helper),
        contextlib.ExitStack() as stack,
    ):
        children = [
            stack.enter_context(setting.child(arena.inside(tenant, argv))) for _ in range(processes)
        ]
        for child in children:
            child.wait_for_line("ready", setting.left_s(UNPACKED_S))
        found = [find(child.process.pid) for child in children]
        yield _Stage(tenant, children, [one for one in found if one], ProcessMemory(helper), Took())


def _results(setting: Setting, stage: _Stage) -> list[dict[str, int]]:
    """What the programs say in the end. Raises `FailedError` if contents have changed."""
    told = []
    for child in stage.children:
        child.terminate()
        told.append(child.finish(setting.left_s(UNPACKED_S)).result())
    for one in told:
        if one["changed_before"] or one["changed"]:
            raise FailedError(
                f"the memory has other contents than were written: {one['changed_before']} looks "
                f"before the release, {one['changed']} of {one['looks']} after the restore"
            )
    return told


def _each(setting: Setting, processes: int) -> int:
    if setting.arena.simulated:
        return HELD_SIMULATED_BYTES // processes
    return setting.memory_bytes(HELD_BYTES) // processes


def _round_trip(setting: Setting) -> Outcome:
    with _stage(setting, PROCESSES, _each(setting, PROCESSES), "fill") as stage:
        before = device_bytes(setting)
        try:
            stage.release()
        except RefusedError as error:
            raise NotHereError(f"the driver releases no memory: {error}") from error
        left = device_bytes(setting)
        stage.restore()
        told = _results(setting, stage)
    held = sum(one["bytes"] for one in told)
    seconds = stage.took.seconds
    rates = {step: held / seconds[step] / 1e9 for step in ("checkpoint", "restore")}
    most = _pcie_gb_per_s(setting)
    # They end one after the other, so that each finds the memory of those before it free as well.
    over = max(one["taken_bytes"] - ROOM_BYTES - at * one["bytes"] for at, one in enumerate(told))
    figures = {f"{step}_ms": took * 1000 for step, took in seconds.items()}
    figures |= {"freed_bytes": before - left, "over_quota_bytes": over}
    against = ""
    if most:
        part = min(rates.values()) / most
        figures |= {f"{step}_gb_per_s": rate for step, rate in rates.items()}
        figures["of_pcie"] = part
        against = f", {part:.0%} of PCIe's {most:.0f} GB/s"
    is_freed = before - left >= held
    return Outcome(
        f"{held >> 20} MiB: contents the same, {before - left >> 20} MiB off the device; "
        + ", ".join(f"{step} {took * 1000:.1f} ms" for step, took in seconds.items())
        + f"{against}; {over:+,} bytes over the quota afterwards",
        figures=figures,
        aim=f"all memory off, contents the same, limits kept, {PCIE_AIM:.0%} of PCIe",
        reached=is_freed and over <= 0 and figures.get("of_pcie", 1.0) >= PCIE_AIM,
        is_fault=over > 0 or not is_freed,
    )


def _pcie_gb_per_s(setting: Setting) -> float | None:
    """What the device's PCIe link can carry in one direction; None if that is not known."""
    if setting.arena.simulated:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(setting.arena.device.uuid)
        generation = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        width = pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    except pynvml.NVMLError:
        return None
    lane = PCIE_GB_PER_S.get(generation)
    return lane * width if lane else None


def _managed(setting: Setting) -> Outcome:
    """A driver may refuse managed memory or not; the contents must be the same either way."""
    with _stage(setting, 1, _each(setting, 1) // 2, "managed") as stage:
        try:
            stage.release()
            said = "the driver releases it"
        except RefusedError as error:
            said = f"the driver refuses: {error.why}"
        stage.restore()
        _results(setting, stage)
    return Outcome(said, aim="contents the same, and the process goes on", reached=True)
