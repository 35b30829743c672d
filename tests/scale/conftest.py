"""`penstock scale` in real processes on the simulated GPU.

Each test has its own state directory.
"""

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

WORKER = Path(__file__).with_name("worker.py")
PATIENCE_S = 30.0  # of waits: the machine may be loaded
POLICY = """\
apiVersion: penstock.io/v1alpha1
kind: QuotaPolicy
metadata: {{name: web}}
spec:
  limits: {{memory: 8Gi, cores: {cores}}}
  scale:
    min: {least}
    max: {most}
    metrics: {{{metrics}}}
    stabilization: {stabilization}
"""


def wait_until(condition, what="it", timeout_s=PATIENCE_S):
    """The first true value of `condition`; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass
class Bench:
    """A policy, a control file for its replicas, and the scalers that were started."""

    folder: Path
    simulate: tuple[str, ...] = ("--simulate=h200",)  # nothing: the devices are an agent's
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "CUDA_"))}
        return {
            **kept,
            "PENSTOCK_STATE_DIR": str(self.state),
            "PENSTOCK_SIM_KERNELS": "spin=param0",
        }

    def policy(self, least=1, most=4, metrics="cpu: {up: 80, down: 25}", **other) -> Path:
        file = self.folder / "policy.yaml"
        values = {"cores": 10, "stabilization": "4s", **other}
        file.write_text(POLICY.format(least=least, most=most, metrics=metrics, **values))
        return file

    def orders(self, **orders) -> None:
        aside = self.folder / "aside.json"
        aside.write_text(json.dumps(orders))
        aside.replace(self.folder / "control.json")

    def command(self) -> list[str]:
        files = [str(self.folder / "control.json"), str(self.folder / "log")]
        return [sys.executable, str(WORKER), *files]

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def scale(self, *options: str, command=None) -> subprocess.Popen[bytes]:
        """Starts a scaler in the background; its output is in `said`."""
        arguments = ["scale", str(self.folder / "policy.yaml"), *self.simulate, *options]
        with (self.folder / "said").open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock", *arguments, "--", *(command or self.command())],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    @property
    def said(self) -> list[str]:
        return (self.folder / "said").read_text().splitlines()

    @property
    def log(self) -> list[tuple[int, int, str]]:
        """The log of the replicas: number, pid, word."""
        file = self.folder / "log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(a), int(b), c) for a, b, c in (line.split() for line in lines)]

    def running(self) -> dict[int, int]:
        """Pid of the newest process of each replica that runs, by number."""
        newest = {number: pid for number, pid, word in self.log if word == "start"}
        return {number: pid for number, pid in newest.items() if alive(pid)}

    def tenants(self) -> set[str]:
        folder = self.state / "tenants"
        found = folder.iterdir() if folder.exists() else ()
        return {path.name for path in found if not path.name.startswith(".")}

    def wait_for(self, count: int) -> dict[int, int]:
        """Returns when exactly the replicas 1 to `count` run."""
        wanted = set(range(1, count + 1))
        wait_until(
            lambda: set(self.running()) == wanted and len(self.tenants()) == count,
            f"{count} replicas",
        )
        return self.running()

    def counts(self) -> list[int]:
        """The numbers of replicas that were decided on, in order."""
        return [int(line.split("→")[1].split()[0]) for line in self.said if "→" in line]


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    bench.orders()
    yield bench
    for process in bench.started:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 10
    while end_processes(bench.state) and time.monotonic() < deadline:
        time.sleep(0.05)


def end_processes(state: Path) -> int:
    """Kills the processes that are left of the test's own sets, found by their environment."""
    found = 0
    marks = (f"PENSTOCK_REPLICA_SET={state}/".encode(), f"PENSTOCK_TENANT_DIR={state}/".encode())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                environment = (entry / "environ").read_bytes()
                if any(mark in environment for mark in marks):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found += 1
    return found
