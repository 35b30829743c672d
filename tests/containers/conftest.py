"""Tenants that real containers (podman, runc) are given, and the roots that these run on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pynvml
import pytest
from tests.containers.support import images

from penstock.devices import open_machine
from penstock.node.containers import Containers, container_libraries
from penstock.node.supervision.supervisor import Supervisor
from penstock.node.supervision.tenant_table import TenantTable
from penstock.node.tenants.grant import DeviceGrant, Grant
from penstock.node.tenants.state import State
from penstock.node.tenants.tenant import Tenant, create_tenant
from penstock_shim import simulator

HERE = Path(__file__).parent
GIB = 1 << 30
PODMAN = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs")
# The limits are lower than podman's own: raising them needs a capability that not every root has.
RUN = (*PODMAN, "run", "--rm", "--network", "host", "--ulimit", "nofile=1024:1024",
       "--ulimit", "nproc=1000:1000")  # fmt: skip
PYNVML = "/opt/pynvml"
PROGRAMS = "/opt/programs"


def grant_of(source, name: str, memory_bytes: int, cores_permille: int) -> Grant:
    device = source.devices()[0]
    share = DeviceGrant(
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        memory_bytes=memory_bytes,
        cores_permille=cores_permille,
        device_memory_bytes=device.memory_bytes,
        context_bytes=device.context_bytes,
    )
    return Grant(
        tenant=name,
        mode="strict",
        devices=(share,),
        command=("container",),
        user="test",
        created="2026-01-01T00:00:00+00:00",
        machine=str(source.machine) if source.machine else None,
    )


@dataclass
class Node:
    """A state directory with a simulated machine, and the CDI devices of its tenants."""

    folder: Path
    specs: Path
    state: State = field(init=False)
    containers: Containers = field(init=False)
    supervised: list[tuple[threading.Event, threading.Thread]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = State.open(self.folder / "state")
        self.source = open_machine(self.state.machines / "h200", "h200")
        self.restart()

    def restart(self) -> None:
        """Makes the containers' state anew, as an agent that restarts."""
        self.containers = Containers(
            self.state, releases=self.folder / "releases", specs=self.specs
        )

    @property
    def machine(self) -> simulator.Machine:
        return simulator.Machine(self.state.machines / "h200")

    def tenant(
        self, memory_bytes: int = 4 * GIB, cores_permille: int = 500, name: str | None = None
    ) -> Tenant:
        grant = grant_of(
            self.source, name or f"t-{uuid.uuid4().hex[:12]}", memory_bytes, cores_permille
        )
        with self.state.lock():
            tenant, lock = create_tenant(self.state, grant, container_libraries(self.source))
        os.close(lock)
        return tenant

    def supervise(self, tenant: Tenant) -> None:
        """Supervises the tenant ten times a second, until the node is closed."""
        supervisor = Supervisor(tenant, TenantTable(self.state), self.source)
        ended = threading.Event()

        def supervise() -> None:
            while not ended.wait(0.1):
                supervisor.tick()
            supervisor.close()

        thread = threading.Thread(target=supervise)
        thread.start()
        self.supervised.append((ended, thread))

    def offered(self, **options) -> Tenant:
        """Creates a supervised tenant and offers it to containers."""
        tenant = self.tenant(**options)
        self.supervise(tenant)
        self.containers.offer(tenant)
        return tenant

    def run(
        self, root: Path, tenant: Tenant | None, *command: str, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """The command in a container on a throw-away layer over `root`."""
        device = ("--device", f"penstock.io/vgpu={tenant.name}") if tenant else ()
        return subprocess.run(
            [*RUN, *device, *_programs(), *options, "--rootfs", f"{root}:O", *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def close(self) -> None:
        for ended, _ in self.supervised:
            ended.set()
        for _, thread in self.supervised:
            thread.join()
        for name in self.containers.offered():
            self.containers.withdraw(name)


def _programs() -> list[str]:
    folder = Path(pynvml.__file__).parent
    return ["-v", f"{HERE / 'programs'}:{PROGRAMS}:ro", "-v", f"{folder}:{PYNVML}:ro"]


def host_pid(command: str, page: Path) -> int | None:
    """The pid of the program of that name in a container that has this usage page mounted."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_there = (entry / "root/run/penstock-tenant/usage").samefile(page)
            if is_there and (entry / "comm").read_text().strip() == command:
                return int(entry.name)
    return None


@pytest.fixture
def node(tmp_path):
    """Specs lie where no runtime looks."""
    made = Node(tmp_path, tmp_path / "cdi")
    yield made
    made.close()


def or_skip(what, *arguments):
    try:
        return what(*arguments)
    except images.NotToBeHadError as why:
        pytest.skip(f"no real containers: {why}")


@pytest.fixture(scope="session")
def podman():
    or_skip(images.need, "podman", "runc")


@pytest.fixture(scope="module")
def live(podman, tmp_path_factory):
    """Specs lie where podman reads them."""
    made = Node(tmp_path_factory.mktemp("node"), Path("/var/run/cdi"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def host_root() -> Path:
    return Path("/")


@pytest.fixture(scope="session")
def bullseye_root(podman) -> Path:
    return or_skip(images.bullseye)


@pytest.fixture(scope="session")
def static_root(podman, tmp_path_factory) -> Path:
    return or_skip(images.static_only, tmp_path_factory.mktemp("static"))


@pytest.fixture(scope="session")
def musl_root(podman, tmp_path_factory) -> Path:
    return or_skip(images.musl, tmp_path_factory.mktemp("musl"))


@pytest.fixture(scope="session")
def distroless_root(podman, tmp_path_factory) -> Path:
    return or_skip(images.distroless, tmp_path_factory.mktemp("distroless"))


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter itself, not the virtual environment's link to it."""
    return str(Path(sys.base_prefix) / "bin/python3")
