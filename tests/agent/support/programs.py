"""Programs that tests run as tenants of an agent."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from penstock.bench.quota import Workload
from penstock.bench.stage import KERNEL_RULES
from penstock.bench.stage import LAUNCHER as NAME
from penstock_shim import paths

if TYPE_CHECKING:
    from pathlib import Path

LAUNCHER = str(paths.workload_path(NAME))


def environment_for(granted) -> dict[str, str]:
    """Our environment, updated with the agent's variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "CUDA_"))}
    return {**kept, **granted.environment, "PENSTOCK_SIM_KERNELS": KERNEL_RULES}


def backlogged(seconds: float, kernel_us: float = 200) -> list[str]:
    """Arguments that make the launcher launch without a pause."""
    return Workload(kernel_us).arguments(seconds)


def open_to_nobody(node) -> None:
    """Lets other users reach the state directory, which lies in a test's own folder."""
    open_folder(node.state)


def open_folder(directory: Path) -> None:
    """Lets other users enter the folder and its parents."""
    for folder in (directory, *directory.parents):
        mode = folder.stat().st_mode
        if mode & 0o011 != 0o011:
            folder.chmod(mode | 0o011)


def start_past_the_shim(node, granted):
    """Starts the tenant's program without the preload."""
    environment = {k: v for k, v in environment_for(granted).items() if k != "LD_PRELOAD"}
    library = granted.environment["LD_PRELOAD"].split(":")[0]
    assert "penstock" in library
    program = subprocess.Popen([LAUNCHER, *backlogged(600)], env=environment, stdin=subprocess.PIPE)
    node.programs.append(program)
    return program
