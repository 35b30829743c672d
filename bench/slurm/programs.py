"""The programs of the comparison, and what they tell of themselves while they run."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_shim import paths

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
KERNEL_US = 2000
ENDLESS = 10_000_000  # steps; they are ended
FIRST_LAUNCH_WITHIN_S = 60
FIELDS = ["began_ns", "held_ns", "first_ns", "latest_ns", "steps", "held_bytes", "longest_stop_ns"]


@dataclass(frozen=True)
class Progress:
    """What a program told last; times are of CLOCK_MONOTONIC, 0: not yet."""

    began_ns: int = 0
    held_ns: int = 0
    first_ns: int = 0
    latest_ns: int = 0
    steps: int = 0
    held_bytes: int = 0
    longest_stop_ns: int = 0


@dataclass(frozen=True)
class Program:
    """A run of penstock-steps that holds device memory."""

    folder: Path
    name: str
    hold_bytes: int
    steps: int = ENDLESS

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.progress"

    @property
    def output(self) -> Path:
        return self.folder / f"{self.name}.out"

    def command(self) -> list[str]:
        """Its command line."""
        words = ["--steps", str(self.steps), "--kernel-us", str(KERNEL_US), "--launches", "4"]
        words += ["--hold", str(self.hold_bytes), "--progress", str(self.file)]
        return [str(paths.workload_path("penstock-steps")), *words]

    def script(self, environment: dict[str, str]) -> Path:
        """A shell script that runs it with `environment`, for a batch system."""
        path = self.folder / f"{self.name}.sh"
        lines = [f"export {name}='{value}'" for name, value in environment.items()]
        path.write_text("\n".join(
            ["#!/bin/sh", *lines, f"exec {' '.join(self.command())} >{self.output} 2>&1", ""]
        ))  # fmt: skip
        path.chmod(0o755)
        return path

    def progress(self) -> Progress:
        """The events that it has reported so far."""
        try:
            raw = self.file.read_bytes()
        except FileNotFoundError:
            return Progress()
        if len(raw) < 8 * len(FIELDS):
            return Progress()
        return Progress(*struct.unpack(f"{len(FIELDS)}Q", raw))

    def await_first_launch(self, within_s: float = FIRST_LAUNCH_WITHIN_S) -> Progress | None:
        """Its progress once its first kernel has ended; None: it failed, or took too long."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            told = self.progress()
            if told.first_ns:
                return told
            if self.failure():
                return None
            time.sleep(0.002)
        return None

    def failure(self) -> str:
        """Its error message; empty: there is none."""
        try:
            text = self.output.read_text()
        except FileNotFoundError:
            return ""
        return text.strip() if "penstock-steps:" in text else ""
