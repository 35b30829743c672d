"""Tenants of a simulated machine with two devices."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.memory.support.tenant_programs import make_tenant

from penstock_shim import paths, simulator


@pytest.fixture(scope="session")
def machine(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("machine") / "machine"
    simulator.create_machine(path, "h200,2").close()
    return path


@pytest.fixture
def tenants(tmp_path, machine):
    made = []

    def make(name: str = "tenant", machine: Path = machine, **options):
        tenant = make_tenant(tmp_path / name, machine, **options)
        made.append(tenant)
        return tenant

    yield make
    for tenant in made:
        tenant.quota.close()


@pytest.fixture
def tenant(tenants):
    """One GiB on device 0, contexts free of charge so that sums are easy to see."""
    return tenants()


@pytest.fixture
def on_two_devices(tenants, tmp_path):
    """A tenant on a machine of two such devices, with `room` beside its contexts on each."""

    def make(*, room: int, profile: str = "h200", contexts: int = 1):
        path = tmp_path / f"{profile}-machine"
        simulator.create_machine(path, f"{profile},2").close()
        with simulator.Machine(path) as machine:
            context_bytes = machine.devices()[0].context_bytes
        return tenants(
            machine=path,
            memory_bytes=room + contexts * context_bytes,
            context_reserve_bytes=context_bytes,
            granted=(0, 1),
        )

    return make


@pytest.fixture(scope="session")
def program(tmp_path_factory, cuda_include):
    """A C program of `programs/`, linked as programs are with `-lcuda`."""
    folder = tmp_path_factory.mktemp("programs")

    def build(name: str) -> Path:
        output = folder / name
        if not output.exists():
            source = Path(__file__).parent / "programs" / f"{name}.c"
            link = [f"-L{paths.sim_dir()}", "-l:libcuda.so.1", "-pthread"]
            flags = ["-O1", "-Wall", "-Werror", f"-I{cuda_include}"]
            subprocess.run(["gcc", *flags, source, "-o", output, *link], check=True)
        return output

    return build


@pytest.fixture(scope="session")
def own_machine(tmp_path_factory) -> Path:
    """A machine that no other test uses: for sums over all its processes."""
    path = tmp_path_factory.mktemp("own") / "machine"
    simulator.create_machine(path, "h200").close()
    return path
