"""Files that tests keep below build/ for later runs: one process makes each, others wait."""

from __future__ import annotations

import contextlib
import fcntl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def alone_with(place: Path) -> Iterator[None]:
    """Holds the lock of the file or folder `place`, which others need to make or look for it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back when it is closed, or its holder is killed
        yield
