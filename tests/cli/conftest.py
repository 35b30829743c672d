"""The real command line in real processes, each test with a state directory of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TIMEOUT_S = 60


@dataclass
class Penstock:
    """Runs `python -m penstock` and remembers what it started."""

    state: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "CUDA_"))}
        return {**kept, "PENSTOCK_STATE_DIR": str(self.state)}

    def __call__(self, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
        """Runs to the end, output captured."""
        environment = {**self.environment, **options.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-m", "penstock", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            **options,
        )

    def run(self, *arguments: str, memory="8Gi", cores="30", **options):
        """`penstock run` on a simulated H200."""
        return self(*self.run_arguments(arguments, memory, cores), **options)

    def start(self, *arguments: str, memory="8Gi", cores="30", **options) -> subprocess.Popen[str]:
        """`penstock run` in the background; its command should say "ready" on its output."""
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *self.run_arguments(arguments, memory, cores)],
            env={**self.environment, **options.pop("env", {})},
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=options.pop("stderr", None),
            text=True,
            **options,
        )
        self.started.append(process)
        return process

    @staticmethod
    def run_arguments(arguments, memory, cores) -> list[str]:
        limits = [f"--memory={memory}", f"--cores={cores}"] if memory else []
        return ["run", "-q", "--simulate", "h200", *limits, *arguments]

    def tenants(self) -> list[str]:
        """Names of the tenant directories, without asking Penstock."""
        folder = self.state / "tenants"
        return sorted(d.name for d in folder.iterdir()) if folder.exists() else []

    def ps(self) -> list[dict]:
        return json.loads(self("ps", "-o", "json").stdout)


@pytest.fixture
def penstock(tmp_path):
    harness = Penstock(tmp_path / "state")
    yield harness
    for process in harness.started:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    end_members(harness.state)


def end_members(state: Path) -> None:
    """Ends the remaining processes of the test's tenants, which it finds by their environment."""
    mark = f"PENSTOCK_TENANT_DIR={state}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)


def wait_until(condition, timeout_s=40.0):
    """The first true value of `condition`; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def hold(penstock, *options: str) -> Path:
    """Starts a tenant called t, which lives until the test's end; its directory."""
    process = penstock.start("--name=t", *options, "--", "sh", "-c", "echo ready; exec sleep 1000")
    assert process.stdout.readline() == "ready\n"
    return penstock.state / "tenants" / "t"
