"""Programs that keep the device busy, and the truth about how busy each tenant kept it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.gpu.busy import BusyTime, Recorder, Segment, read_trace
from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.gpu.children import Child, Command
    from tests.gpu.setting import Setting

READY_S = 30.0
END_S = 30.0
LONGEST_S = 600
CLOSE_STEP_S = 0.0005


@dataclass(frozen=True)
class Work:
    """The work of each process of a tenant."""

    kernel: str = "spin"  # or sweep (bound by memory), multiply (by arithmetic)
    kernel_us: float = 200  # of a spin; a graph: of all its nodes together
    nodes: int = 0  # of a graph; 0: plain launches
    processes: int = 1
    threads: int = 1  # of each process, on one stream
    sync_every: int = 0  # launches between two waits; 0: backlogged
    jitter_percent: float = 5
    blocks: bool = False  # each launch call returns when its kernel is done

    @property
    def launch(self) -> str:
        """The manner of launch, in a word or two."""
        if self.blocks:
            return "blocking"
        return "graph" if self.nodes else "waited for" if self.sync_every else "plain"

    def argv(self, setting: Setting, out: Path) -> list[str]:
        """The command line of one process."""
        words = ["--kernel", self.kernel, "--sync-every", self.sync_every, "--out", out]
        words += ["--kernel-us", self.kernel_us / max(1, self.nodes), "--seconds", LONGEST_S]
        words += ["--jitter", self.jitter_percent] if self.kernel == "spin" else []
        words += ["--graph", self.nodes] if self.nodes else []
        words += ["--threads", self.threads] if self.threads > 1 else []
        blocking = ["env", "CUDA_LAUNCH_BLOCKING=1"] if self.blocks else []
        return [*blocking, *setting.workload("traced", *words)]

    def __str__(self) -> str:
        kind = f"{self.kernel_us:g} us" if self.kernel == "spin" else self.kernel
        threads = f", {self.threads} threads on a stream" if self.threads > 1 else ""
        return (
            f"{kind} {self.launch}"
            + (f" x{self.processes}" if self.processes > 1 else "")
            + threads
        )


class Load:
    """Running programs of several tenants. Use as a context manager.

    Entered once all of them are at work; `finish` ends them and knows who did what.
    """

    def __init__(
        self, setting: Setting, tenants: dict[str, tuple[Work, Callable[[list[str]], Command]]]
    ) -> None:
        """`tenants`: by the tag in a simulated device's record: its work, and how to start it."""
        self._setting = setting
        self._tenants = tenants
        self._stack = contextlib.ExitStack()
        self._running: list[tuple[str, Child, Path]] = []
        self.recorder: Recorder | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            setting = self._setting
            if setting.arena.machine is not None:
                self.recorder = stack.enter_context(Recorder(setting.arena.machine))
            number = 0
            for tag, (work, start) in self._tenants.items():
                for _ in range(work.processes):
                    number += 1
                    out = setting.arena.folder / f"trace-{number}"
                    child = stack.enter_context(setting.child(start(work.argv(setting, out))))
                    self._running.append((tag, child, out))
            for _, child, _ in self._running:
                child.wait_for_line("ready", setting.left_s(READY_S))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def finish(self) -> dict[str, BusyTime]:
        """Ends all programs; the tenants' busy time.

        Raises:
            FailedError, HungError: a program did not end well, or the device wrote no trace.
        """
        if self.recorder is not None:
            self.recorder.look()
        segments = self._finish_programs()
        if self.recorder is not None:
            return {tag: self.recorder.busy_time(tag) for tag in self._tenants}
        return {tag: BusyTime.of_segments(segments[tag]) for tag in self._tenants}

    def segments(self) -> dict[str, list[Segment]]:
        """The same, each kernel's stretches by themselves. On real devices only."""
        return self._finish_programs()

    def _finish_programs(self) -> dict[str, list[Segment]]:
        for _, child, _ in self._running:
            child.terminate()
        found: dict[str, list[Segment]] = {tag: [] for tag in self._tenants}
        for tag, child, out in self._running:
            told = child.finish(self._setting.left_s(END_S)).result()
            if self.recorder is None:
                found[tag] += read_trace(out, told)
            out.unlink(missing_ok=True)
        self._running = []
        return found


def sleep_until(at_ns: int, load: Load) -> None:
    """Sleeps; a simulated device's record has a sample of that moment."""
    time.sleep(max(0.0, (at_ns - time.monotonic_ns()) / 1e9))
    if load.recorder is not None:
        load.recorder.look()


def watch_closely(length_ns: int, load: Load) -> None:
    """Waits; a simulated device's record has many samples of that time. Traces need none."""
    end_ns = time.monotonic_ns() + length_ns
    while time.monotonic_ns() < end_ns:
        if load.recorder is not None:
            load.recorder.look()
        time.sleep(CLOSE_STEP_S)
