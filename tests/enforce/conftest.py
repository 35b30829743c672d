"""A node of simulated devices and real processes, with the enforcer looking as an agent does."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.devices.backends.simulated import SimulatedDevices
from penstock.node.enforcement import Enforcer, Subject
from penstock.node.enforcement.process import find, is_alive
from penstock.node.tenants.grant import DeviceGrant, Grant
from penstock.node.tenants.state import State
from penstock.node.tenants.tenant import create_tenant
from penstock.node.tenants.tenant_events import read_events
from penstock_shim import paths, simulator
from penstock_shim.pages import (
    Limits,
    PageError,
    QuotaWriter,
    UsagePage,
    UsageSnapshot,
    read_quota,
    read_usage,
)

PROGRAM = Path(__file__).with_name("support") / "gpu_program.py"
KERNELS = "*spin=param0"
TICK_S = 0.1


@dataclass
class Guest:
    """A tenant and the processes that were started as it."""

    node: Node
    subject: Subject
    programs: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        return self.subject.tenant.directory

    @property
    def environment(self) -> dict[str, str]:
        return {
            **self.node.bare,
            "LD_PRELOAD": f"{paths.so_path()}:{paths.nvml_so_path()}",
            "PENSTOCK_TENANT_DIR": str(self.directory),
        }

    def start(self, *command: str, **options) -> subprocess.Popen[str]:
        options.setdefault("env", self.environment)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True, **options
        )
        self.programs.append(process)
        return process

    def program(self, *words: object, **options) -> subprocess.Popen[str]:
        return self.start(sys.executable, str(PROGRAM), *map(str, words), **options)

    def launcher(self, *words: object, **options) -> subprocess.Popen[str]:
        launcher = str(paths.workload_path("penstock-launcher"))
        return self.start(launcher, *map(str, words), **options)

    def events(self, *kinds: str) -> list[dict]:
        return [e for e in read_events(self.directory) if not kinds or e["event"] in kinds]

    def acts(self) -> list[dict]:
        """All that enforcement did or said."""
        return [e for e in self.events() if e["event"] not in {"granted", "deny"}]

    @property
    def limits(self):
        return read_quota(self.directory / "quota").limits


class Node:
    def __init__(self, folder: Path) -> None:
        self.state = State.open(folder / "state")
        self.machine = folder / "machine"
        self.simulated = simulator.create_machine(self.machine, "h200")
        self.source = SimulatedDevices(self.machine)
        self.device = self.source.devices()[0]
        self.enforcer = Enforcer(self.source)
        self.guests: dict[str, Guest] = {}
        self.before: dict[str, UsageSnapshot] = {}
        self.looks: list[int] = []  # when
        self.bare = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "CUDA_"))},
            **simulator.environment(self.machine),
            "PENSTOCK_SIM_KERNELS": KERNELS,
        }

    def tenant(
        self, name="t", *, memory_mib=2048, cores=300, measured="terminate", grace_s=2.0,
        mode="strict",
    ) -> Guest:  # fmt: skip
        share = DeviceGrant(
            uuid=self.device.uuid, index=0, name=self.device.name, memory_bytes=memory_mib << 20,
            cores_permille=cores, device_memory_bytes=self.device.memory_bytes,
            context_bytes=self.device.context_bytes,
        )  # fmt: skip
        grant = Grant(
            tenant=name, mode=mode, devices=(share,), command=("x",), user="u", created="now",
            machine=str(self.machine), measured=measured, grace_ns=int(grace_s * 1e9),
        )  # fmt: skip
        tenant, lock = create_tenant(self.state, grant, self.source.libraries())
        os.close(lock)
        self.guests[name] = Guest(self, Subject.of(tenant, grant))
        return self.guests[name]

    def change(self, guest: Guest, **fields) -> None:
        guest.subject = dataclasses.replace(guest.subject, **fields)

    def tick(self) -> None:
        """What an agent does ten times a second."""
        for guest in self.guests.values():
            with contextlib.suppress(PageError):
                with QuotaWriter.open(guest.directory / "quota") as writer:
                    writer.heartbeat()
                    self.publish(writer)
                with UsagePage.open(guest.directory / "usage") as usage:
                    usage.reap()
        now_ns = time.monotonic_ns()
        if not self.looks or now_ns - self.looks[-1] >= 950_000_000:
            self.looks.append(now_ns)
        subjects = [guest.subject for guest in self.guests.values()]
        self.enforcer.step(now_ns, subjects, self.pages())

    def pages(self) -> dict[str, UsageSnapshot]:
        """As the agent has them: the same object while nothing in a page is new."""
        pages = {}
        for name, guest in self.guests.items():
            with contextlib.suppress(PageError):
                pages[name] = read_usage(guest.directory / "usage")
                if pages[name] == self.before.get(name):
                    pages[name] = self.before[name]
        self.before = pages
        return pages

    def watch(self, condition, timeout_s=30.0):
        """Ticks until `condition` is true; its value."""
        deadline = time.monotonic() + timeout_s
        while True:
            value = condition()
            if value:
                return value
            assert time.monotonic() < deadline, f"waited in vain; {self.told()}"
            self.tick()
            time.sleep(TICK_S)

    def watch_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.watch(lambda: time.monotonic() >= deadline, seconds + 30)

    def publish(self, writer: QuotaWriter) -> None:
        """Says how many share the device: measured intervals of one hold others' work."""
        count = len(self.guests)

        def edit(limits: Limits) -> Limits:
            (one,) = limits.devices
            one = dataclasses.replace(one, sharers=count, busy_sharers=count)
            return dataclasses.replace(limits, devices=(one,))

        if writer.limits.devices[0].sharers != count:
            writer.change(edit)

    def told(self) -> dict[str, list[dict]]:
        return {name: guest.acts() for name, guest in self.guests.items()}

    def restart(self) -> None:
        """As after kill -9 of the agent: only what is on disk is left."""
        self.enforcer = Enforcer(self.source)

    def busy_ns(self, pid: int) -> int:
        return sum(r.busy_ns for r in self.simulated.record(0) if r.pid == pid)

    def began_ns(self, pid: int) -> int:
        """When the process came to the device; 0: not yet."""
        return next((r.began_ns for r in self.simulated.record(0) if r.pid == pid), 0)

    def close(self) -> None:
        own = Path("/proc/self/ns/pid").stat().st_ino  # elsewhere a pid means another process
        records = self.simulated.record(0)
        pids = {r.pid for r in records if r.alive and r.pid_namespace == own}
        for pid in pids - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for program in (one for guest in self.guests.values() for one in guest.programs):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # each has a session of its own
        for guest in self.guests.values():
            for program in guest.programs:
                program.wait()
                program.stdout.close()
        self.simulated.close()


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.close()


def state_of(pid: int) -> str:
    """R, S, T, Z …; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    found = find(pid)
    return found is not None and is_alive(found)


def expect(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout.readline() == f"{line}\n"


@pytest.fixture
def started():
    """Processes to be ended with the test."""
    programs: list[subprocess.Popen] = []
    yield programs
    for program in programs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        if program.stdout:
            program.stdout.close()
