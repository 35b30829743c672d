"""C programs that use the driver in every way a process can, with the shim and without."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.memory.support import tenant_programs

from penstock_shim import paths, simulator

HERE = Path(__file__).parent

LINK = [f"-L{paths.sim_dir()}", "-l:libcuda.so.1", "-ldl", "-pthread"]


@dataclass(frozen=True)
class Outcome:
    """How a program ended and what it printed."""

    code: int
    output: str


@pytest.fixture(scope="session")
def build(tmp_path_factory, cuda_include):
    """A program of this folder, linked as programs are with `-lcuda`."""
    folder = tmp_path_factory.mktemp("programs")

    def compile_program(name: str, *options: str, linked: bool = True) -> Path:
        words = [name, *([] if linked else ["unlinked"]), *options]
        output = folder / "-".join(word.strip("-").replace("/", "_") for word in words)
        if not output.exists():
            flags = ["-O1", "-Wall", "-Wextra", "-Werror", f"-I{cuda_include}", *options]
            link = LINK if linked else ["-ldl", "-pthread"]
            source = HERE / "programs" / f"{name}.c"
            subprocess.run(["gcc", *flags, source, "-o", output, *link], check=True)
        return output

    return compile_program


@pytest.fixture(scope="session")
def machine(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("machine") / "machine"
    simulator.create_machine(path, "h200,3").close()
    return path


@pytest.fixture(scope="session")
def uuids(machine) -> list[str]:
    with simulator.Machine(machine) as opened:
        return [device.uuid for device in opened.devices()]


@pytest.fixture
def tenants(tmp_path, machine):
    made = []

    def make(name: str = "tenant", **options):
        tenant = tenant_programs.make_tenant(tmp_path / name, machine, **options)
        made.append(tenant)
        return tenant

    yield make
    for tenant in made:
        tenant.quota.close()


@pytest.fixture
def tenant(tenants):
    return tenants()


def run(command, environment) -> Outcome:
    done = subprocess.run(
        list(map(str, command)),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=tenant_programs.LONGEST_S,
    )
    return Outcome(done.returncode, done.stdout)


@pytest.fixture
def inside():
    """The outcome of a command in a tenant."""

    def go(tenant, *command: object, **variables: str) -> Outcome:
        environment = tenant.environment(**variables)
        if "CUDA_VISIBLE_DEVICES" not in variables:
            environment.pop("CUDA_VISIBLE_DEVICES", None)
        return run(command, environment)

    return go


@pytest.fixture
def outside(machine, inside):
    """The outcome of a command without the shim, on the granted devices of the same machine."""

    def go(tenant, *command: object, **variables: str) -> Outcome:
        granted = ",".join(device.uuid for device in tenant.quota.limits.devices)
        environment = tenant.environment(**{"CUDA_VISIBLE_DEVICES": granted, **variables})
        del environment["LD_PRELOAD"]
        return run(command, environment)

    return go
