"""C programs for the gate's tests, compiled once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock_shim import paths

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent / "programs"
SHARED = Path(__file__).parents[1] / "sim" / "programs"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, cuda_include: Path) -> Callable[[str], str]:
    """Compiles `programs/NAME.c` and returns its path. Each CASE in it is run by its name."""
    folder = tmp_path_factory.mktemp("gate-programs")
    built: dict[str, str] = {}

    def compiled(name: str) -> str:
        if name not in built:
            path = folder / name
            sources = [HERE / f"{name}.c", HERE / "gate.c", SHARED / "check.c"]
            flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
            flags += ["-Wno-missing-field-initializers", f"-I{SHARED}", "-isystem", cuda_include]
            links = [f"-L{paths.sim_dir()}", "-l:libcuda.so.1", "-lpthread"]
            compiler = shutil.which("cc") or "gcc"
            subprocess.run([compiler, *flags, "-o", path, *sources, *links], check=True)
            built[name] = str(path)
        return built[name]

    return compiled
