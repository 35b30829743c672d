"""Contents: what files and folders hold, by digests, so that a change is seen."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PIECE_BYTES = 1 << 20
# A file that was changed so shortly ago may change again without another time of its change.
_SETTLED_NS = 1_000_000_000
_FOLDER = "folder"


class Content(NamedTuple):
    """What a file held when it was looked at.

    Attributes:
        digest: SHA-256 of its bytes; of a folder a word.
        size_bytes: Its length.
        changed_ns: When it was last changed, by its file system; 0: too shortly before to rely on.
        inode: Its number there.
    """

    digest: str
    size_bytes: int = 0
    changed_ns: int = 0
    inode: int = 0


def contents(path: Path, known: Mapping[str, Content]) -> dict[str, Content]:
    """What a file holds, or a folder with all below it, by path.

    A file that was not changed since it was looked at (`known`) is not read again. Links are
    followed.

    Raises:
        OSError: something is not there, or cannot be read.
    """
    return {str(one): _content(one, known.get(str(one))) for one in _below(path)}


def changed(former: Mapping[str, Content], now: Mapping[str, Content]) -> str | None:
    """A path whose content is not what it was, if there is one."""
    paths = sorted({*former, *now})
    return next((one for one in paths if _digest(former, one) != _digest(now, one)), None)


def _digest(of: Mapping[str, Content], path: str) -> str | None:
    return of[path].digest if path in of else None


def _below(path: Path) -> Iterator[Path]:
    """The path, and all below it, each folder once. Raises `OSError`."""

    def fail(error: OSError) -> None:
        raise error

    yield path
    if not path.is_dir():
        return
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(path, followlinks=True, onerror=fail):
        found = Path(folder).stat()
        if (found.st_dev, found.st_ino) in seen:  # a link to a folder above it
            folders.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        yield from (Path(folder, name) for name in (*folders, *files))


def _content(path: Path, known: Content | None) -> Content:
    """What one path holds. Raises `OSError`."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        return Content(_FOLDER)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is neither a file nor a folder", str(path))
    is_settled = time.time_ns() - found.st_ctime_ns > _SETTLED_NS
    changed_ns = found.st_ctime_ns if is_settled else 0
    now = Content("", found.st_size, changed_ns, found.st_ino)
    if known is not None and changed_ns and known._replace(digest="") == now:
        return known
    return now._replace(digest=_sha256(path))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
