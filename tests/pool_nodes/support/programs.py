"""Programs on the nodes: each computes on data in device memory, and tells its progress."""

from __future__ import annotations

import json
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock_shim import paths

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.pool_nodes.support.pool import Pool

KERNEL_US = 1000


class Progress(NamedTuple):
    """What `penstock-steps` writes; times are of CLOCK_MONOTONIC, 0: not yet."""

    began_ns: int
    held_ns: int
    first_ns: int
    latest_ns: int
    steps: int
    held_bytes: int
    longest_stop_ns: int


@dataclass
class Program:
    """An application of the pool that runs `penstock-steps`."""

    pool: Pool
    node: str
    name: str
    blocks: int
    steps: int
    priority: int = 1
    seed: int = 1
    hold: str = "all"
    launches: int = 1  # in each step
    process: subprocess.Popen[str] | None = None

    @property
    def file(self) -> Path:
        return self.pool.folder / f"{self.name}.progress"

    def start(self) -> Program:
        """Claims its blocks and starts it."""
        self.file.unlink(missing_ok=True)
        words = (f"--tflops={self.blocks}", f"--priority={self.priority}", f"--name={self.name}")
        command = [str(paths.workload_path("penstock-steps")), "--steps", str(self.steps),
                   "--kernel-us", str(KERNEL_US), "--seed", str(self.seed),
                   "--launches", str(self.launches),
                   "--progress", str(self.file)]  # fmt: skip
        hold = ["--hold", self.hold] if self.hold else []
        self.process = self.pool.start_on(self.node, *words, "--wait=2m", "--", *command, *hold)
        return self

    def progress(self) -> Progress | None:
        """What it told last; nothing before it has begun."""
        try:
            return Progress(*struct.unpack("7Q", self.file.read_bytes()))
        except (FileNotFoundError, struct.error):
            return None

    def wait_for_steps(self, steps: int, timeout_s: float = 60) -> Progress:
        """Waits until it has done so many steps."""
        until = time.monotonic() + timeout_s
        while (told := self.progress()) is None or told.steps < steps:
            if self.process.poll() not in {None, 0}:
                raise AssertionError(f"{self.name}: {self.process.stderr.read()}")
            assert time.monotonic() < until, f"{self.name} has not done {steps} steps: {told}"
            time.sleep(0.005)
        return told

    def result(self, timeout_s: float = 120) -> dict:
        """What it computed, once it has ended."""
        output, errors = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, f"{self.name}: {self.process.returncode} {errors}"
        return json.loads(output)
