"""An agent whose tenants are devices of containers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def wait_until(condition, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


class Node:
    """An agent whose specs lie where podman reads them."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.environment = {**os.environ, "PENSTOCK_STATE_DIR": str(self.state)}
        self.folder = folder
        self.start()

    def start(self) -> None:
        self.agent = subprocess.Popen(
            [sys.executable, "-m", "penstock", "agent", "--simulate=h200", "--metrics=",
             f"--meter-dir={self.folder / 'meter'}", f"--shim-dir={self.folder / 'shim'}"],
            env=self.environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert '"started"' in self.agent.stderr.readline()

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def granted(self, name: str, *options: str) -> list[str]:
        """Makes a tenant; podman's options that name it."""
        done = self("grant", name, "--memory=4Gi", "--cores=50", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def events(self, name: str) -> list[dict]:
        file = self.state / "tenants" / name / "events.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def kill(self) -> None:
        self.agent.kill()
        self.agent.wait()
        self.agent.stderr.close()

    def close(self) -> None:
        for directory in (self.state / "tenants").glob("[!.]*"):
            done = self("revoke", directory.name, "--grace=0s")
            assert done.returncode == 0, done.stderr
        with contextlib.suppress(ProcessLookupError):
            self.agent.send_signal(signal.SIGTERM)
        self.agent.wait(30)
        self.agent.stderr.close()
