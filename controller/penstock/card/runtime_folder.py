"""Runtime folder: the private folder of each user for what their programs publish.

It is `penstock/card` in $XDG_RUNTIME_DIR, else in /run/user/UID, else /tmp/penstock-card-UID.
Anybody may put a folder or a link of these names into /tmp, so each folder is opened without
following links, and used only if it belongs to its user and nobody else may enter it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED = Path("/tmp")  # noqa: S108 - see above
USERS = Path("/run/user")
_PREFIX = "penstock-card-"
_WAYS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Place(NamedTuple):
    """Where a user's folder may be: a folder that exists, and folders below it."""

    base: Path
    names: tuple[str, ...]
    uid: int

    def __str__(self) -> str:
        return str(self.base.joinpath(*self.names))


def _own_places() -> list[Place]:
    """The places of this user, the best first."""
    uid = os.geteuid()
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    bases = [Path(named)] if named.startswith("/") else []
    bases.append(USERS / str(uid))
    places = [Place(base, ("penstock", "card"), uid) for base in dict.fromkeys(bases)]
    return [*places, Place(SHARED, (f"{_PREFIX}{uid}",), uid)]


def _all_places() -> list[Place]:
    """The places of all users, for root."""
    found = [Place(one, ("penstock", "card"), int(one.name)) for one in _listed(USERS, r"\d+")]
    shared = [one.name for one in _listed(SHARED, _PREFIX + r"\d+")]
    return found + [Place(SHARED, (one,), int(one.removeprefix(_PREFIX))) for one in shared]


def _listed(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if re.fullmatch(pattern, one.name))
    except OSError:
        return []


def open_own() -> int:
    """A descriptor of this user's folder, which is made if there is none.

    Raises:
        PenstockError: there is none that can be trusted.
    """
    why = "there is none"
    for place in _own_places():
        found = _opened_or_why(place)
        if isinstance(found, int):
            return found
        why = found
    raise PenstockError(
        "no folder for the figures of this program", why,
        "set XDG_RUNTIME_DIR to a folder of yours that nobody else may enter",
    )  # fmt: skip


def _opened_or_why(place: Place) -> int | str:
    """A descriptor of the folder of a place, which is made if there is none; or what failed."""
    try:
        return _open(place, makes=True)
    except OSError as error:
        return f"{place}: {error.strerror or error}"


@contextlib.contextmanager
def opened() -> Iterator[list[tuple[Place, int]]]:
    """Descriptors of the folders whose figures this user may see: their own; for root, all.

    Folders that cannot be trusted are left out.
    """
    places = _own_places()
    if os.geteuid() == 0:
        places = list(dict.fromkeys([*places, *_all_places()]))
    found: list[tuple[Place, int]] = []
    try:
        for place in places:
            with contextlib.suppress(OSError):
                found.append((place, _open(place, makes=False)))
        yield found
    finally:
        for _, descriptor in found:
            os.close(descriptor)


def _open(place: Place, *, makes: bool) -> int:
    """Opens the folder of a place. Raises OSError if it is not there or cannot be trusted."""
    descriptor = os.open(place.base, _WAYS)
    try:
        if place.base != SHARED:
            _check(descriptor, place.uid, stat.S_IWGRP | stat.S_IWOTH)
        for name in place.names:
            if makes:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=descriptor)
            above, descriptor = descriptor, os.open(name, _WAYS | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(above)
            last = name == place.names[-1]
            _check(descriptor, place.uid, 0o077 if last else stat.S_IWGRP | stat.S_IWOTH)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(descriptor: int, uid: int, forbidden: int) -> None:
    """Raises PermissionError for a folder of somebody else, or one with one of these modes."""
    found = os.fstat(descriptor)
    if found.st_uid != uid:
        raise PermissionError(1, f"it belongs to user {found.st_uid}")
    if found.st_mode & forbidden:
        raise PermissionError(1, f"others may use it (mode {stat.S_IMODE(found.st_mode):04o})")
