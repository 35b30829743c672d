"""Folders for the length of a run. One that was killed leaves its folder to the next to remove."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.node.tenants.state import is_locked, locked
from penstock.node.tenants.tenant_processes import MACHINE_VARIABLE, TENANT_VARIABLE, environments

if TYPE_CHECKING:
    from collections.abc import Iterator

YOUNG_S = 60  # a folder younger than that may be one whose run has not taken its lock yet


MEMORY = Path("/dev/shm")  # noqa: S108 - where an agent's /run is of the same kind


@contextlib.contextmanager
def scratch_folder(kind: str, *, in_memory: bool = False) -> Iterator[Path]:
    """A folder `penstock-<kind>-…` of this user alone, removed at the end.

    `in_memory`: on a tmpfs, as an agent's state is, where there is one.
    """
    prefix = f"penstock-{kind}-"
    above = MEMORY if in_memory and os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    remove_stale(prefix, above)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=above) as name,
        locked(Path(name) / "lock"),
    ):
        yield Path(name)


def remove_stale(prefix: str, above: Path | None = None) -> None:
    """Removes folders of our own runs that were killed: nobody holds them, nothing runs there."""
    for folder in (above or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if not ours or time.time() - found.st_mtime < YOUNG_S or is_locked(folder / "lock"):
                continue
            running = environments(TENANT_VARIABLE, MACHINE_VARIABLE).values()
            used = (Path(place) for one in running for place in one.values())
            if not any(folder in place.parents for place in used):
                shutil.rmtree(folder, ignore_errors=True)
