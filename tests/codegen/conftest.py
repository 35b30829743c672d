"""Imports the build-time package `codegen`, which no wheel holds, from where it lies."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.support import build_cache

REPOSITORY = Path(__file__).parents[2]


def _import_codegen() -> None:
    folder = REPOSITORY / "shim" / "codegen"
    spec = importlib.util.spec_from_file_location(
        "codegen", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["codegen"] = module
    spec.loader.exec_module(module)


_import_codegen()


@pytest.fixture(scope="session")
def exported():
    """Names that a shared library exports, by the linker's own tool."""

    def names(library: Path) -> set[str]:
        listing = subprocess.run(
            ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
        ).stdout
        return {line.split()[-1].split("@")[0] for line in listing.splitlines()}

    return names


@pytest.fixture(scope="session")
def pypi_headers():
    """A folder with `cuda.h` and the other headers of a release on PyPI, kept for the next run."""

    def fetch(requirement: str) -> Path:
        folder = REPOSITORY / "build" / "headers" / requirement
        with build_cache.alone_with(folder):
            if not list(folder.glob("**/cuda.h")):
                folder.mkdir(parents=True, exist_ok=True)
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
                command += ["--only-binary=:all:", f"--dest={folder}", requirement]
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=120, check=False
                )
                if done.returncode:
                    pytest.skip(f"{requirement} is not to be had: {done.stderr.strip()[-200:]}")
                for wheel in folder.glob("*.whl"):
                    with zipfile.ZipFile(wheel) as archive:
                        members = [n for n in archive.namelist() if "/include/cuda" in n]
                        archive.extractall(folder, members)
                    wheel.unlink()
        return next(folder.glob("**/cuda.h")).parent

    return fetch
