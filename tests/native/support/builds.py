"""Builds of the native parts for tests: as shipped, and with each sanitizer."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import build_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[3]
SANITIZERS = {"plain": "", "address": "address,undefined", "thread": "thread"}
LIBRARIES = ("penstock_cuda", "penstock_nvml", "sim_cuda", "sim_nvml")
PROGRAMS = ("penstock_launcher", "penstock_latency")


class BuildError(Exception):
    """The build failed; the message is the compiler's."""


def _tool(name: str) -> str:
    beside_python = Path(sys.executable).with_name(name)
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    assert found, f"{name} is needed to build the native tests: pip install {name}"
    return found


def _run(*command: object, variables: Mapping[str, str] | None = None) -> None:
    words = [str(word) for word in command]
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    if done.returncode:
        raise BuildError(f"{' '.join(words)}:\n{done.stdout}\n{done.stderr}")


def configure(directory: Path, *options: str, variables: Mapping[str, str] | None = None) -> None:
    """Prepare a build folder. Raises BuildError."""
    _run(
        _tool("cmake"), "-S", ROOT, "-B", directory, "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", f"-DPython_EXECUTABLE={sys.executable}",
        *options, variables=variables,
    )  # fmt: skip


def compile_targets(
    directory: Path, *targets: str, variables: Mapping[str, str] | None = None
) -> None:
    """Bring `targets` up to date. Raises BuildError."""
    _run(_tool("cmake"), "--build", directory, "-j", "2", "--target", *targets, variables=variables)


def _folder(name: str) -> Path:
    return ROOT / "build" / f"native-tests-{name}"


@functools.cache
def _configured(name: str) -> Path:
    directory = _folder(name)
    configure(directory, "-DPENSTOCK_TESTS=ON", f"-DPENSTOCK_SANITIZE={SANITIZERS[name]}")
    return directory


@functools.cache
def build(name: str, *targets: str) -> Path:
    """The build folder in which `targets` are up to date.

    Raises:
        BuildError: it does not compile. (Not remembered: the next call compiles again.)
    """
    with build_cache.alone_with(_folder(name)):
        directory = _configured(name)
        compile_targets(directory, *targets)
    return directory
