"""The cgroups that nodes put their Pods below, in whatever hierarchies this machine has."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """One for each controller (version 1, also beside an empty version 2), or the only one."""
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    found = [path for path in ROOT.iterdir() if (path / "tasks").exists()]
    return sorted({path.resolve() for path in found})


def make(path: Path) -> None:
    """Makes the cgroup and those above it in every hierarchy, ready to have children."""
    for hierarchy in hierarchies():
        at = hierarchy
        for part in path.relative_to("/").parts:
            _offer_controllers(at)
            at /= part
            at.mkdir(exist_ok=True)
            _take_cpus(at)
        _offer_controllers(at)


def _offer_controllers(cgroup: Path) -> None:
    """Version 2: children have a controller only when it is named in the parent."""
    offered = cgroup / "cgroup.subtree_control"
    if offered.exists():
        names = (cgroup / "cgroup.controllers").read_text().split()
        offered.write_text(" ".join(f"+{name}" for name in names))


def _take_cpus(cgroup: Path) -> None:
    """Version 1: no process gets into a cpuset that names no CPU."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        own = cgroup / name
        if own.exists() and (cgroup.parent / "tasks").exists() and not own.read_text().strip():
            own.write_text((cgroup.parent / name).read_text())


def remove(path: Path, within_s: float = 20) -> list[Path]:
    """Removes it with all below, once the processes in it have gone; what could not be removed."""
    until = time.monotonic() + within_s
    below = path.relative_to("/")
    # Beside version 1, kubelet and runc make it in an empty version 2 as well.
    places = [ROOT / below, *(at / below for at in ROOT.iterdir() if at.is_dir())]
    while left := [place for place in places if place.exists()]:
        for top in left:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):  # a process in it may still be ending
                    Path(folder).rmdir()
        if time.monotonic() > until:
            return left
        time.sleep(0.05)
    return []
