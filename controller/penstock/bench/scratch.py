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

from penstock.node.processes import MACHINE_VARIABLE, TENANT_VARIABLE, environments
from penstock.node.state import is_locked, locked

if TYPE_CHECKING:
    from collections.abc import Iterator

YOUNG_S = 60  # a folder younger than that may be one whose run has not taken its lock yet


@contextlib.contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """A folder `penstock-<kind>-…` of this user alone, removed at the end."""
    prefix = f"penstock-{kind}-"
    remove_stale(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as name, locked(Path(name) / "lock"):
        yield Path(name)


def remove_stale(prefix: str) -> None:
    """Removes folders of our own runs that were killed: nobody holds them, nothing runs there."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if not ours or time.time() - found.st_mtime < YOUNG_S or is_locked(folder / "lock"):
                continue
            running = environments(TENANT_VARIABLE, MACHINE_VARIABLE).values()
            used = (Path(place) for one in running for place in one.values())
            if not any(folder in place.parents for place in used):
                shutil.rmtree(folder, ignore_errors=True)
