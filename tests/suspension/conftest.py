"""Tenants of a real agent whose device memory is released and restored."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.agent.conftest import Node, make_node, node, wait_until  # noqa: F401 - fixtures
from tests.agent.support.programs import environment_for

from penstock_shim.simulator import Machine

if TYPE_CHECKING:
    import subprocess

MIB, GIB = 1 << 20, 1 << 30
WORKER = str(Path(__file__).parent / "support" / "worker.py")
SETTLED_WITHIN_S = 40.0


class Worker:
    """A running worker, whose output a thread reads."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.strip())

    @property
    def steps(self) -> int:
        return sum(line.startswith("step") for line in self.lines)

    def is_ready(self) -> bool:
        assert self.process.poll() is None or self.results, self.lines[-3:]
        return "ready" in self.lines

    def reached(self, step: int) -> None:
        wait_until(lambda: self.steps >= step or self.results, SETTLED_WITHIN_S)

    @property
    def results(self) -> list[str]:
        return [line for line in self.lines if line.startswith(("result", "child"))]

    def result(self) -> list[str]:
        """What it has computed, once it has ended."""
        code = self.process.wait(90)
        self._thread.join(10)
        assert code == 0, self.lines[-3:]
        return sorted(self.results)


@pytest.fixture
def work(request):
    """Starts a worker as a tenant's program; returns when its memory is filled."""

    def start(at: Node, granted, steps: int = 400, mib: int = 48, *words: str) -> Worker:
        command = [sys.executable, WORKER, str(steps), str(mib), *words]
        worker = Worker(at.launch_in(environment_for(granted), *command))
        wait_until(worker.is_ready, SETTLED_WITHIN_S)
        return worker

    return start


@pytest.fixture
def two_devices(make_node) -> Node:  # noqa: F811 - a fixture
    made = make_node("--simulate=h200,2")
    made.machine = lambda: Machine(made.state / "machines" / "h200x2")
    return made


def tenant_of(at: Node, name: str):
    """The tenant as the agent lists it; None if it does not."""
    with at.client() as agent:
        return next((one for one in agent.tenants() if one.name == name), None)


def settled(at: Node, name: str, state: str):
    """Waits until the tenant's suspension is `state`; returns the tenant."""

    def is_there():
        tenant = tenant_of(at, name)
        return tenant if tenant is not None and tenant.suspension == state else None

    return wait_until(is_there, SETTLED_WITHIN_S)


def suspend(at: Node, name: str):
    with at.client() as agent:
        return agent.suspend(name, "for a test", release_memory=True)


def released(at: Node, name: str):
    suspend(at, name)
    return settled(at, name, "released")


def resume(at: Node, name: str, *devices: str):
    with at.client() as agent:
        return agent.resume(name, devices)


def used(at: Node, device: int = 0) -> int:
    """Bytes of tenants' processes, by the device's own record."""
    with at.machine() as machine:
        return sum(one.memory_bytes for one in machine.record(device) if one.alive)


def free_of(at: Node, device: int = 0):
    with at.client() as agent:
        return agent.node().devices[device]
