"""How fast a tenant stops and comes back: by the gate, and by the driver's checkpoint."""

from __future__ import annotations

import contextlib
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from tests.gpu.budget import Check
from tests.gpu.children import FailedError
from tests.gpu.load import Load, Work, sleep_until, watch_closely
from tests.gpu.rows import NotHereError, Outcome

if TYPE_CHECKING:
    from tests.gpu.busy import BusyTime
    from tests.gpu.setting import Setting

KERNELS_US = (200, 2000, 20000)
IN_FLIGHT_MS = 20.0  # the gate's period: what it ever lets in ahead
CORES = 50.0
QUIET_NS, BACK_NS = 250_000_000, 250_000_000
HELD_BYTES, HELD_SIMULATED_BYTES = 4 << 30, 256 << 20  # the latter takes the host's memory
STEP_NS = 100_000
CLOSE_NS = 40_000_000  # a period and its neighbour
STEPS = ("lock", "checkpoint", "restore", "unlock")


def checks() -> list[Check]:
    """Gate, then checkpoint."""
    gates = [
        Check("suspend", f"gate, kernels of {us} us", partial(_gate, us), 5, 60)
        for us in KERNELS_US
    ]
    return [*gates, Check("suspend", "driver checkpoint and restore", _checkpoint, 8, 90)]


def _gate(kernel_us: float, setting: Setting) -> Outcome:
    with contextlib.closing(setting.arena.tenant(CORES)) as tenant:
        start = partial(setting.arena.inside, tenant)
        times = []
        with Load(setting, {tenant.name: (Work(kernel_us=kernel_us), start)}) as load:
            for _ in range(setting.few(5, 2)):
                sleep_until(time.monotonic_ns() + BACK_NS, load)
                stopped_ns = tenant.change(suspended=True)
                sleep_until(stopped_ns, load)
                sleep_until(stopped_ns + QUIET_NS, load)
                resumed_ns = tenant.change(suspended=False)
                watch_closely(CLOSE_NS, load)
                times.append((stopped_ns, resumed_ns))
            sleep_until(time.monotonic_ns() + BACK_NS, load)
            busy = load.finish()[tenant.name]
    return judge_gate(kernel_us, busy, times)


def judge_gate(kernel_us: float, busy: BusyTime, times_ns: list[tuple[int, int]]) -> Outcome:
    """Device time after each suspension, and how soon there was some after the resume.

    Args:
        kernel_us: the longest launch.
        busy: the truth.
        times_ns: of each suspension and its resume.

    Raises:
        FailedError: the device did not work for the tenant again.
    """
    after_ms, back_ms = [], []
    for stopped_ns, resumed_ns in times_ns:
        still = busy.until(resumed_ns)
        after_ms.append((still - busy.until(stopped_ns)) / 1e6)
        at = resumed_ns
        while busy.until(at) <= still:
            at += STEP_NS
            if at > resumed_ns + 1_000_000_000:
                raise FailedError("the device did no work within a second of the resume")
        back_ms.append((at - resumed_ns) / 1e6)
    bound_ms = IN_FLIGHT_MS + kernel_us / 1e3
    return Outcome(
        f"device time after the flag: median {statistics.median(after_ms):.2f} ms, worst "
        f"{max(after_ms):.2f}; back after {statistics.median(back_ms):.1f} ms; "
        f"{len(times_ns)} rounds",
        figures={"busy_after_worst_ms": max(after_ms), "back_ms": statistics.median(back_ms)},
        aim=f"<= {bound_ms:g} ms (in flight + the longest launch)",
        reached=max(after_ms) <= bound_ms,
    )


def _checkpoint(setting: Setting) -> Outcome:
    """A process with memory of its own goes off the device and comes back with its contents."""
    arena = setting.arena
    size = HELD_SIMULATED_BYTES if arena.simulated else setting.memory_bytes(HELD_BYTES)
    with setting.child(arena.native(setting.own_script("hold.py", size))) as child:
        child.wait_for_line("ready", setting.left_s(40))
        told = setting.native(setting.own_script("checkpoint.py", child.process.pid))
        if "missing" in told:
            raise NotHereError(f"this driver has no checkpoints: {told['missing']}")
        child.terminate()
        kept = child.finish(setting.left_s(30)).result()
    size = kept["bytes"]
    if kept["changed_before"]:
        raise FailedError(f"{kept['changed_before']} of {kept['looks']} looks found another "
                          "pattern before the checkpoint: nothing can be said of it")  # fmt: skip
    if kept["changed"]:
        raise FailedError(
            f"the memory came back with other contents: {kept['changed']} of {kept['looks']} looks"
        )
    words = ", ".join(f"{step} {told[f'{step}_ms']:.1f} ms" for step in STEPS)
    figures = {f"{step}_ms": told[f"{step}_ms"] for step in STEPS}
    if arena.simulated:  # its checkpoints move nothing: a rate would be one of nothing
        speed = "the simulated driver takes no time for them"
        figures = {}
    else:
        rates = {step: size / told[f"{step}_ms"] / 1e6 for step in ("checkpoint", "restore")}
        figures |= {f"{step}_gb_per_s": rate for step, rate in rates.items()}
        speed = " and ".join(f"{rate:.1f}" for rate in rates.values()) + " GB/s"
    return Outcome(
        f"{size >> 20} MiB, {kept['looks']} looks the same: {words} ({speed})",
        figures=figures,
        aim="contents as before",
        reached=True,
    )
