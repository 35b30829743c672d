"""Real CUDA runtimes, a recorder that stands above the shim, and a tenant to run them in."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import pytest
from tests.conformance.support import packages, recordings
from tests.memory.support import tenant_programs

from penstock_shim import paths, simulator

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


@pytest.fixture
def tell_asked(record_property):
    """Prints a line at the end of the test run (tests/conftest.py)."""
    what = "what real CUDA libraries asked the shim for"
    return lambda who, line: record_property(what, f"{who:24} {line}")


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory, cuda_include):
    folder = tmp_path_factory.mktemp("programs")

    def compile_program(source: str, *options: object, name: str) -> Path:
        output = folder / name
        if not output.exists():
            flags = ["-O1", "-Wall", "-Wextra", "-Werror", f"-I{cuda_include}"]
            command = ["gcc", *flags, HERE / "programs" / source, "-o", output, *options]
            subprocess.run(command, check=True)
        return output

    return compile_program


@pytest.fixture(scope="session")
def build_runtime(compile_c):
    """`runtime.c` with one version of the CUDA runtime."""

    def build(runtime: packages.Runtime) -> Path:
        cache = REPOSITORY / "build" / "conformance"
        try:
            folder = packages.unpacked(cache, runtime.package, runtime.version)
        except packages.NotToBeHadError as why:
            pytest.skip(f"no CUDA runtime {runtime} to run: {why}")
        name = str(runtime).replace(" ", "-")
        if runtime.is_static:
            library = packages.only(folder, "libcudart_static.a")
            return compile_c("runtime.c", library, "-ldl", "-lpthread", "-lrt", name=name)
        library = packages.only(folder, "libcudart.so.*")
        return compile_c("runtime.c", library, f"-Wl,-rpath,{library.parent}", name=name)

    return build


@pytest.fixture(scope="session")
def machine(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("machine") / "machine"
    simulator.create_machine(path, "h200,2").close()
    return path


@pytest.fixture
def make_tenant(tmp_path, machine):
    made = []

    def make(**options):
        tenant = tenant_programs.make_tenant(tmp_path / f"tenant-{len(made)}", machine, **options)
        made.append(tenant)
        return tenant

    yield make
    for tenant in made:
        tenant.quota.close()


@pytest.fixture
def record(compile_c, tmp_path):
    """Runs a program in a tenant, with the recorder above the shim."""
    recorder = compile_c("recorder.c", "-shared", "-fPIC", name="recorder.so")

    def run(tenant, *command: object) -> recordings.Recording:
        file = tmp_path / "record"
        file.unlink(missing_ok=True)
        done = subprocess.run(
            list(map(str, command)),
            env=tenant.environment(LD_AUDIT=str(recorder), RECORD=str(file)),
            capture_output=True,
            text=True,
            check=False,
            timeout=tenant_programs.LONGEST_S,
        )
        assert done.returncode == 0, done.stderr + tenant.log()
        lines = [line.split("\t") for line in file.read_text().splitlines()]
        return recordings.Recording(
            done.stdout,
            [words[1] for words in lines if words[0] == "dlsym"],
            [recordings.Ask(*words[1:]) for words in lines if words[0] == "ask"],
        )

    return run


@pytest.fixture(scope="session")
def verdicts(compile_c):
    """A driver library's answers to the same requests, without the shim: same, lacks or other."""
    program = compile_c("variants.c", "-ldl", name="variants")

    def compare(library: Path, asks: list[recordings.Ask]) -> list[str]:
        done = subprocess.run(
            [program, library],
            input="".join(f"{ask.line}\n" for ask in asks),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    return compare


@pytest.fixture(scope="session")
def by_simulated_driver(verdicts):
    """The verdicts of the driver that lies below the shim."""
    return functools.partial(verdicts, paths.sim_dir() / "libcuda.so.1")


@pytest.fixture(scope="session")
def by_real_driver(verdicts, real_libcuda):
    """The verdicts of a real driver, which has a different set of names."""
    return functools.partial(verdicts, real_libcuda)
