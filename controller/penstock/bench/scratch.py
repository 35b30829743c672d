"""Temporary folders for runs. If a run is killed, the next run removes its folder."""

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

YOUNG_S = 60  # the run that made a younger folder may not have locked it yet


MEMORY = Path("/dev/shm")  # noqa: S108 - a tmpfs, as is an agent's /run


@contextlib.contextmanager
def scratch_folder(kind: str, *, in_memory: bool = False) -> Iterator[Path]:
    """A private folder `penstock-<kind>-…`, which is removed at the end.

    With `in_memory`, the folder is on a tmpfs if there is one, like an agent's state.
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
    """Removes folders of this user's killed runs, which no process locks or uses."""
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
