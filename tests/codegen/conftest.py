"""Imports the build-time package `codegen`, which no wheel holds, from where it lies."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

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
