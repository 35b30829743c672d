"""Quotas of memory against what the device itself says is used."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pynvml
from tests.gpu import children
from tests.gpu.budget import Check
from tests.gpu.children import FailedError
from tests.gpu.preflight import needs_sharing
from tests.gpu.rows import FailsNativelyError, NotHereError, Outcome
from tests.gpu.sections.compatibility import has_module, usable

from penstock_shim.pages import UsagePage, read_usage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gpu.setting import Setting

QUOTA_BYTES = 4 << 30
GRANULE_BYTES = 2 << 20  # what the driver takes at a time
RACERS = 8
SEEN_S = 10.0


def checks() -> list[Check]:
    """The limit first; what things cost in memory last."""
    return [
        Check("memory", "one process takes all it can", _limit, 5, 60),
        Check("memory", "racing processes, then kill -9", _race, 8, 60, needs_sharing),
        Check("memory", "out of memory is PyTorch's own", _torch_oom, 10, 90, has_module("torch")),
        Check("memory", "context, module, streams", _footprint, 4, 60),
    ]


def device_bytes(setting: Setting) -> int:
    """Memory in use on the device, by its driver; what others use there stays meanwhile.

    A real one's whole: in a pid namespace its driver does not say whose it is.
    """
    if not setting.arena.simulated:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(setting.arena.device.uuid)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    processes = setting.arena.source.processes(setting.arena.device)
    return sum(process.memory_bytes or 0 for process in processes if process.alive)


def _limit(setting: Setting) -> Outcome:
    arena = setting.arena
    argv = setting.own_script("fill.py", GRANULE_BYTES)
    before = device_bytes(setting)
    quota = setting.memory_bytes(QUOTA_BYTES)
    command = arena.shimmed(argv, name="fill", memory=f"{quota >> 20}Mi")
    with setting.child(command) as child:
        child.wait_for_line("full", setting.left_s(40))
        seen = device_bytes(setting) - before
        child.terminate()
        told = child.finish(setting.left_s(10)).result()
    reserve = arena.device.context_bytes
    over = seen - quota
    return Outcome(
        f"took {told['taken_bytes'] >> 20} MiB of a quota of {quota >> 20} before it was "
        f"refused; the device says {seen >> 20} MiB with the context (reserved for it: "
        f"{reserve >> 20} MiB)",
        figures={
            "over_quota_bytes": over,
            "taken_bytes": told["taken_bytes"],
            "device_bytes": seen,
        },
        aim="at most the quota, all but 2 MiB of it usable",
        reached=seen > 0
        and over <= 0
        and told["total_bytes"] == quota
        and told["free_after"] < 2 * GRANULE_BYTES,
        is_fault=over > 0 or told["total_bytes"] != quota,
        details=told,
    )


def _race(setting: Setting) -> Outcome:
    arena = setting.arena
    seconds = setting.few(4, 1)
    argv = setting.workload("churn", seconds + 60, 256 << 20)
    before = device_bytes(setting)
    peak = 0
    # Not charged, so that no racer is kept out by it; what each takes here, not an estimate.
    each = _context_bytes(setting.native(setting.own_script("footprint.py"))["stages"])
    contexts = RACERS * each
    if contexts + setting.memory_bytes(QUOTA_BYTES) > setting.device.free_bytes + each:
        raise NotHereError(
            f"memory for {RACERS} contexts of {each >> 20} MiB: "
            f"{setting.device.free_bytes >> 20} MiB are free"
        )
    limit = setting.memory_bytes(QUOTA_BYTES)
    with (
        contextlib.closing(arena.tenant(100, memory_bytes=limit, name="race")) as tenant,
        contextlib.ExitStack() as stack,
    ):
        racers = [
            stack.enter_context(setting.child(arena.inside(tenant, [*argv, str(seed)])))
            for seed in range(1, RACERS + 1)
        ]
        end = time.monotonic() + seconds + 1
        while time.monotonic() < end:
            peak = max(peak, device_bytes(setting) - before - contexts)
            for racer in racers:
                if racer.process.poll() is not None:
                    done = racer.finish(1)
                    raise FailedError(f"a racer ended with {done.code}: {children.tail(done.err)}")
            time.sleep(0.02)
        for racer in racers:
            racer.kill()
        left = _left_after(tenant.directory, setting)
        told = read_usage(tenant.directory / "usage").devices[0]
        ledger, refused = told.peak_bytes, told.refusals
    return Outcome(
        f"{RACERS} processes, {refused} refusals: ledger's peak {ledger - limit:+,} bytes to the "
        f"limit, the device's {peak - limit:+,} (their contexts, "
        f"{contexts >> 20} MiB, not counted); {left} bytes charged after kill -9",
        figures={"ledger_over_bytes": ledger - limit, "device_over_bytes": peak - limit,
                 "left_bytes": left},
        aim="never over, by either; zero afterwards",
        reached=ledger <= limit and peak <= limit and left == 0 and refused > 0,
        is_fault=ledger > limit or peak > limit or left != 0,
    )  # fmt: skip


def _left_after(folder: Path, setting: Setting) -> int:
    """Bytes that stay charged once the killed processes were collected."""
    give_up = time.monotonic() + setting.left_s(SEEN_S)
    while True:
        with UsagePage.open(folder / "usage") as usage:
            usage.reap(folder / "quota")
        left = int(read_usage(folder / "usage").devices[0].total_bytes)
        if not left or time.monotonic() > give_up:
            return left
        time.sleep(0.05)


def _torch_oom(setting: Setting) -> Outcome:
    usable("torch", setting)
    quota = setting.memory_bytes(QUOTA_BYTES)
    argv = setting.script("torch", "torch_small.py", "oom")
    try:
        told = setting.shimmed(argv, memory=f"{quota >> 20}Mi")
    except FailedError as error:
        try:  # whose fault is it?
            setting.native(setting.script("torch", "torch_small.py", "eager"))
        except FailedError as native:
            raise FailsNativelyError(f"without the shim: {native}") from error
        raise
    taken = told["blocks"] * (256 << 20)
    return Outcome(
        f"OutOfMemoryError after {told['blocks']} x 256 MiB under {quota >> 20} MiB, and goes on "
        f"afterwards: {told['words']}",
        figures={"taken_bytes": taken},
        aim="torch.cuda.OutOfMemoryError, and total memory is the quota",
        reached=told["total_bytes"] == quota
        and quota // 4 <= taken <= quota
        and told["value"] == 3.0 * (1 << 20),
        is_fault=taken > quota or told["total_bytes"] != quota,
        details=told,
    )


def _context_bytes(stages: dict[str, int]) -> int:
    """Memory that a process takes without an allocation; modules are charged apart from it."""
    return stages["context"] + stages["first launch"]


def _footprint(setting: Setting) -> Outcome:
    told = setting.native(setting.own_script("footprint.py"))
    stages = told["stages"]
    reserve = setting.arena.device.context_bytes
    takes = _context_bytes(stages)
    words = ", ".join(f"{stage} {size / 2**20:.1f} MiB" for stage, size in stages.items())
    return Outcome(
        f"{words}; reserved for a context: {reserve >> 20} MiB",
        figures={"profile.context_mib": takes / 2**20, "reserve_short_bytes": takes - reserve},
        aim="the reserve covers context and first launch",
        reached=takes <= reserve,
        details=told,
    )
