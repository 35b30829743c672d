"""Libraries and programs under a sanitizer, and an environment in which they find each other.

The order of loading matters. AddressSanitizer must come before everything that it watches: its
runtime is preloaded before the shim. ThreadSanitizer's runtime cannot be preloaded into a program
that was built without it: programs are linked with it.

Also a pytest plugin: `pytest -p tests.sanitize.support.instrumented tests/memory` runs tests that
know nothing of sanitizers with the instrumented shim and simulated driver (AddressSanitizer).
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.native.support import builds
from tests.support import build_cache
from tests.support.headers import cuda_include

from penstock_shim import paths

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
REPORTED = 99  # exit status of a program about which a sanitizer had something to say
RUNTIMES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}


@functools.cache
def libraries(sanitizer: str) -> Path:
    """The build folder of the instrumented libraries and launchers."""
    return builds.build(sanitizer, *builds.LIBRARIES, *builds.PROGRAMS)


@functools.cache
def program(sanitizer: str, *sources: Path) -> Path:
    """Builds an instrumented program linked with `-lcuda`; its first source names it.

    It is compiled when something beside its sources, or this file, has changed.
    """
    output = libraries(sanitizer) / "programs" / sources[0].parents[1].name / sources[0].stem
    with build_cache.alone_with(output):
        inputs = [Path(__file__), *(file for one in sources for file in one.parent.iterdir())]
        newest = max(file.stat().st_mtime for file in inputs)
        if not output.exists() or output.stat().st_mtime < newest:
            _compile(sanitizer, sources, output)
    return output


def _compile(sanitizer: str, sources: Sequence[Path], output: Path) -> None:
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer"]
    flags += ["-Wno-missing-field-initializers", f"-fsanitize={builds.SANITIZERS[sanitizer]}"]
    flags += ["-fno-sanitize-recover=all", "-isystem", str(cuda_include())]
    flags += [f"-I{source.parent}" for source in sources]
    links = [f"-L{libraries(sanitizer)}/sim", "-l:libcuda.so.1", "-ldl", "-pthread"]
    aside = output.with_suffix(".new")
    subprocess.run(["gcc", *flags, "-o", aside, *sources, *links], check=True)
    aside.replace(output)


@functools.cache
def _runtime(name: str) -> str:
    command = ["gcc", f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert found.startswith("/"), f"{name} is missing: it belongs to the compiler (gcc)"
    return str(Path(found).resolve())


def options(sanitizer: str, *, leaks: bool = True) -> dict[str, str]:
    """Variables that make every finding end the program with REPORTED."""
    common = f"exitcode={REPORTED}:halt_on_error=1:abort_on_error=0"
    if sanitizer == "thread":
        found = f"suppressions={HERE / 'thread.supp'}"
        return {"TSAN_OPTIONS": f"{common}:second_deadlock_stack=1:atexit_sleep_ms=20:{found}"}
    return {
        "ASAN_OPTIONS": f"{common}:detect_stack_use_after_return=1:detect_leaks={int(leaks)}",
        "LSAN_OPTIONS": f"print_suppressions=0:suppressions={HERE / 'leak.supp'}",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def preload(sanitizer: str) -> str:
    """The value of LD_PRELOAD with which both libraries of the shim are in force."""
    build = libraries(sanitizer)
    shim = [str(build / "libpenstock.so"), str(build / "libpenstock-nvml.so")]
    runtimes = RUNTIMES[sanitizer] if sanitizer == "address" else ()
    return " ".join([*map(_runtime, runtimes), *shim])


def environment(sanitizer: str, machine: Path, tenant: Path | None = None) -> dict[str, str]:
    """The environment of a program on `machine`, within `tenant` or without the shim.

    Leaks are looked for without the shim only: its tables hang on memory that a fork wipes, where
    the search for references does not look.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "CUDA_"))}
    variables = {
        "LD_LIBRARY_PATH": str(libraries(sanitizer) / "sim"),
        "PENSTOCK_SIM_MACHINE": str(machine),
        "PENSTOCK_SIM_KERNELS": "*spin*=param0,meet=until0,decide=sets0,relay=launches0",
    }
    if tenant is not None:
        variables |= {
            "LD_PRELOAD": preload(sanitizer),
            "PENSTOCK_TENANT_DIR": str(tenant),
            "PENSTOCK_LOG": str(tenant / "log"),
        }
    return {**kept, **variables, **options(sanitizer, leaks=tenant is None)}


class _Preloaded(type(Path())):
    """The shim's path that names the sanitizer's runtime before it where it is preloaded."""

    def __str__(self) -> str:
        return f"{' '.join(map(_runtime, RUNTIMES['address']))} {super().__str__()}"

    def __format__(self, form: str) -> str:
        return format(str(self), form)


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin: every test's tenants get the instrumented libraries."""
    build = libraries("address")
    patch = pytest.MonkeyPatch()
    patch.setattr(paths, "so_path", lambda: _Preloaded(build / "libpenstock.so"))
    patch.setattr(paths, "nvml_so_path", lambda: build / "libpenstock-nvml.so")
    patch.setattr(paths, "sim_dir", lambda: build / "sim")
    for name, value in options("address", leaks=False).items():
        patch.setenv(name, value)
    config.add_cleanup(patch.undo)


# The sanitizer's runtime cannot be had there twice, or not at all.
NOT_POSSIBLE = {
    "another namespace has no runtime": ["test_a_copy_of_the_driver_in_another_namespace"],
    "programs built without it need the preload": [
        "test_a_size_beyond_any_device",
        "test_a_child_forked_after_cuda_fails_as_without_the_shim",
        "test_the_codes_are_those_of_the_same_program_without_the_shim",
    ],
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = tuple(name for names in NOT_POSSIBLE.values() for name in names)
    dropped = [item for item in items if item.name.startswith(left_out)]
    if dropped:
        items[:] = [item for item in items if item not in dropped]
        config.hook.pytest_deselected(items=dropped)
