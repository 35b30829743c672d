"""The player, compiled."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support import headers

from penstock_shim import paths

SOURCES = Path(__file__).parents[1] / "player"


def player(folder: Path) -> Path:
    """Compiles `player/` into this folder."""
    path = folder / "player"
    flags = ["-std=gnu11", "-O1", "-g", "-rdynamic", "-Wall", "-Wextra", "-Werror"]
    flags += ["-Wno-missing-field-initializers", "-isystem", str(headers.cuda_include())]
    links = [f"-L{paths.sim_dir()}", "-l:libcuda.so.1", "-lpthread"]
    compiler = shutil.which("cc") or "gcc"
    sources = sorted(SOURCES.glob("*.c"))
    subprocess.run([compiler, *flags, "-o", path, *sources, *links], check=True)
    return path
