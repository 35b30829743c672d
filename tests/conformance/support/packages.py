"""Libraries of the vendor from PyPI, kept between runs: real counterparts for the shim."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support import build_cache

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_S = 120


class NotToBeHadError(Exception):
    """A package is not available on this machine; the message says why."""


@dataclass(frozen=True)
class Runtime:
    """One version of the CUDA runtime. The packages before 12.9 hold no static library."""

    package: str
    version: str
    is_static: bool = False

    def __str__(self) -> str:
        return f"{'.'.join(self.version.split('.')[:2])} {'static' if self.is_static else 'shared'}"


RUNTIMES = [
    Runtime("nvidia-cuda-runtime-cu11", "11.8.89"),
    Runtime("nvidia-cuda-runtime-cu12", "12.1.105"),
    Runtime("nvidia-cuda-runtime-cu12", "12.4.127"),
    Runtime("nvidia-cuda-runtime-cu12", "12.9.79"),
    Runtime("nvidia-cuda-runtime-cu12", "12.9.79", is_static=True),
    Runtime("nvidia-cuda-runtime", "13.0.48"),
    Runtime("nvidia-cuda-runtime", "13.0.48", is_static=True),
    Runtime("nvidia-cuda-runtime", "13.5.37"),
    Runtime("nvidia-cuda-runtime", "13.5.37", is_static=True),
]


def unpacked(cache: Path, package: str, version: str) -> Path:
    """The wheel's content in a folder of `cache`, fetched on first use.

    Raises:
        NotToBeHadError: with pip's own words.
    """
    folder = cache / f"{package}-{version}"
    with build_cache.alone_with(folder):
        if not folder.exists():
            _fetch(cache, package, version, folder)
    return folder


def _fetch(cache: Path, package: str, version: str, folder: Path) -> None:
    wheels = cache / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command = [*pip, "--dest", str(wheels), f"{package}=={version}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotToBeHadError(str(error)) from error
    if done.returncode:
        raise NotToBeHadError(f"pip download {package}=={version}: {done.stderr.strip()}")
    [wheel] = wheels.glob(f"{package.replace('-', '_')}-{version}-*.whl")
    aside = cache / f".{folder.name}"
    zipfile.ZipFile(wheel).extractall(aside)
    aside.rename(folder)


def only(folder: Path, pattern: str) -> Path:
    """The one file below `folder` that matches."""
    [found] = folder.rglob(pattern)
    return found
