"""Programs that reach the driver in every way there is, compiled once, run under the preload."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.memory.support import tenant_programs

from penstock_shim import paths, simulator

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory, cuda_include):
    folder = tmp_path_factory.mktemp("programs")

    def compile_program(source: str, *options: str, name: str | None = None) -> Path:
        output = folder / (name or Path(source).stem)
        if not output.exists():
            command = [
                "gcc",
                "-O1",
                "-Wall",
                "-Werror",
                f"-I{cuda_include}",
                HERE / "programs" / source,
            ]
            subprocess.run([*command, "-o", output, *options], check=True)
        return output

    return compile_program


@pytest.fixture(scope="session")
def preloaded():
    """The environment of a program with the shim (or other libraries) preloaded."""

    def environment(*libraries: Path, **variables: str) -> dict[str, str]:
        names = " ".join(str(library) for library in libraries or (paths.so_path(),))
        return {**os.environ, "LD_PRELOAD": names, **variables}

    return environment


@pytest.fixture(scope="session")
def machine(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("machine") / "machine"
    simulator.create_machine(path, "h200").close()
    return path


@pytest.fixture
def make_tenant(tmp_path, machine):
    made = []

    def make(memory_bytes: int = 1 << 30, **options):
        folder = tmp_path / f"tenant-{len(made)}"
        tenant = tenant_programs.make_tenant(folder, machine, memory_bytes, **options)
        made.append(tenant)
        return tenant

    yield make
    for tenant in made:
        tenant.quota.close()
