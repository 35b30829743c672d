"""Tenant names, which become directory names and a 64-byte field of the quota page."""

from __future__ import annotations

import difflib
import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MAX_TENANT_NAME = 63
TENANT_NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"


def check_tenant_name(name: str) -> str:
    """`name` itself if it is a valid tenant name. Raises `PenstockError` otherwise."""
    if re.fullmatch(TENANT_NAME_PATTERN, name):
        return name
    raise PenstockError(
        f"tenant name {name!r} is not usable",
        f"a name has 1 to {MAX_TENANT_NAME} letters, digits, '.', '_' or '-', and starts and ends "
        "with a letter or digit",
        "choose another name",
    )


def printable(word: str) -> str:
    r"""A command-line word made readable: bytes that are not UTF-8 are written like `\xff`."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The member of `words` that `word` most likely means; None if none is similar."""
    folded = {one.lower(): one for one in words}
    given = word.lower()
    begun = [one for one in folded if len(given) > 1 and one.startswith(given)]
    near = begun or difflib.get_close_matches(given, folded, 1, cutoff=0.7)
    return folded[near[0]] if len(near) == 1 else None


def listing(words: Sequence[str], most: int = 8) -> str:
    """The first `most` of `words` and the number of the rest, to keep an error message readable."""
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def name_from_command(command: Sequence[str], taken: Collection[str] = ()) -> str:
    """A readable tenant name for `command` that is not in `taken`: `python`, `python-2`, etc."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(command[0]).name)[: MAX_TENANT_NAME - 8]
    base = base.strip("._-") or "tenant"
    if base not in taken:
        return base
    free = 2
    while f"{base}-{free}" in taken:
        free *= 2
    used = free // 2  # between the two is a free number behind a used one: halve the distance
    while free - used > 1:
        middle = (used + free) // 2
        if f"{base}-{middle}" in taken:
            used = middle
        else:
            free = middle
    return f"{base}-{free}"
