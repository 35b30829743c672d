"""What tests keep below build/ for the next run is made by one process, while the others wait."""

from __future__ import annotations

import contextlib
import fcntl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def alone_with(place: Path) -> Iterator[None]:
    """Nobody else makes, or looks for, the file or folder `place` meanwhile."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back when it is closed, or its holder is killed
        yield
