"""A shim release on disk: an immutable folder, named by version and content digest.

Containers keep its files mounted until they end, even across upgrades of Penstock.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.containers import places
from penstock_shim import paths

if TYPE_CHECKING:
    from pathlib import Path

_HOOK = "bin/penstock-container-hook"
_PRELOAD = "shim/preload"


@dataclass(frozen=True)
class Release:
    """An installed shim release."""

    directory: Path

    @property
    def name(self) -> str:
        """The version and the digest of the content, such as "0.1.0-1f2e3d4c5b6a"."""
        return self.directory.name

    @property
    def shim(self) -> Path:
        """The folder that is mounted in containers at `places.SHIM`."""
        return self.directory / "shim"

    @property
    def simulated_driver(self) -> Path:
        """The folder with the simulated `libcuda.so.1` and `libnvidia-ml.so.1`."""
        return self.directory / "sim"

    @property
    def hook(self) -> Path:
        """The hook program that container runtimes start."""
        return self.directory / _HOOK

    def is_whole(self) -> bool:
        """Whether every file exists and is unchanged since its installation."""
        try:
            content = {name: self.directory / name for name in _installed_files()}
            return self.name.endswith(_digest(content)) and (self.directory / _PRELOAD).is_dir()
        except OSError:
            return False

    def is_there(self) -> bool:
        """Whether containers can mount the release, even if its version differs from ours."""
        return self.hook.is_file() and (self.directory / _PRELOAD).is_dir()


def install_release(root: Path) -> Release:
    """Copies the shim of this installation into `root`, unless the same release exists there.

    Raises:
        PenstockError: the shim cannot be written to `root`, or cannot be executed from it.
    """
    content = _installed_files()
    release = Release(root / f"{version('penstock')}-{_digest(content)}")
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        _check_executable(root)
        if not os.path.lexists(release.directory):
            _install(root, release, content)
    except OSError as error:
        raise PenstockError(
            f"cannot install the shim for containers in {root}",
            error.strerror or str(error),
            "name another folder that this user can write to and containers can execute from",
        ) from error
    if not release.is_whole():
        raise PenstockError(
            f"{release.directory} has changed since it was installed",
            "files are missing or were modified",
            "remove the folder when no container uses it, then start again",
        )
    return release


def releases_in(root: Path) -> list[Release]:
    """All releases in `root`, complete or not."""
    try:
        return [Release(found) for found in sorted(root.iterdir()) if found.name[0] != "."]
    except FileNotFoundError:
        return []


def remove_leftovers(root: Path) -> None:
    """Removes files of killed installations. Call it only while no installation is running."""
    for aside in root.glob(".new-*"):
        shutil.rmtree(aside, ignore_errors=True)


def _installed_files() -> dict[str, Path]:
    """The files of a release, by their relative path in it."""
    simulated = paths.sim_dir()
    return {
        f"shim/{places.SHIMS[places.CUDA]}": paths.so_path(),
        f"shim/{places.SHIMS[places.NVML]}": paths.nvml_so_path(),
        **{f"sim/{name}": simulated / name for name in places.SHIMS},
        _HOOK: paths.container_hook_path(),
    }


def _digest(content: dict[str, Path]) -> str:
    total = hashlib.sha256()
    for name, file in sorted(content.items()):
        total.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:12]


def _check_executable(root: Path) -> None:
    """Raises `PenstockError` if the file system is noexec, as libraries are mapped executable."""
    if os.statvfs(root).f_flag & os.ST_NOEXEC:
        raise PenstockError(
            f"cannot install the shim for containers in {root}",
            "the file system is mounted noexec, so no container could load the shim from it",
            "name a folder on another file system, such as /var/lib/penstock/shim",
        )


def _install(root: Path, release: Release, content: dict[str, Path]) -> None:
    """Builds the release aside, then renames it; if another process was first, discards it."""
    aside = root / f".new-{release.name}-{secrets.token_hex(6)}"
    try:
        for name, file in content.items():
            _copy(file, aside / name, 0o755 if name == _HOOK else 0o644)
        (aside / _PRELOAD).mkdir()
        for folder in (aside, *(path for path in aside.rglob("*") if path.is_dir())):
            folder.chmod(0o755)
        aside.rename(release.directory)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not release.directory.is_dir():  # it failed for a reason other than a faster process
            raise


def _copy(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as stream:
        stream.write(source.read_bytes())
        stream.flush()
        os.fchmod(stream.fileno(), mode)
        os.fsync(stream.fileno())
