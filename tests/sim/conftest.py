"""The simulated driver and machine, tried by C programs that are compiled here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_shim import paths, simulator

HERE = Path(__file__).parent
TIMEOUT_S = 60


@pytest.fixture(scope="session")
def program(tmp_path_factory, cuda_include):
    """Compiles `programs/NAME.c` once and returns its path."""
    folder = tmp_path_factory.mktemp("programs")
    built: dict[str, Path] = {}

    def compiled(name: str) -> Path:
        if name not in built:
            path = folder / name
            sources = [HERE / "programs" / f"{name}.c", HERE / "programs" / "check.c"]
            flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
            flags += ["-Wno-missing-field-initializers", "-isystem", str(cuda_include)]
            links = [f"-L{paths.sim_dir()}", "-l:libcuda.so.1", "-lpthread"]
            compiler = shutil.which("cc") or "gcc"
            subprocess.run([compiler, *flags, "-o", path, *sources, *links], check=True)
            built[name] = path
        return built[name]

    return compiled


class TestMachine:
    """A machine of small test devices, and processes on it."""

    __test__ = False

    def __init__(self, path: Path, devices: int = 1, profile: Path = HERE / "small.yaml") -> None:
        self.path = path
        self.machine = simulator.create_machine(path, f"{profile},{devices}")
        self.started: list[subprocess.Popen[str]] = []

    def environment(self, tag: str = "", **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "CUDA_"))}
        rules = {"PENSTOCK_SIM_KERNELS": "spin*=param0"}
        return {**kept, **rules, **simulator.environment(self.path, tag), **more}

    def start(self, *command, tag: str = "", **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=self.environment(tag, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *command, tag: str = "", **more: str) -> str:
        """Runs a program, which must exit with 0; returns the output."""
        process = self.start(*command, tag=tag, **more)
        output, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, output + errors
        return output

    def python(self, name: str, *arguments, **more) -> subprocess.Popen[str]:
        return self.start(sys.executable, HERE / "programs" / name, *arguments, **more)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.machine.close()


@pytest.fixture
def machine(tmp_path):
    made = TestMachine(tmp_path / "machine")
    yield made
    made.close()


@pytest.fixture
def two_devices(tmp_path):
    made = TestMachine(tmp_path / "machine", devices=2)
    yield made
    made.close()


@pytest.fixture
def drifting(tmp_path):
    """Makes a machine whose device clock drifts by so many parts in a million."""
    made: list[TestMachine] = []

    def make(ppm: float) -> TestMachine:
        profile = tmp_path / "drifting.yaml"
        profile.write_text((HERE / "small.yaml").read_text() + f"  clock_drift_ppm: {ppm}\n")
        made.append(TestMachine(tmp_path / "machine", profile=profile))
        return made[-1]

    yield make
    for one in made:
        one.close()
